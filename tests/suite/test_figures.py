"""Figures: the same bytes each time, nothing left out without a word, none left open."""

import logging
import struct
import subprocess
import sys
import warnings

import matplotlib as mpl
import numpy as np
import pytest

from house import ROOT

mpl.use("agg")
import matplotlib.pyplot as plt

from privrob.suite import figures, session

DRAW = """
import sys, hashlib
import matplotlib.pyplot as plt
from privrob.suite import figures
figures.use_style()
fig, ax = plt.subplots()
ax.plot([1, 2], [1, 4], label="DP-SGD ε")
ax.set(xlabel="privacy budget ε at δ = 1e-5", ylabel="accuracy")
ax.legend()
for ending, data in figures.render(fig).items():
    print(ending, hashlib.sha256(data).hexdigest())
"""


@pytest.fixture(autouse=True)
def _style():
    with mpl.rc_context():
        figures.use_style()
        yield
    plt.close("all")


@pytest.fixture
def notebook_run(house):
    from privrob.suite import guard

    name = house.names[0]
    source = guard.read(house.root / "notebooks" / f"{name}.ipynb", name)
    return session.Run(session.Job.current(name), source, dict(source.defaults))


def lines(x, *ys, scale="linear", labels=()):
    fig, ax = plt.subplots()
    for index, y in enumerate(ys):
        ax.plot(x, y, label=labels[index] if labels else f"series {index}")
    ax.set_yscale(scale)
    ax.legend()
    return fig


def legend(fig):
    return [t.get_text() for t in fig.axes[0].get_legend().get_texts()]


# ------------------------------------------------------------------------------------------------------ points left out


def test_points_at_zero_below_it_or_not_finite_are_counted_on_a_log_axis_only():
    y = [0.0, -1.0, np.inf, np.nan, 1.0, 2.0]
    assert figures.left_out(lines(range(6), y, scale="log")) == 4
    assert figures.left_out(lines(range(6), y)) == 2
    fig = lines([0, 1, 2], [1, 1, 1])
    fig.axes[0].set_xscale("log")
    assert figures.left_out(fig) == 1


def test_scattered_points_count_and_reference_lines_do_not():
    fig, ax = plt.subplots()
    ax.set_yscale("log")
    ax.scatter([1, 2, 3], [0.0, np.nan, 1.0])
    ax.axhline(1.0)
    ax.axvline(0.0)
    ax.fill_between([1, 2], [1, 1], [2, 2])
    assert figures.left_out(fig) == 2


def test_lines_over_names_instead_of_numbers_are_no_trouble():
    fig, ax = plt.subplots()
    ax.plot(["SGD", "DP-SGD"], [0.9, np.nan], label="accuracy")
    ax.legend()
    assert figures.left_out(fig) == 1
    figures.drop_empty_legends(fig)
    assert legend(fig) == ["accuracy"]


def test_the_caption_counts_what_is_not_drawn_and_the_table_has_it(notebook_run, capsys):
    import pandas as pd

    table = pd.DataFrame({"steps": [0, 1, 2], "epsilon": [0.0, 0.5, float("inf")]})
    fig = lines(table["steps"], table["epsilon"], scale="log")
    notebook_run.figure("loss", fig, caption="Loss.", table=table)
    assert notebook_run.drawn[0]["caption"] == "Loss. (2 points at 0 or infinity not drawn; the table has them.)"
    assert "Figure 1. Loss. (2 points" in capsys.readouterr().out
    assert notebook_run.files["loss.csv"] == b"steps,epsilon\n0,0.0\n1,0.5\n2,inf\n"
    notebook_run.figure("one", lines([0, 1], [1.0, np.nan]), caption="One.")
    assert notebook_run.drawn[1]["caption"] == "One. (1 point at 0 or infinity not drawn; the table has them.)"


def test_a_series_without_a_point_gets_no_legend_entry():
    nan = [np.nan] * 3
    fig = lines([1, 2, 3], [1, 2, 3], nan, [0, 0, 0], scale="log", labels=["ours", "missing", "at zero"])
    fig.axes[0].legend(title="method", loc="lower left")
    figures.drop_empty_legends(fig)
    assert legend(fig) == ["ours"]
    kept = fig.axes[0].get_legend()
    assert (kept.get_title().get_text(), kept._loc) == ("method", 3)
    fig = lines([1], [np.nan])
    figures.drop_empty_legends(fig)
    assert legend(fig) == []


