"""The sources are clean: notebooks without outputs or tricks, no machine's paths, short modules, plain imports."""

import ast
import re
import subprocess
from pathlib import Path

import nbformat
import pytest

from privrob.suite import guard

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").rglob("*.ipynb"))
MODULES = sorted((ROOT / "lib").rglob("*.py"))
# what must stand in no tracked file; written in pieces, so that this file does not hold it
PATHS = re.compile(
    "|".join(["/" + "home/(?!user\\b)[a-z]", "/" + "Users/[A-Za-z]", "/" + "root/", "[A-Z]:\\\\" + "Users"])
)
REGISTRIES = re.compile(
    "|".join(["https?://[^\\s]*" + "(artifactory|nexus|devpi|jfrog)", "--(extra-)?" + "index-url", "pip\\." + "conf"])
)
TOPS = {"README.md", "LICENSE", "CITATION.cff", "environment.yml", "run_all.sh", "pyproject.toml"}
TOPS |= {"data", "lib", "notebooks", "results", "tests"}


def name(path):
    return path.relative_to(ROOT).as_posix()


def tracked():
    """Tracked files that are text, as they stand now."""
    git = ["git", "-c", f"safe.directory={ROOT}", "-C", str(ROOT), "ls-files", "-z"]
    try:
        listed = subprocess.run(git, capture_output=True, check=True, timeout=30).stdout.decode().split("\0")
    except (OSError, subprocess.SubprocessError):
        pytest.skip("not a git checkout")
    for path in (ROOT / n for n in listed if n):
        if path.is_file():
            data = path.read_bytes()
            if b"\0" not in data[:1000]:
                yield path, data.decode("utf-8")


@pytest.fixture(params=NOTEBOOKS, ids=lambda p: p.stem)
def notebook(request):
    return nbformat.read(request.param, as_version=4)


def code_of(notebook):
    return [c for c in notebook.cells if c.cell_type == "code"]


# ------------------------------------------------------------------------------------------------------------ notebooks


def test_notebooks_hold_no_outputs_and_no_counts(notebook):
    nbformat.validate(notebook)
    for cell in code_of(notebook):
        assert cell.outputs == []
        assert cell.execution_count is None
    assert set(notebook.metadata) <= {"privrob", "kernelspec", "language_info"}


def test_the_guard_takes_every_notebook(notebook, request):
    """One parameters cell of literals, all of them read; no magics, no shell, no tag that lets a failure pass."""
    path = request.node.callspec.params["notebook"]
    source = guard.read(path, f"{path.parent.name}/{path.stem}")
    assert source.about["title"]
    names = r"(sec\d+_\d+|appendix_[a-z]\d+)_[a-z0-9_]+"
    assert re.fullmatch(names, path.stem), "names are sec<N>_<M>_<slug> or appendix_<letter><N>_<slug>"


def test_code_cells_are_short_and_catch_no_failure_blindly(notebook):
    for number, cell in enumerate(code_of(notebook), start=1):
        assert len(cell.source.splitlines()) <= 25, f"code cell {number}"
        for node in ast.walk(ast.parse(cell.source)):
            if isinstance(node, ast.ExceptHandler):
                assert node.type is not None, f"code cell {number} has a bare except"
                assert ast.unparse(node.type) not in ("Exception", "BaseException"), (
                    f"code cell {number} catches everything"
                )
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno < 10, f"{node.name} belongs in lib/"


GLOBAL_RANDOMNESS = re.compile(
    r"\bnp\.random\.(?!Generator)\w+|\btorch\.manual_seed|\btorch\.nn\.[A-Z]\w*\(|\brandom\.(random|choice|shuffle|seed)\("
)


def test_notebooks_draw_from_streams_only(notebook):
    """Layers of torch take their weights from the global generator, so that a second run gives other numbers."""
    for number, cell in enumerate(code_of(notebook), start=1):
        assert not (hit := GLOBAL_RANDOMNESS.search(cell.source)), f"code cell {number}: {hit[0]}; use run.streams"
        for node in ast.walk(ast.parse(cell.source)):
            if isinstance(node, ast.Call) and re.fullmatch(
                r"torch\.(rand\w*|normal|bernoulli)", ast.unparse(node.func)
            ):
                assert "generator" in {k.arg for k in node.keywords}, f"code cell {number}: {ast.unparse(node)}"


