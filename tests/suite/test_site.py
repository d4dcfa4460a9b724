"""The pages: whole, local, complete without a script, and built without touching anything but their own folder."""

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote, urldefrag

import pytest
import yaml

from house import ROOT, House

pytest.importorskip("sphinx_book_theme", reason="the pages need privrob[site]")

from privrob.suite import site
from privrob.suite.site_parts import api, gather, listing, notebooks, pages, telling
from privrob.suite.site_parts.docstrings import lay_out

pytestmark = pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")  # Sphinx about its extensions
TO_COME = {
    "id": "prime/theorem_3",
    "kind": "theorem",
    "where": "Theorem 3",
    "text": r"The error is $O(\alpha\sqrt{\log 1/\alpha})$ when n < d & |x| > 1 <always>.",
    "notebook": "prime/sec3_prime",
    "expected": "holds",
}
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A house whose first notebook was run, with one item of another document, and its pages: (house, site folder)."""
    house = House(tmp_path_factory.mktemp("site") / "l'été à Zürich")
    path = house.root / "data" / "claims.yaml"
    claims = [*yaml.safe_load(path.read_text(encoding="utf-8")), TO_COME]
    path.write_text(yaml.safe_dump(claims), encoding="utf-8")
    status, out = house.run("dplearn/sec1_toy", "--preset", "laptop")
    assert status == 0, out
    (house.results / "BENCHMARKS.md").write_text("# Benchmarks\n\n| a | b |\n| --- | --- |\n| 1 | 2 |\n")
    (house.results / "PLAN.md").write_text("# The cost\n\n```text\n20 d\n```\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRIVROB_ROOT", str(house.root))
        said = []
        page = site.build(house.results, api=False, strict=True, say=said.append)  # warnings about sources are errors
        house.said = [line.partition("s  ")[2] for line in said]
        yield house, page.parent


def test_the_build_says_what_it_does(built):
    said = [line for line in built[0].said if " of " not in line]
    assert said[0] == "collecting verdicts, and the tests behind them"
    assert said[1] == "laying out 1 notebook and their figures"
    assert [line.partition(":")[0] for line in said[2:]] == ["reading", "writing", "done"]
    assert said[-1] == "done: 1 notebook, 5 items"


class Page(HTMLParser):
    """What a page loads, where it links to, and which anchors it has."""

    def __init__(self, path):
        super().__init__()
        self.loads, self.links, self.anchors, self.inline = [], [], set(), []
        self._inside = None
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        have = dict(attributes)
        self.anchors |= {have[n] for n in ("id", "name") if have.get(n)}
        self._inside = tag if tag in ("script", "style") else None
        if tag == "a" and "href" in have:
            self.links.append(have["href"])
        elif tag == "link" and have.get("rel") not in ("index", "search", "next", "prev"):
            self.loads.append(have["href"])
        self.loads += [have[n] for n in ("src", "srcset", "poster", "data") if have.get(n)]

    def handle_data(self, data):
        if self._inside:
            self.inline.append(data)


def outside(folder):
    """(file, address) of everything that pages, styles and our scripts would load from elsewhere."""
    found = []
    for path in folder.rglob("*"):
        if path.suffix == ".html":
            page = Page(path)
            found += [(path.name, a) for a in page.loads if re.match(r"(?:[a-z]+:)?//", a)]
            styles = "".join(page.inline)
            found += [(path.name, a) for a in re.findall(r"(?:@import|url\()\s*[\"']?((?:https?:)?//[^\"')]+)", styles)]
        elif path.suffix == ".css":
            text = path.read_text(encoding="utf-8")
            found += [
                (path.name, a) for a in re.findall(r"(?:@import\s+|url\()\s*[\"']?((?:https?:)?//[^\"')]+)", text)
            ]
        elif path.suffix == ".js":
            text = path.read_text(encoding="utf-8")
            asked = r"(?:\.src\s*=|\bimport\(|\bfetch\(|\.open\(\"GET\",|importScripts\()\s*[\"'`](https?://[^\"'`]+)"
            found += [(path.name, a) for a in re.findall(asked, text)]
    return found


def dead_links(folder):
    """(file, address) of links and loads that lead nowhere."""
    read = {p.resolve(): Page(p) for p in folder.rglob("*.html")}
    found = []
    for path, page in read.items():
        for address in page.links + page.loads:
            if re.match(r"[a-z]+:", address):
                continue
            target, anchor = urldefrag(address)
            file = (path.parent / unquote(target.partition("?")[0])).resolve() if target else path
            ok = file.is_file()
            if ok and anchor and "=" not in anchor and file in read:
                ok = unquote(anchor) in read[file].anchors
            found += [] if ok else [(path.relative_to(folder.resolve()).as_posix(), address)]
    return found


def test_a_build_tells_its_parts_and_how_far_it_is(monkeypatch):
    said, clock = [], iter(range(0, 1000, 4))
    monkeypatch.setattr(telling, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    told = telling.Progress(said.append, live=False)
    told.part("reading", 9)
    for _ in range(9):
        told.step()
    told.end("done")
    assert [" ".join(line.split()) for line in said[1:-1]] == [
        f"{seconds} s reading: {done} of 9 pages" for seconds, done in ((20, 2), (32, 4), (44, 6), (56, 8))
    ], "a sign of life each ten seconds or so, not one a page"
    assert said[0].endswith("s  reading: 9 pages")
    assert said[-1].endswith("s  done")


def test_a_source_is_highlighted_again_only_when_it_changed(tmp_path, monkeypatch):
    import pygments

    monkeypatch.setenv("PRIVROB_ROOT", str(tmp_path))
    source, old = tmp_path / "test_a.py", tmp_path / "site"
    source.write_text("x = 1\n")
    first = listing.tests(["test_a.py"], old=old, step=list)
    (old / "test_a.html").parent.mkdir()
    (old / "test_a.html").write_text(first["test_a.html"])
    again, done = pygments.highlight, []
    monkeypatch.setattr(pygments, "highlight", lambda text, *more: done.append(text) or again(text, *more))
    assert listing.tests(["test_a.py"], old=old, step=list) == first
    assert done == []
    source.write_text("x = 2\n")
    changed = listing.tests(["test_a.py"], old=old, step=list)["test_a.html"]
    assert done == ["x = 2\n"]
    assert changed == listing.tests(["test_a.py"], old=None, step=list)["test_a.html"] != first["test_a.html"]


def test_nothing_is_loaded_from_outside(built):
    assert outside(built[1]) == []


def test_a_load_from_outside_would_be_seen(tmp_path):
    (tmp_path / "a.html").write_text('<img src="//x.org/a.png"><style>@import "https://x.org/a.css"</style>')
    (tmp_path / "b.css").write_text("a { background: url(https://x.org/b.png) }")
    (tmp_path / "c.js").write_text('s.src = "https://x.org/c.js"')
    assert len(outside(tmp_path)) == 4


def test_every_link_leads_somewhere(built):
    assert dead_links(built[1]) == []


def test_the_front_page_tells_what_came_out_and_how_to_run_it_again(built):
    text = (built[1] / "index.html").read_text(encoding="utf-8")
    for wanted in (
        "dplearn/sec1_toy.html",
        "<b>5</b> items in all",
        "files/dplearn/sec1_toy/draws.png",
        "./run_all.sh",
        'href="benchmarks.html"',
        'href="plan.html"',
        "_static/site.js",
    ):
        assert wanted in text
    assert "./run_all.sh sec1_toy -p scale 1" in text  # a command that changes a parameter the notebook really has
    assert "dplearn/sec1_toy/laptop" not in text  # the generated table's links lead to pages


def test_the_front_page_names_documents_without_results_only_where_there_are_any(built, monkeypatch):
    shown = gather.gather(built[0].results)
    assert "Nothing is run yet of ptr, fdp, stobatch, prime." in pages.front(shown, api=False)
    monkeypatch.setattr(pages.claims, "DOCUMENTS", {"dplearn": "Learning"})
    assert "Nothing is run yet" not in pages.front(shown, api=False)


def test_words_stay_apart_where_the_search_takes_tags_out(built):
    shown = gather.gather(built[0].results)
    texts = {**pages.every(shown, api=False), **{b.name: notebooks.card(b) for b in shown.books.values()}}
    for name, text in texts.items():
        for between in re.findall(r"(?<=\w)(?:<[^<>]+>)+(?=\w)", text):
            assert set(re.findall(r"<[ /]*(\w+)", between)) <= {"wbr", "sub", "sup"}, (name, between)


def test_all_items_stand_in_the_table_without_a_script(built):
    house, folder = built
    text = (folder / "claims.html").read_text(encoding="utf-8")
    every = [c["id"] for c in yaml.safe_load((house.root / "data" / "claims.yaml").read_text(encoding="utf-8"))]
    rows = re.findall(r'<tr id="([^"]+)" data-doc="(\w+)" data-verdict="([\w-]+)"', text)
    assert {r[0] for r in rows} == set(every)
    assert len(rows) == len(every)
    assert {i: v for i, _, v in rows}["dplearn/sec1_toy_two"] == "matches"
    assert "<tr hidden" not in text
    assert re.search(r'<form id="items-filter"[^>]* hidden>', text)  # nothing to press that would do nothing


def test_text_of_an_item_is_escaped_and_its_math_is_set(built):
    text = (built[1] / "claims.html").read_text(encoding="utf-8")
    assert r"\(O(\alpha\sqrt{\log 1/\alpha})\)</span>" in text
    assert "n &lt; d &amp; |x| &gt; 1 &lt;always&gt;." in text
    assert "tex-svg-full.js" in text  # a table of ours holds the page's only math


def test_a_notebook_says_what_it_was_run_with(built):
    house, folder = built
    text = (folder / "dplearn" / "sec1_toy.html").read_text(encoding="utf-8")
    for wanted in (
        "Preset",
        "Commit",
        "Computed on",
        "Data",
        "numpy ",
        "./run_all.sh dplearn/sec1_toy --preset laptop",
    ):
        assert wanted in text
    for name in ("rows.csv", "result.json", "notebook.ipynb", "draws.png", "draws.svg", "draws.csv"):
        assert f'href="../files/dplearn/sec1_toy/{name}"' in text
        kept = house.results / "dplearn" / "sec1_toy" / "laptop" / name
        assert (folder / "files" / "dplearn" / "sec1_toy" / name).read_bytes() == kept.read_bytes()
    assert re.search(r'id="figure-draws"><b>Figure 1.</b> Draws of the cells\.', text)
    assert 'alt="Draws of the cells."' in text


def test_documents_and_notebooks_to_come_are_told(built):
    text = (built[1] / "prime" / "index.html").read_text(encoding="utf-8")
    assert "are to come" in text
    text = (built[1] / "dplearn" / "index.html").read_text(encoding="utf-8")
    assert "sec2_toy" in text[text.index("Not run yet") :]
    assert not (built[1] / "fdp").exists()


def test_building_again_gives_the_same_bytes(built, tmp_path):
    house, folder = built
    again = site.build(house.results, out=tmp_path / "again", api=False).parent
    first, second = ({p.relative_to(f): p.read_bytes() for p in f.rglob("*") if p.is_file()} for f in (folder, again))
    assert first.keys() == second.keys()
    assert [str(p) for p in first if first[p] != second[p]] == []


def test_the_command_builds_in_a_bare_locale_and_touches_only_the_pages(built):
    house, folder = built

    def others():
        files = (p for p in house.root.rglob("*") if p.is_file() and folder not in p.parents)
        return {p: p.stat().st_mtime_ns for p in files}

    before = others()
    code = "import sys; from privrob.suite import site; print(site.build(sys.argv[1], api=False))"
    env = house.env(LC_ALL="C", LANG="C", PYTHONIOENCODING="utf-8")
    env.pop("PYTHONUTF8")
    options = {"capture_output": True, "text": True, "encoding": "utf-8", "timeout": 120}
    done = subprocess.run([sys.executable, "-c", code, str(house.results)], env=env, **options)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("site/index.html")
    assert others() == before
    assert (house.results / "index.html").read_text(encoding="utf-8") == site.OPENER


def test_a_build_that_fails_leaves_the_old_pages(built, monkeypatch):
    house, folder = built

    def fail(*_):
        raise RuntimeError("no")

    monkeypatch.setattr(site, "_sphinx", fail)
    with pytest.raises(RuntimeError):
        site.build(house.results, api=False)
    assert (folder / "index.html").is_file()
    assert not (house.results / ".site").exists()


def test_a_build_killed_between_its_two_renames_is_mended(tmp_path):
    work, there = tmp_path / ".site", tmp_path / "site"
    (work / "old").mkdir(parents=True)
    (work / "old" / "index.html").write_text("old")
    site._restore(work, there)
    assert (there / "index.html").read_text() == "old"


def test_warnings_about_the_sources_are_errors_when_asked(built, monkeypatch):
    house, folder = built
    was = (folder / "index.html").stat().st_ino
    monkeypatch.setattr(pages, "figures_page", lambda shown: "# Figures\n\n[nowhere](nowhere.md)\n")
    with pytest.raises(site.SourceWarnings, match=r"figures\.md.*nowhere"):
        site.build(house.results, api=False, strict=True)
    assert (folder / "index.html").stat().st_ino == was


def test_without_results_the_way_out_is_told(house):
    with pytest.raises(site.NoResults, match=r"no results; run \./run_all\.sh"):
        site.build(house.results)
    smoke = house.results / "dplearn" / "sec1_toy" / "smoke"
    smoke.mkdir(parents=True)
    (smoke / "result.json").write_text("{}")
    with pytest.raises(site.NoResults, match="only results of the smoke preset"):
        site.build(house.results)
    assert not (house.results / "site").exists()


def test_the_committed_opener_is_the_one_that_builds_write():
    assert (ROOT / "results" / "index.html").read_text(encoding="utf-8") == site.OPENER


def test_links_to_notebooks_without_a_page_become_words():
    book = gather.Book("ptr/sec1_a", Path(), {})
    shown = gather.Shown(Path(), {"ptr/sec1_a": book, "fdp/sec2_b": book}, [], [])
    text = "[b](../fdp/sec2_b.ipynb), [c](sec9_c.ipynb#top), [a](sec1_a.ipynb), [w](https://x.org/y.ipynb)"
    want = "[b](../fdp/sec2_b.ipynb), c (not run yet), [a](sec1_a.ipynb), [w](https://x.org/y.ipynb)"
    assert notebooks._links(text, book, shown) == want


def test_numbers_are_shown_as_printed():
    assert gather.number(2.0, digits=1) == "2.0"
    assert gather.number(1e-5, digits=5) == "1e-05"
    assert gather.number(13000.0, digits=-3) == "13000"
    assert gather.number(float("inf"), digits=2) == "infinite"
    assert gather.number([1, 0.5]) == "1, 0.5"
    assert gather.number(None) == ""


def test_inline_marks_are_set_and_all_else_is_escaped():
    assert gather.inline("a < b, `x_<y`, $5 and $6") == "a &lt; b, <code>x_&lt;y</code>, $5 and $6"
    assert (
        gather.inline(r"$a<b$ **so**")
        == r'<span class="math notranslate nohighlight">\(a&lt;b\)</span> <strong>so</strong>'
    )


def test_a_label_behind_a_sentence_becomes_a_field_too():
    out = lay_out(["The place. Args: data — utilities, shape (k,)."])
    assert [line.strip() for line in out if line] == ["The place.", ":Args:", "* ``data`` — utilities, shape (k,)."]


def test_docstrings_of_the_house_become_fields():
    text = """Head |x|, *args and claims_.