def test_error_bars_without_a_point_get_no_legend_entry():
    fig, ax = plt.subplots()
    ax.errorbar([1, 2], [1, 2], yerr=0.1, label="ours")
    ax.errorbar([1, 2], [np.nan, np.nan], yerr=0.1, label="missing")
    ax.legend()
    figures.drop_empty_legends(fig)
    assert legend(fig) == ["ours"]


# ---------------------------------------------------------------------------------------------------------------- bytes


def test_a_figure_renders_to_the_same_bytes_twice_and_in_another_process_whatever_the_backend():
    fig = lines([1, 2], [1, 4])
    assert figures.render(fig) == figures.render(fig)
    told = []
    for changes in ({"MPLBACKEND": "TkAgg"}, {"MPLBACKEND": "agg"}):
        env = {"PYTHONPATH": str(ROOT / "lib"), "PATH": "", "HOME": "/proc/nowhere", "LC_ALL": "C", **changes}
        done = subprocess.run([sys.executable, "-c", DRAW], env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        told.append(done.stdout)
    assert told[0] == told[1]
    assert told[0].startswith("png ")


def test_a_figure_has_the_size_that_its_sheet_says():
    png = figures.render(lines([1, 2], [1, 4]))["png"]
    width, height = struct.unpack(">II", png[16:24])
    assert (width, height) == tuple(round(v * figures.PNG_DPI) for v in figures.RC["figure.figsize"])


def test_greek_letters_and_signs_draw_without_font_warnings(caplog):
    fig = lines([1, 2], [1, 4])
    fig.axes[0].set(title="ε ≤ δ̂ · α₀ ‖∇ℓ‖₂ − √2 × 10⁻⁵ ∈ ℝ → ∞ ± σ̃ μ π τ ⋅", xlabel="ρ²", ylabel="x′ ∼ y")
    with warnings.catch_warnings(), caplog.at_level(logging.WARNING):
        warnings.simplefilter("error")
        figures.render(fig)
    assert not caplog.records


# ---------------------------------------------------------------------------------------------------------------- style


def test_figures_are_closed_and_a_name_is_used_once(notebook_run, monkeypatch):
    rendered = figures.render(plt.subplots(figsize=(1, 1))[0])
    monkeypatch.setattr(figures, "render", lambda fig: rendered)
    for index in range(25):
        notebook_run.figure(f"f{index}", plt.subplots(figsize=(1, 1))[0], caption="Small.")
        assert len(plt.get_fignums()) < 20
    with pytest.raises(ValueError, match="name must be new for each figure, got name='f3' twice"):
        notebook_run.figure("f3", plt.figure(), caption="Again.")


def test_methods_part_in_colour_marker_or_dashes_and_the_papers_points_are_hollow():
    looks = list(figures.METHODS.values())
    assert len(set(looks)) >= len(looks) - 2
    _, ax = plt.subplots()
    (points,) = figures.paper_points(ax, [1], [1], method="DP-SGD")
    assert points.get_markerfacecolor() == "none"
    assert points.get_markeredgecolor() == figures.METHODS["DP-SGD"][0]
    assert figures.style("DP-SGD", linewidth=3)["label"] == "DP-SGD"


def test_means_count_the_rows_without_an_estimate_and_curves_draw_them_hollow_on_top():
    import matplotlib.pyplot as plt
    import pandas as pd

    rows = pd.DataFrame({"label": "ball", "n": [1, 1, 2, 2], "error": [1.0, 3.0, 2.0, float("inf")]})
    found = figures.means(rows, ["n"])
    assert found["mean"].tolist() == [2.0, float("inf")]
    assert found["s.e."].tolist()[0] == pytest.approx(1.0)  # std 2**0.5 of two, over 2**0.5
    assert np.isnan(found["s.e."].tolist()[1])
    assert found["no estimate"].tolist() == [0.0, 0.5]
    fig, ax = plt.subplots()
    figures.mean_curves(ax, rows, "n", methods=["ball"], top=9.0)
    drawn, above = ax.get_lines()[0], ax.get_lines()[-1]
    assert (drawn.get_xdata().tolist(), drawn.get_ydata().tolist()) == ([1], [2.0])
    assert (list(above.get_xdata()), list(above.get_ydata()), above.get_mfc()) == ([2], [9.0], "none")
    assert len(ax.get_legend_handles_labels()[1]) == 1
    plt.close(fig)
