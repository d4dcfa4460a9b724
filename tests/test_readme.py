"""The README's commands are commands, its Python runs, its links lead somewhere, and its table is the results'."""

import re
import shlex
from pathlib import Path

import pytest

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
    assert program == "./run_all.sh"
    if words and words[0] in ("site", "test", "lab", "bench", "clean"):
        if words[0] == "lab":  # hands everything on to JupyterLab
            return
        with pytest.raises(SystemExit) as ended:
            cli.main([words[0], "--help"])
        assert ended.value.code == 0
    else:
        assert cli.main([*words, "--dry-run"] if "--list" not in words else words) == 0
        assert re.search("(dplearn|fdp|prime|ptr|stobatch)/sec", capsys.readouterr().out)


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
    links = [target for target in re.findall(r"\]\(([^)#]+)\)", TEXT) if "://" not in target]
    assert links
    assert not [target for target in links if not (ROOT / target).exists()]


def test_the_table_of_verdicts_is_the_results():
    assert index.readme_text(TEXT, ROOT / "results") == TEXT
