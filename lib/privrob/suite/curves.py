"""Repeats as curves: the mean of each method with its standard error, and points where some run gave no estimate."""

from __future__ import annotations

import numpy as np

from privrob.suite.figures import style


def means(rows, by, *, value="error"):
    """Mean, standard error, median, number of rows and the share of infinite ones ("no estimate"), by groups.

    Args: rows — a DataFrame;  by — names of columns;  value — the column that is averaged.
    """
    import pandas as pd

    group = rows.groupby(by)[value]
    infinite = rows.assign(**{value: np.isinf(rows[value])}).groupby(by)[value].mean()
    found = pd.DataFrame({"mean": group.mean(), "median": group.median(), "rows": group.size()})
    with np.errstate(invalid="ignore"):
        found["s.e."] = (group.std() / np.sqrt(found["rows"])).where(infinite == 0)
    found["no estimate"] = infinite
    return found.reset_index()


def mean_curves(ax, rows, x, *, methods, by="label", value="error", top=None):
    """The means of each method along ``x`` with one standard error, in the method's style.

    Args: rows — a DataFrame;  by — the column that names the method;  top — where a point with a row without an
    estimate is drawn instead, hollow.
    """
    for method in methods:
        found, look = means(rows[rows[by] == method], [x], value=value), style(method)
        good, none = found[found["no estimate"] == 0], found[found["no estimate"] > 0]
        ax.errorbar(good[x], good["mean"], yerr=good["s.e."], capsize=2, **look)
        if top is not None:
            ax.plot(none[x], [top] * len(none), **{**look, "linestyle": "none", "mfc": "none", "label": None})
