"""Small things about the pages that a reader would trip over; nothing is built here."""

import re

import pytest

pytest.importorskip("sphinx_book_theme", reason="the pages need privrob[site]")

from privrob.suite.site_parts import api, config, formulas, gather, items, listing
from privrob.suite.site_parts.docstrings import escape
from test_site import CHROMIUM, seen

CSS = (config.HERE / "site.css").read_text(encoding="utf-8")
BUTTONS = """\
<!doctype html><html data-theme="dark"><script src="site.js" defer></script>
<button class="primary-toggle"></button><button class="secondary-toggle"></button>
<button class="primary-toggle"></button><button class="secondary-toggle"></button>
<nav class="bd-links"><li><a href="#">Library</a><details><summary></summary></details></li></nav>
<p id="said"></p>
<script>
const said = (word) => (document.getElementById("said").textContent += word + " ");
for (const kind of ["primary", "secondary"])
  document.querySelector(`.${kind}-toggle`).addEventListener("click", () => said(kind));
window.addEventListener("load", () => {
  for (const kind of ["primary", "secondary"]) document.querySelectorAll(`.${kind}-toggle`)[1].click();
  for (const moment of ["beforeprint", "afterprint"]) {
    window.dispatchEvent(new Event(moment));
    said(document.documentElement.dataset.theme);
  }
});
</script></html>
"""


def rule(selector):
    """What the first rule of the style with exactly this selector says."""
    return re.search(rf"(?:^|[}}\n]) *{re.escape(selector)} \{{([^}}]*)\}}", CSS)[1]


def luminance(text):
    """A colour's relative luminance, by WCAG."""
    parts = [int(text[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    parts = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), parts))


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("(e^{1/b}, 0)-DP", "(e<sup>1/b</sup>, 0)-DP"),
        ("B_t ∪ B_t^adv", "B<sub>t</sub> ∪ B<sub>t</sub><sup>adv</sup>"),
        ("2p_att)K, c_ζ√α, (hW_k)y_k", "2p<sub>att</sub>)K, c<sub>ζ</sub>√α, (hW<sub>k</sub>)y<sub>k</sub>"),
        ("d^(3/2)/(αn) and B^3.04 in R^d.", "d<sup>3/2</sup>/(αn) and B<sup>3.04</sup> in R<sup>d</sup>."),
        ("c(e^ε − e^(−a(1−p)))", "c(e<sup>ε</sup> − e<sup>−a(1−p)</sup>)"),
        ("μ^(s), x_(i), Σ_(j≥ℓ)", "μ<sup>(s)</sup>, x<sub>(i)</sub>, Σ<sub>j≥ℓ</sub>"),
        ("e^ε_r)δ_r, e^(Σε_s)", "e<sup>ε<sub>r</sub></sup>)δ<sub>r</sub>, e<sup>Σε<sub>s</sub></sup>"),
        ("θ_jθ_a, x̄_ij, ‖θ‖_∞", "θ<sub>j</sub>θ<sub>a</sub>, x̄<sub>ij</sub>, ‖θ‖<sub>∞</sub>"),
        ("x_{i<j}", "x<sub>i&lt;j</sub>"),
        *((name, name) for name in ("test_ptr", "num_steps", "l1_sensitivity", "as_printed", "tiny_imagenet")),
        *((name, name) for name in ("sec4_1_algorithm", "algorithm_1_line_1", "a_b_c", "_a", "a_", "x ^ y", "2 _ 3")),
        *((name, name) for name in ("f_x.csv", "data/x_t.py", "https://x.org/a_b^c", "resnet_18", "x_y.z")),
    ],
)
def test_formulas_in_plain_text_are_set_and_names_are_not(text, html):
    assert formulas.text_to_html(text) == html


def test_formulas_in_code_and_math_are_left_alone():
    assert gather.inline("`x_t`, $x_t^2$") == (
        r'<code>x_t</code>, <span class="math notranslate nohighlight">\(x_t^2\)</span>'
    )
    assert gather.inline("**p_max** < 1") == "<strong>p<sub>max</sub></strong> &lt; 1"


