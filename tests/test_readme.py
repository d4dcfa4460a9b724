"""The README's commands are commands, its Python runs, its links lead somewhere, and its table is the results'."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from privrob import __version__
from privrob import cli as accountant
from privrob.suite import cli, index

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
FENCED = re.findall(r"```(\w+)\n(.*?)```", TEXT, flags=re.S)
COMMANDS = sorted(
    {
        shlex.split(line, comments=True).__repr__()
        for kind, block in FENCED
        if kind == "bash"
        for line in block.splitlines()
    }
)


@pytest.fixture(autouse=True)
def here(monkeypatch):
    monkeypatch.setenv("PRIVROB_ROOT", str(ROOT))
    monkeypatch.chdir(ROOT)


def test_the_readme_shows_the_commands_to_read_rerun_and_change():
    assert len(COMMANDS) >= 6


@pytest.mark.parametrize("words", COMMANDS)
def test_each_command_of_the_readme_is_accepted(words, capsys):
    program, *words = re.findall(r"'([^']*)'", words)
    if program == "privrob":
        assert accountant.main(words) == 0
        assert "add_remove" in capsys.readouterr().out
        return
    if "dask" in (program, *words[:1]):
        assert dask_knows(words[1:] if program == "PYTHONPATH=lib" else words)
        return
    assert program == "./run_all.sh"
    if words[:2] == ["plan", "--recipe"]:
        assert cli.main(words) == 0
        return
    if words and words[0] in ("site", "test", "lab", "bench", "clean", "export", "plan"):
        if words[0] == "lab":  # hands everything on to JupyterLab
            return
        with pytest.raises(SystemExit) as ended:
            cli.main([words[0], "--help"])
        assert ended.value.code == 0
    else:
        assert cli.main([*words, "--dry-run"] if "--list" not in words else words) == 0
        assert re.search("(dplearn|fdp|prime|ptr|stobatch)/sec", capsys.readouterr().out)


def dask_knows(words):
    """Whether dask's own parser takes a command (it starts nothing)."""
    from distributed.cli import dask_scheduler, dask_worker

    command = {"scheduler": dask_scheduler.main, "worker": dask_worker.main}[words[0]]
    return command.make_context(words[0], words[1:]) is not None


def test_the_python_of_the_readme_runs(capsys):
    for kind, block in FENCED:
        if kind == "python":
            exec(compile(block, "README.md", "exec"), {})
    assert " in [" in capsys.readouterr().out


def test_numbers_printed_beside_the_python_come_out_again():
    printed = [
        (expression, digits)
        for kind, block in FENCED
        if kind == "python"
        for expression, digits in re.findall(r"^(\S.*?)  # (\d+\.\d+)\.\.\.", block, flags=re.M)
    ]
    assert printed
    imports = [line for kind, block in FENCED if kind == "python" for line in block.splitlines() if "import" in line]
    names = {}
    exec("\n".join(imports), names)
    for expression, digits in printed:
        assert str(eval(expression, names)).startswith(digits), expression


def test_links_lead_somewhere():
    links = [target for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", TEXT) if "://" not in target]
    made = {path.relative_to(ROOT).as_posix() for path in index.pages(ROOT / "results")}  # a run writes these
    assert links
    assert not [target for target in links if target not in made and not (ROOT / target).exists()]


def test_it_says_that_the_samplers_are_for_research():
    assert "Do not deploy them" in TEXT


def test_every_data_set_and_all_weights_have_their_licence_named():
    manifest = tomllib.loads((ROOT / "data" / "manifest.toml").read_text(encoding="utf-8"))
    text = (ROOT / "data" / "README.md").read_text(encoding="utf-8")
    part = text.partition("## Licences")[2].partition("\n## ")[0]
    for name, entry in manifest["sets"].items():
        row = next(line for line in part.splitlines() if line.startswith(f"| `{name}` "))
        assert entry["licence"].partition(";")[0] in row
    networks = re.search(r"^NETWORKS = \((.*)\)", (ROOT / "lib/privrob/learn/backbones.py").read_text("utf-8"), re.M)
    assert all(f"`{name}`" in part for name in re.findall(r'"(\w+)"', networks[1]))


def test_downloads_that_are_checked_by_md5_only_are_named():
    manifest = tomllib.loads((ROOT / "data" / "manifest.toml").read_text(encoding="utf-8"))
    text = (ROOT / "data" / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w.-]+\.\w+)`", re.search(r"\n(.*) are checked by md5 only", text)[1]))
    forms = [form for entry in manifest["sets"].values() for form in entry["forms"]]
    files = [item for form in forms for item in form.get("downloads", [])]
    assert {item["file"] for item in files if item["hash"].startswith("md5:")} == named != set()


def test_no_document_has_two_links_that_read_the_same():
    for line in index.readme_text(TEXT, ROOT / "results").splitlines():
        if line.startswith("| **"):
            texts = re.findall(r"\[([^]]+)\]\(results/", line)
            assert len(set(texts)) == len(texts) > 0


def test_the_changes_begin_with_todays_version():
    text = (ROOT / "lib" / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(r"^## (\S+)", text, re.M)[1] == __version__
    cited = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {__version__}\n" in cited


def test_the_table_of_verdicts_is_the_results():
    assert index.readme_text(TEXT, ROOT / "results") == TEXT
