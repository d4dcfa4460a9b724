"""One environment: the same exact pins in both files, everything imported declared, nothing named that is not there."""

import ast
import re
import sys
import tomllib
from pathlib import Path

import nbformat
import pytest
import yaml

from privrob.suite import bootstrap, preflight

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CONDA = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
PIP = next(d["pip"] for d in CONDA["dependencies"] if isinstance(d, dict))
MODULES = {  # modules whose package has another name
    "yaml": "pyyaml",
    "PIL": "pillow",
    "dp_accounting": "dp-accounting",
    "IPython": "ipykernel",  # brought along by it, in a version that it fits
    "jupyter_client": "nbclient",
    "docutils": "sphinx",
    "cycler": "matplotlib",
    "requests": "pooch",
    "platformdirs": "pooch",
    "pygments": "sphinx",
    "mpl_toolkits": "matplotlib",
    "grpc": "flwr",
}
OURS = {"privrob", "house", "toy_cells", "conftest"}


def name_of(requirement):
    return re.match(r"[A-Za-z0-9_.-]+", requirement)[0].lower()


def imported(code):
    """Top-level names of the modules that some Python source imports."""
    names = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            names |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "importorskip":
            names.add(node.args[0].value)
    return {n.partition(".")[0] for n in names}


def sources():
    """(path, code) of all Python of the project, notebooks included."""
    for folder in ("lib", "tests", "notebooks"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path, path.read_text(encoding="utf-8")
    for path in sorted((ROOT / "notebooks").rglob("*.ipynb")):
        node = nbformat.read(path, as_version=4)
        yield path, "\n".join(c.source for c in node.cells if c.cell_type == "code")


def test_both_files_hold_the_same_exact_pins():
    pins = bootstrap.requirements(ROOT / "pyproject.toml")
    listed = [p for p in PIP if not p.startswith("-")]
    assert sorted(pins) == sorted(listed)
    for pin in pins:
        assert re.fullmatch(r"[A-Za-z0-9_.-]+==\d+(\.\d+)*", pin), f"{pin} is no exact pin"
    assert len({name_of(p) for p in pins}) == len(pins)


def test_what_the_pins_bring_along_is_pinned_too_and_agrees():
    lines = (ROOT / ".constraints.txt").read_text(encoding="utf-8").splitlines()
    constraints = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    constraints = {k.lower().replace("_", "-"): v for k, v in constraints.items()}
    for pin in bootstrap.requirements(ROOT / "pyproject.toml"):
        name, version = pin.split("==")
        assert constraints.get(name.replace("_", "-"), version) == version, name


def test_the_environment_installs_the_library_and_only_from_open_channels():
    assert "-e ." in PIP
    assert "-c .constraints.txt" in PIP
    assert CONDA["channels"] == ["conda-forge", "nodefaults"]
    assert [d for d in CONDA["dependencies"] if isinstance(d, str)] == ["python=3.11", "pip"]
    assert PROJECT["project"]["requires-python"] == ">=3.11"
    assert bootstrap.TESTED == (3, 11)


def test_every_module_that_is_imported_is_declared():
    declared = {name_of(p) for p in bootstrap.requirements(ROOT / "pyproject.toml")}
    for extra in ("vision", "federated"):  # beside the environment
        declared |= {name_of(p) for p in PROJECT["project"]["optional-dependencies"][extra]}
    missing = {}
    for path, code in sources():
        beside = {p.stem for p in path.parent.glob("*.py")}
        if "tests" in path.parts:  # a peer that need not be there
            beside |= set(re.findall(r"(?:importorskip|compare\.library)\(\"(\w+)\"", code))
        for module in imported(code) - set(sys.stdlib_module_names) - OURS - beside:
            if MODULES.get(module, module).lower().replace("_", "-") not in declared:
                missing.setdefault(module, []).append(path.relative_to(ROOT).as_posix())
    assert not missing


def test_the_library_proper_needs_none_of_the_extras_at_import():
    """Only functions may import what the extras bring; the lists for --no-env and for pip are the same."""
    needed = {name_of(p) for p in PROJECT["project"]["dependencies"]}
    assert {package or module for module, package in preflight.NEEDED.items()} == needed
    for path in sorted((ROOT / "lib").rglob("*.py")):
        if path.parent.name == "site_parts" or path.name == "site.py":
            continue  # only ``./run_all.sh site`` imports these
        tree = ast.parse(path.read_text(encoding="utf-8"))
        top = [n for n in tree.body if isinstance(n, (ast.Import, ast.ImportFrom))]
        names = set().union(*(imported(ast.unparse(n)) for n in top)) - set(sys.stdlib_module_names) - {"privrob"}
        extra = {n for n in names if MODULES.get(n, n).lower() not in needed}
        assert not extra, f"{path.name} imports {extra} when it is loaded"


def test_what_runs_before_the_environment_exists_needs_the_standard_library_alone():
    for name in ("bootstrap.py", "preflight.py"):
        code = (ROOT / "lib" / "privrob" / "suite" / name).read_text(encoding="utf-8")
        assert imported(code) <= set(sys.stdlib_module_names)
        ast.parse(code, feature_version=(3, 8))  # so that an old Python can at least say that it is too old


def test_the_readme_names_only_files_and_commands_that_exist():
    readme = ROOT / "README.md"
    if not readme.is_file():
        pytest.skip("no README yet")
    text = readme.read_text(encoding="utf-8")
    blocks = re.findall(r"```(?:bash|sh|console)\n(.*?)```", text, flags=re.S)
    commands = [line.removeprefix("$ ").split("#")[0].split() for block in blocks for line in block.splitlines()]
    for words in filter(None, commands):
        if words[0].startswith("./"):
            assert (ROOT / words[0]).is_file(), words[0]
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        if not re.match(r"[a-z]+:", target) and not target.startswith("results/"):  # those a run leaves
            assert (ROOT / target).exists(), target


def test_no_build_strings_or_platforms_are_pinned():
    for entry in CONDA["dependencies"]:
        if isinstance(entry, str):
            assert entry.count("=") <= 1, entry


def test_the_python_of_these_tests_has_the_pinned_versions():
    import importlib.metadata

    wrong = {}
    for pin in bootstrap.requirements(ROOT / "pyproject.toml"):
        name, version = pin.split("==")
        try:
            found = importlib.metadata.version(name).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            continue  # an environment without the extras
        if found != version:
            wrong[name] = (version, found)
    if wrong:
        pytest.skip(f"this environment is not the pinned one: {wrong}")