def test_parameters_that_were_changed_are_code():
    item = {"verdict": "trend", "agrees": True, "changed": {"q_norm": {"paper": 2, "here": 1}}, "surprise": False}
    assert "<code>q_norm</code>: 2 → 1" in gather.inline(gather.reading(item))


def test_sphinx_does_not_fill_the_field_for_words():
    form = items._form(gather.Shown(None, {}, [], [], {}))
    assert 'name="words"' in form
    assert 'name="q"' not in form
    script = (config.HERE / "claims.js").read_text(encoding="utf-8")
    assert "form.elements.words.value" in script
    assert "elements.q" not in script
    assert '"q="' in script  # addresses stay as they were
    assert script.count("decodeURIComponent(") == 1  # the one that is tried


def test_a_literal_may_stand_beside_anything():
    assert escape("to ±``x``.") == "to ±\\ ``x``."
    assert escape("``x``s, :class:`y`n") == "``x``\\ s, :class:`y`\\ n"
    assert escape("(``x``), “``y``”: ``z``") == "(``x``), “``y``”: ``z``"


def test_a_listing_marks_one_line_and_has_its_landmarks():
    text = listing.pages(["privrob.kinds"])["source/privrob.kinds.html"]
    assert re.search(r"<main><h1>privrob\.kinds, source</h1>.*</main>", text, re.S)
    assert re.search(r'<a id="L-2" name="L-2"></a><span class="linenos">', text)
    assert "a:target + .linenos" in listing.FRAME
    assert "~" not in listing.FRAME
    assert float(re.search(r"\.linenos \{[^}]*opacity: ([.\d]+)", listing.FRAME)[1]) >= 0.65


def test_no_two_pages_have_the_name_of_the_whole():
    assert api._module("privrob").splitlines()[0] == "privrob, the package"
    assert api._module("privrob.checks").splitlines()[0] == "privrob.checks"


def test_links_can_be_read_on_soft_ground():
    soft = re.search(r"--soft: (#\w{6})", CSS)[1]
    link = "#176de8"  # the theme's
    assert (luminance(soft) + 0.05) / (luminance(link) + 0.05) >= 4.5


def test_the_style_says_how_pages_are_printed_and_what_may_be_wide():
    paper = CSS[CSS.index("@media print") :]
    assert "pre-wrap" in paper
    assert re.search(r"\.items-filter[^{]*\{ display: none", paper)
    assert re.search(r"\.pst-scrollable-table-container[^{]*\{ overflow: visible", paper)
    wide = re.search(r"\.bd-article-container:has\(([^)]*)\)", CSS)[1].split(", ")
    assert {".items", ".cell", ".book", ".pst-scrollable-table-container", ".highlight-text"} <= set(wide)
    assert "white-space: normal" in rule(".items th")
    assert "overflow-wrap: normal" in rule(".items th")
    assert "minmax(0, 1fr)" in CSS[CSS.index("@media (max-width: 600px) {\n  .bd-article dl.py") :].splitlines()[1]
    assert not re.search(r"::after \{ content: \"No item", CSS)


def test_wide_overviews_have_no_second_sidebar(tmp_path):
    set_ = config.settings(static=tmp_path, extra=tmp_path, documents={"ptr": ""}, api=False)
    bars = set_["html_theme_options"]["secondary_sidebar_items"]
    assert [bars[page] for page in ("benchmarks", "plan", "ptr/index")] == [[], [], []]


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here")
def test_every_button_opens_its_sidebar_and_paper_is_white(tmp_path):
    (tmp_path / "a.html").write_text(BUTTONS, encoding="utf-8")
    (tmp_path / "site.js").write_bytes((config.HERE / "site.js").read_bytes())
    tree = seen((tmp_path / "a.html").as_uri(), tmp_path)
    assert '<p id="said">primary secondary light dark </p>' in tree
    assert 'aria-label="Pages below Library"' in tree