def test_notebooks_begin_with_a_title_start_a_run_and_end_by_saving_it(notebook, request):
    path = request.node.callspec.params["notebook"]
    assert notebook.cells[0].cell_type == "markdown"
    assert notebook.cells[0].source.startswith("# ")
    code = "\n".join(c.source for c in code_of(notebook))
    assert f'start("{path.parent.name}/{path.stem}"' in code
    assert "run.save(" in code_of(notebook)[-1].source
    assert 8 <= len(notebook.cells) <= 40


# ---------------------------------------------------------------------------------------------------------------- files


def test_no_tracked_file_names_a_persons_folder_or_a_package_registry():
    found = [f"{name(p)}: {m[0]}" for p, t in tracked() for m in [PATHS.search(t) or REGISTRIES.search(t)] if m]
    assert not found


def test_results_name_no_folder_of_the_machine_that_made_them():
    machine = re.compile(re.escape(str(ROOT)) + r"|ipykernel_\d|/tmp/[\w-]")
    for path in sorted((ROOT / "results").glob("*/*/*/*")):
        if path.suffix in (".json", ".csv", ".ipynb", ".svg", ".md") and not name(path).startswith("results/."):
            hit = machine.search(path.read_text(encoding="utf-8"))
            assert not hit, f"{name(path)}: {hit[0]}"


def test_the_top_of_the_checkout_is_tidy():
    tops = {name(p).partition("/")[0] for p, _ in tracked()}
    assert {t for t in tops if not t.startswith(".")} <= TOPS


def test_data_sets_are_not_committed():
    held = {name(p) for p, _ in tracked() if name(p).startswith("data/")}
    texts = {"claims.yaml", "documents.bib", "findings.yaml", "manifest.toml", "README.md"}
    assert held <= {f"data/{name}" for name in texts}


def test_text_files_end_in_one_newline_and_hold_no_carriage_returns():
    for path, text in tracked():
        if path.suffix not in (".svg", ".csv", ".json") and text and "results" not in path.parts:
            assert text.endswith("\n"), name(path)
            assert not text.endswith("\n\n"), name(path)
            assert "\r" not in text, name(path)


# -------------------------------------------------------------------------------------------------------------- library


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_modules_are_short_and_say_what_they_are(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 450
    if text.strip() and path.name not in ("__main__.py",):
        assert ast.get_docstring(ast.parse(text)), "a module begins with what it is for"


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_imports_are_absolute_so_that_the_code_hash_sees_them(path):
    relative = [
        n for n in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(n, ast.ImportFrom) and n.level
    ]
    assert not relative


ORDER = ("accounting", "mechanisms", "robust", "learn", "suite")


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_imports_run_one_way(path):
    """checks, kinds → accounting → mechanisms → robust → learn; the science wing never imports the suite."""
    parts = path.relative_to(ROOT / "lib" / "privrob").parts
    room = parts[0] if len(parts) > 1 else ""
    if room not in ORDER:
        pytest.skip("no room")
    later = set(ORDER[ORDER.index(room) + 1 :])
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = {n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    names |= {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    rooms = {m.split(".")[1] for m in names if m.startswith("privrob.")}
    rooms |= {
        a.name for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module == "privrob" for a in n.names
    }
    assert not rooms & later
    if room == "suite":  # it knows no maths; one module sees to the data before a run
        assert rooms & set(ORDER) <= ({"suite", "learn"} if path.name == "inputs.py" else {"suite"})


def test_library_code_moves_no_tensor_to_a_gpu_by_name_and_draws_from_no_global_generator():
    for path in MODULES:
        text = path.read_text(encoding="utf-8")
        for word in (".cuda()", "np.random.seed(", "np.random.normal(", "torch.manual_seed("):
            allowed = word == "torch.manual_seed(" and path.name == "kinds.py"  # in a docstring that says why not
            assert allowed or word not in text, f"{name(path)}: {word}"
