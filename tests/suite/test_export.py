"""Exported tables are whole, and LaTeX reads them as they were meant."""

import csv
import math
import shutil
import subprocess

import pytest

from privrob.suite import cli, export


@pytest.fixture(scope="module")
def house(make_house):
    built = make_house()
    status, out = built.run("dplearn/sec1_toy", "--preset", "laptop")
    assert status == 0, out
    return built


@pytest.fixture
def here(house, monkeypatch):
    monkeypatch.setenv("PRIVROB_ROOT", str(house.root))
    return house


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("50 % & more_of #1 {x} $5", r"50 \% \& more\_of \#1 \{x\} \$5"),
        (r"a\b ~ ^", r"a\textbackslash{}b \textasciitilde{} \textasciicircum{}"),
        ("ε ≤ √2 · α₁² − 10⁻¹²", r"$\varepsilon$ $\leq$ $\surd$2 $\cdot$ $\alpha$$_{1}$$^{2}$ $-$ 10$^{-12}$"),
        ("x′ ∈ S, ‖g‖", r"x$'$ $\in$ S, $\|$g$\|$"),
        ("2 ± 1 – “so”", r"2 $\pm$ 1 -- ``so''"),
        ("", ""),
    ],
)
def test_text_becomes_latex(text, shown):
    assert export.tex(text) == shown


def test_values_become_latex():
    values = (0.1234567, 3, None, math.nan, math.inf, -math.inf, "a_b", True)
    assert [export.cell(v) for v in values] == [
        "0.123457",
        "3",
        "",
        "",
        r"$\infty$",
        r"$-\infty$",
        r"a\_b",
        "True",
    ]


def test_every_table_is_written_in_both_forms(here, tmp_path, capsys):
    folders = tmp_path / "la tex", tmp_path / "csv"
    assert cli.main(["export", "--latex", str(folders[0]), "--csv", str(folders[1])]) == 0
    assert "2 tables in" in capsys.readouterr().out
    names = {p.relative_to(folders[0]).with_suffix("").as_posix() for p in folders[0].rglob("*.tex")}
    assert names == {"dplearn/sec1_toy/draws", "dplearn/verdicts"}
    assert names == {p.relative_to(folders[1]).with_suffix("").as_posix() for p in folders[1].rglob("*.csv")}
    text = (folders[0] / "dplearn" / "verdicts.tex").read_text(encoding="utf-8")
    assert r"\begin{longtable}" in text
    assert r"\label{tab:dplearn:verdicts}" in text
    assert "It is so. &" in text
    with (folders[1] / "dplearn" / "verdicts.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [r["verdict"] for r in rows] == ["holds", "matches", "open", "open"]
    kept = (here.results / "dplearn" / "sec1_toy" / "laptop" / "draws.csv").read_text(encoding="utf-8")
    assert (folders[1] / "dplearn" / "sec1_toy" / "draws.csv").read_text(encoding="utf-8") == kept


def test_a_call_without_a_folder_or_results_is_refused_in_words(here, tmp_path, capsys):
    assert cli.main(["export"]) == 2
    assert "--latex DIR, --csv DIR, or both" in capsys.readouterr().err


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="no pdflatex here")
def test_latex_takes_it(here, tmp_path):
    export.write(here.results, latex_folder=tmp_path)
    body = "\n".join(rf"\input{{{p}}}" for p in sorted(tmp_path.rglob("*.tex")))
    page = rf"\documentclass{{article}}\usepackage{{booktabs,longtable}}\begin{{document}}{body}\end{{document}}"
    (tmp_path / "all.tex").write_text(page)
    done = subprocess.run(["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"], cwd=tmp_path)
    assert done.returncode == 0


@pytest.mark.parametrize("option", ["--csv", "--latex"])
def test_no_table_is_written_among_the_results(here, tmp_path, capsys, option):
    (tmp_path / "link").symlink_to(here.results)
    for place in (here.results, here.results / "x", tmp_path / "link" / "x", here.root / "y" / ".." / "results" / "x"):
        assert cli.main(["export", option, str(place)]) == 2
        told = capsys.readouterr().err
        assert f"{option} must lie outside the results, got {place}, in {here.results}; name another folder" in told
    assert not (here.results / "x").exists()
    study = here.results / "dplearn"  # a folder that is exported in place of results/
    for out, place in ((tmp_path, tmp_path / "x"), (study, here.results / "x")):
        with pytest.raises(ValueError, match=f"{option} must lie outside the results"):
            export.write(out, **{f"{option[2:]}_folder": place})
        assert not place.exists()