Paper: ptr, Section 4.
Printed: first form.   Used: the other (a|b).
Args: orders — each > 1;  scale — ratio
    of two;
    *rest — more.
Raises:
    Error — when
        it must.

.. math:: |x|_ *a*

    indented code = 1"""
    out = lay_out(text.split("\n"))
    assert out[0] == r"Head \|x\|, \*args and claims\_."
    assert [line for line in out if line.startswith(":")] == [
        ":Paper: ptr, Section 4.",
        ":Printed: first form.",
        r":Used: the other (a\|b).",
        ":Args:",
        ":Raises:",
    ]
    assert [line.strip() for line in out if line.startswith("    *")] == [
        "* ``orders`` — each > 1",
        "* ``scale`` — ratio of two",
        "* ``*rest`` — more.",
        "* ``Error`` — when it must.",
    ]
    assert ".. math:: |x|_ *a*" in out  # formulas are left alone


def test_every_public_module_has_a_page():
    known = api.modules()
    assert {"privrob.checks", "privrob.accounting.gdp", "privrob.suite.session"} <= set(known)
    assert not any("site_parts" in n or "__" in n for n in known)
    text = api.every()["api/index.rst"]
    assert all(f"<{n}>" in text for n in known)


@pytest.mark.slow
def test_the_reference_is_built_without_a_warning(built, tmp_path):
    house, _ = built
    folder = site.build(house.results, out=tmp_path / "with reference", strict=True).parent
    assert outside(folder) == []
    assert dead_links(folder) == []
    text = (folder / "api" / "privrob.suite.claims.html").read_text(encoding="utf-8")
    assert 'href="../source/privrob.suite.claims.html#L-' in text


# ------------------------------------------------------------------------------------------------------ in a browser


def seen(page, tmp_path):
    """The page's document tree after its scripts ran, opened from disk in a browser of its own."""
    options = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    options += " --disable-component-update --disable-sync --virtual-time-budget=20000 --dump-dom"
    command = [CHROMIUM, *options.split(), f"--user-data-dir={tmp_path / 'profile'}", page]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here")
