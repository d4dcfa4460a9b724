"""What is loaded from outside runs no code, is what its hash says, and pages load nothing from elsewhere."""

import ast
import re
import tomllib
from html.parser import HTMLParser
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[1]
MODULES = sorted((ROOT / "lib").rglob("*.py"))
NOTEBOOKS = sorted((ROOT / "notebooks").rglob("*.ipynb"))
RENDERED = sorted((ROOT / "results").rglob("*.ipynb"))
# Calls that can run what a file or a text holds. What may stand all the same, and why:
ALLOWED = {
    ("lib/privrob/learn/datasets/decode.py", "import pickle"): "CIFAR's official batches are pickles: unpickled after "
    "their sha256 was right, by an unpickler that knows arrays only (tests/learn/test_datasets_sources.py)",
    ("lib/privrob/learn/datasets/decode.py", "pickle.Unpickler"): "the base of that unpickler",
    (
        "lib/privrob/suite/counting.py",
        "compile",
    ): "counts the cells of this checkout's own notebooks, as a kernel would",
    ("lib/privrob/suite/counting.py", "exec"): "the same",
}
RUNS_CODE = {"eval", "exec", "compile", "__import__"}
MODULES_THAT_UNPICKLE = {
    "pickle",
    "cPickle",
    "_pickle",
    "dill",
    "cloudpickle",
    "joblib",
    "shelve",
    "marshal",
    "jsonpickle",
}
SAFE_YAML = re.compile(r"(yaml\.)?(C?SafeLoader|safe_load)|_Once|getattr\(yaml, 'CSafeLoader', yaml\.SafeLoader\)")


def unsafe(source):
    """What in a Python source could run code that comes from outside, as (line, what)."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            found += [(node.lineno, f"import {n}") for n in names if n.partition(".")[0] in MODULES_THAT_UNPICKLE]
        if isinstance(node, ast.ClassDef):
            found += [(node.lineno, "pickle.Unpickler") for b in node.bases if ast.unparse(b).endswith("Unpickler")]
        if not isinstance(node, ast.Call):
            continue
        name, given = ast.unparse(node.func), {k.arg: ast.unparse(k.value) for k in node.keywords}
        end = name.rpartition(".")[2]
        if name in RUNS_CODE or name.startswith(("pickle.load", "os.system", "os.popen")):
            found.append((node.lineno, name))
        if end == "load" and name.startswith("torch") and given.get("weights_only") != "True":
            found.append((node.lineno, "torch.load without weights_only=True"))
        if given.get("allow_pickle", "False") != "False":
            found.append((node.lineno, "allow_pickle"))
        if name.startswith("yaml.") and "load" in end and not end.startswith("safe_load"):
            loader = given.get("Loader") or (ast.unparse(node.args[1]) if len(node.args) > 1 else "")
            if not SAFE_YAML.fullmatch(loader):
                found.append((node.lineno, f"{name} with {loader or 'no'} loader"))
        if given.get("shell", "False") != "False":
            found.append((node.lineno, "a shell"))
        if end in ("read_pickle", "load_state_dict_from_url", "load_model", "unsafe_load"):
            found.append((node.lineno, name))
        if name.startswith("torch.hub.") and end == "load":
            found.append((node.lineno, name))
    return found


def test_nothing_in_the_library_runs_what_it_loads():
    found = set()
    for path in MODULES:
        name = path.relative_to(ROOT).as_posix()
        found |= {(name, what) for _, what in unsafe(path.read_text(encoding="utf-8"))}
    assert found - set(ALLOWED) == set()
    assert set(ALLOWED) - found == set(), "an exception that is not needed any more"


def test_nothing_in_a_notebook_runs_what_it_loads():
    for path in NOTEBOOKS:
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.cell_type == "code":
                assert unsafe(cell.source) == [], path.name


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from joblib import load",
        "class U(pickle.Unpickler): pass",
        "eval(text)",
        "exec(text)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path, allow_pickle=True)",
        "yaml.load(text)",
        "yaml.load(text, Loader=yaml.Loader)",
        "yaml.unsafe_load(text)",
        "pd.read_pickle(path)",
        "torch.hub.load('a/b', 'c')",
        "subprocess.run(text, shell=True)",
        "os.system(text)",
    ],
)
def test_what_would_run_code_would_be_seen(line):
    assert unsafe(line)


def test_what_runs_no_code_is_let_through():
    fine = "torch.load(f, weights_only=True)\nnp.load(f)\nyaml.safe_load(t)\nmodel.eval()\nast.literal_eval(t)"
    assert unsafe(fine + "\nyaml.load(t, Loader=yaml.SafeLoader)\nre.compile(t)") == []


# ------------------------------------------------------------------------------------------------------------ downloads

HASH = re.compile(r"sha256:[0-9a-f]{64}|md5:[0-9a-f]{32}")
MD5 = {  # the publisher prints no other, and we could not fetch the file to hash it anew
    "gzip.zip": "EMNIST",
    "tiny-imagenet-200.zip": "Tiny ImageNet",
}


def forms():
    sets = tomllib.loads((ROOT / "data" / "manifest.toml").read_text(encoding="utf-8"))["sets"]
    return [(f"{name}, {form['variant']}", form) for name, one in sets.items() for form in one["forms"]]


def test_every_download_has_a_hash_and_every_package_the_hashes_of_what_is_inside():
    downloads = [(where, item) for where, form in forms() for item in form.get("downloads", [])]
    assert len(downloads) >= 8
    for where, item in downloads:
        assert HASH.fullmatch(item.get("hash", "")), f"{where}: {item['file']}"
        assert item["hash"].startswith("sha256:") or item["file"] in MD5, f"{where}: {item['file']} needs a sha256"
        assert all(re.match(r"https?://", url) for url in item["urls"]), f"{where}: {item['file']}"
    for where, form in forms():
        if "package" in form:
            assert form.get("content"), where
        for value in [h for a in form.get("archives", []) for h in a.get("hashes", [])]:
            assert HASH.fullmatch(value), where
        for value in form.get("content", {}).values():
            assert HASH.fullmatch(value), where


def test_the_library_and_notebooks_name_no_plain_http_address_to_load_from():
    """Addresses of data stand in the manifest, each beside its hash; a namespace is a name and loads nothing."""
    names = ("http://www.w3.org/", "http://127.0.0.1", "http://localhost")
    for path in [*MODULES, *NOTEBOOKS, ROOT / "run_all.sh", ROOT / "environment.yml"]:
        for address in re.findall(r"http://[^\s\"'<>)]+", path.read_text(encoding="utf-8")):
            assert address.startswith(names), f"{path.relative_to(ROOT)}: {address}"


# ------------------------------------------------------------------------------------------------------ what pages load


class Loads(HTMLParser):
    """Addresses that a page's elements load by themselves (links that a reader may follow are none)."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        have = {k: v or "" for k, v in attributes}
        if tag == "link":
            self.found.append(have.get("href", ""))
        self.found += [have[n] for n in ("src", "srcset", "poster", "data", "xlink:href") if tag != "a" and have.get(n)]
        if tag in ("image", "use"):
            self.found.append(have.get("href", ""))


