"""One look for every figure: colour-blind safe, one colour a method across the suite, readable in grey and when small.

A method's colour, marker and dash pattern come from :data:`METHODS`, so that DP-SGD looks the same in every notebook.
Ours is drawn solid, a document's own points hollow (:func:`paper_points`).
"""

from __future__ import annotations

import contextlib
import io

import numpy as np

PNG_DPI = 130
# Okabe and Ito's palette; neighbours in the list also differ in lightness, so that they part in grey.
BLUE, ORANGE, GREEN, PINK = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
SKY, RED, YELLOW, BLACK, GREY = "#56B4E9", "#D55E00", "#F0E442", "#000000", "#7F7F7F"
CYCLE = (BLUE, ORANGE, GREEN, RED, SKY, PINK, BLACK)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (8, 2)))

# name: (colour, marker, dashes). Add a method here once; every notebook then draws it alike.
METHODS = {
    "SGD": (BLACK, "o", "-"),
    "DP-SGD": (BLUE, "s", "-"),
    "TSGD": (GREY, "P", ":"),
    "TSGD+Gaussian": (ORANGE, "P", "--"),
    "TSGD+PTR": (GREEN, "X", "-."),
    "Laplace": (ORANGE, "^", "--"),
    "Gaussian": (BLUE, "o", "-"),
    "Gaussian (analytic)": (SKY, "D", "-."),
    "RDP": (ORANGE, "^", "--"),
    "PLD": (GREEN, "D", "-"),
    "GDP (CLT)": (GREY, "v", ":"),
    "DP mean": (GREY, "X", (0, (5, 1))),
    "as_printed": (RED, "v", "--"),
    "as_released": (ORANGE, "^", "-."),
    "sound": (BLUE, "X", "-"),
    "StoBatch": (RED, "D", "-"),
    "StoBatch, independent": (PINK, "v", "--"),
    "AdLM": (ORANGE, "s", (0, (8, 2))),
    "SecureSGD": (GREEN, "o", "--"),
    "SecureSGD-AGM": (SKY, "P", ":"),
    "SecureSGD, as released": (YELLOW, "s", "-."),
    "PixelDP": (BLACK, "o", "--"),
    "Adversarial training": (GREY, "X", "-."),
    "No defence": (GREY, "o", ":"),
    "tuned": (SKY, "D", "-"),
    "ball": (BLUE, "o", "-"),
    "shrinking mean": (BLACK, "s", ":"),
    "filter": (GREEN, "s", "--"),
    "coordinate median": (PINK, "P", "-."),
    "geometric median": (YELLOW, "X", "--"),
    "as_printed, x̄ known": (PINK, "P", ":"),
}
RC = {
    "figure.figsize": (6.4, 4.0),
    "figure.dpi": PNG_DPI,
    "figure.constrained_layout.use": True,
    "savefig.dpi": PNG_DPI,
    "font.size": 10.5,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.labelsize": 10.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "svg.hashsalt": "privrob",
    "svg.fonttype": "none",
}


def use_style():
    """Set the suite's look for this process."""
    import matplotlib as mpl
    from cycler import cycler

    mpl.rcParams.update(RC)
    mpl.rcParams["axes.prop_cycle"] = cycler(color=CYCLE) + cycler(linestyle=DASHES)


def style(method, **changes):
    """Keyword arguments of ``Axes.plot`` for a method: colour, marker, dashes and label."""
    colour, marker, dashes = METHODS[method]
    return {"color": colour, "marker": marker, "linestyle": dashes, "label": method, **changes}


def paper_points(ax, x, y, *, method=None, label="as printed"):
    """A document's own values: hollow markers, so that they are never taken for ours."""
    colour = METHODS[method][0] if method else BLACK
    return ax.plot(x, y, linestyle="none", marker="o", markersize=8, mfc="none", mec=colour, mew=1.5, label=label)


def left_out(fig):
    """How many points of the drawn lines cannot be seen: not finite, or not above 0 on a log axis."""
    total = 0
    for ax in fig.axes:
        for line in ax.get_lines():
            if line.get_transform() != ax.transData:
                continue  # axhline and the like
            x, y = (np.asarray(v, dtype=float) for v in (line.get_xdata(orig=False), line.get_ydata(orig=False)))
            total += int((~_visible(ax, x, y)).sum())
        for cloud in ax.collections:
            if cloud.get_offset_transform() == ax.transData and len(cloud.get_offsets()):
                total += int((~_visible(ax, *np.ma.filled(cloud.get_offsets(), np.nan).T)).sum())
    return total


def _visible(ax, x, y):
    """Which points can be drawn on these axes."""
    seen = np.isfinite(x) & np.isfinite(y)
    seen &= (x > 0) | (ax.get_xscale() != "log")
    return seen & ((y > 0) | (ax.get_yscale() != "log"))


def drop_empty_legends(fig):
    """Take series without a single point that is drawn out of the legends."""
    for ax in fig.axes:
        legend = ax.get_legend()
        if legend is None:
            continue
        handles, labels = ax.get_legend_handles_labels()
        drawn = [(h, label) for h, label in zip(handles, labels) if not _is_empty(ax, h)]
        if len(drawn) < len(handles):
            title = legend.get_title().get_text() or None
            ax.legend(*map(list, zip(*drawn)) if drawn else ([], []), title=title, loc=legend._loc, ncols=legend._ncols)


def _is_empty(ax, handle):
    line = handle[0] if isinstance(handle, tuple) and len(handle) and hasattr(handle[0], "get_ydata") else handle
    if not hasattr(line, "get_ydata") or line.get_transform() != ax.transData:
        return False
    return not _visible(
        ax, *(np.asarray(v, float) for v in (line.get_xdata(orig=False), line.get_ydata(orig=False)))
    ).any()


@contextlib.contextmanager
def _quiet_fonts():
    import logging

    logger = logging.getLogger("matplotlib.font_manager")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def render(fig):
    """{ending: bytes} of a figure, the same bytes for the same figure: no dates, no random identifiers."""
    files = {}
    with _quiet_fonts():
        for ending, metadata in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
            out = io.BytesIO()
            fig.savefig(out, format=ending, metadata=metadata)
            files[ending] = out.getvalue()
    return files