def test_a_browser_sets_the_math_and_follows_filter_addresses(built, tmp_path):
    page = (built[1] / "claims.html").as_uri()
    tree = seen(f"{page}#doc=prime&verdict=open", tmp_path)
    assert "<mjx-container" in tree
    assert "1 of 5 items" in tree
    hidden = dict(re.findall(r'<tr id="([^"]+)"[^>]*?(hidden="")?>', tree))
    assert hidden["prime/theorem_3"] == ""
    assert all(hidden[i] for i in hidden if i != "prime/theorem_3")
    tree = seen(f"{page}#q=nosuchword", tmp_path)
    assert "0 of 5 items. No item is all of this; Show all brings them back." in tree
    assert "All 5 items" in seen(f"{page}#%E0%A4%A", tmp_path)  # an address cut in two


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here")
def test_a_browser_goes_on_from_the_opener_and_searches_from_disk(built, tmp_path):
    house, folder = built
    assert "items in all" in seen((house.results / "index.html").as_uri(), tmp_path)
    found = seen((folder / "search.html").as_uri() + "?q=draws", tmp_path)
    assert "sec1_toy.html" in re.search(r'<ul[^>]*class="search".*?</ul>', found, re.S)[0]
    alone = tmp_path / "index.html"
    alone.write_text(site.OPENER, encoding="utf-8")
    assert "./run_all.sh site" in seen(alone.as_uri(), tmp_path)