def remote(text):
    """Addresses elsewhere that an HTML or SVG text would load."""
    loaded = Loads(text).found + re.findall(r"(?:@import\s+|url\()\s*[\"']?([^\"')\s]+)", text)
    return [a for a in loaded if re.match(r"(?:[a-z]+:)?//", a)]


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://x.org/a.js"></script>',
        '<img src="//x.org/a.png">',
        '<link rel="stylesheet" href="http://x.org/a.css">',
        "<style>@import 'https://x.org/a.css'</style>",
        "<style>a { background: url(https://x.org/b.png) }</style>",
        '<svg><image xlink:href="https://x.org/a.png"/></svg>',
        '<iframe src="https://x.org/"></iframe>',
    ],
)
def test_what_loads_from_elsewhere_would_be_seen(text):
    assert len(remote(text)) == 1


def test_committed_pages_and_figures_load_nothing_from_elsewhere():
    pages = [p for p in (ROOT / "results").rglob("*") if p.suffix in (".html", ".svg")]
    assert pages
    for path in pages:
        assert remote(path.read_text(encoding="utf-8")) == [], path.relative_to(ROOT)


def test_rendered_notebooks_load_nothing_from_elsewhere_and_hold_no_script():
    assert RENDERED
    for path in RENDERED:
        for cell in nbformat.read(path, as_version=4).cells:
            for output in cell.get("outputs", []):
                data = output.get("data", {})
                assert "application/javascript" not in data, path.relative_to(ROOT)
                for kind in ("text/html", "image/svg+xml", "text/markdown"):
                    text = "".join(data.get(kind, ""))
                    assert remote(text) == [], path.relative_to(ROOT)
                    assert "<script" not in text.lower(), path.relative_to(ROOT)
            if cell.cell_type == "markdown":
                assert remote(cell.source) == [], path.relative_to(ROOT)
                assert not re.search(r"!\[[^\]]*\]\(https?:", cell.source), path.relative_to(ROOT)
