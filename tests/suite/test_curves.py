"""Means of repeats, with what gave no estimate."""

import numpy as np
import pytest

from privrob.suite import curves


def test_means_count_the_rows_without_an_estimate_and_curves_draw_them_hollow_on_top():
    import matplotlib.pyplot as plt
    import pandas as pd

    rows = pd.DataFrame({"label": "ball", "n": [1, 1, 2, 2], "error": [1.0, 3.0, 2.0, float("inf")]})
    found = curves.means(rows, ["n"])
    assert found["mean"].tolist() == [2.0, float("inf")]
    assert found["s.e."].tolist()[0] == pytest.approx(1.0)  # std 2**0.5 of two, over 2**0.5
    assert np.isnan(found["s.e."].tolist()[1])
    assert found["no estimate"].tolist() == [0.0, 0.5]
    fig, ax = plt.subplots()
    curves.mean_curves(ax, rows, "n", methods=["ball"], top=9.0)
    drawn, above = ax.get_lines()[0], ax.get_lines()[-1]
    assert (drawn.get_xdata().tolist(), drawn.get_ydata().tolist()) == ([1], [2.0])
    assert (list(above.get_xdata()), list(above.get_ydata()), above.get_mfc()) == ([2], [9.0], "none")
    assert len(ax.get_legend_handles_labels()[1]) == 1
    plt.close(fig)
