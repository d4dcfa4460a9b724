"""How Sphinx is set up, and which files the pages bring with them. Everything is local: no script, style or font comes
from outside."""

from __future__ import annotations

import re
import shutil
from importlib import resources
from pathlib import Path

from privrob.suite.files import read_text
from privrob.suite.site_parts import listing

HERE = Path(__file__).parent
ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" rx="7" fill="#0072B2"/>'
    '<path d="M6 25C11 25 11 8 16 8s5 17 10 17" fill="none" stroke="#fff" stroke-width="2.6" stroke-linecap="round"/>'
    '<path d="M16 5v22" stroke="#E69F00" stroke-width="2.2" stroke-dasharray="3 3"/></svg>\n'
)
FOOTER = "Made by <code>./run_all.sh site</code> from the notebooks' results; nothing was executed to show them."
MATHJAX = "tex-svg-full.js"  # one file with all TeX extensions, and shapes instead of fonts


def settings(*, static, extra, documents, api):
    """Sphinx's configuration as a dict. ``documents`` are the keys whose overview pages need the full width."""
    extensions = ["myst_nb", "sphinx.ext.mathjax", *(["sphinx.ext.autodoc", "sphinx.ext.linkcode"] if api else [])]
    overviews = [f"{key}/index" for key in documents]
    wide = {page: [] for page in ("index", "claims", "figures", "benchmarks", "plan", *overviews)}
    base = {
        "project": "privrob",
        "extensions": [*extensions, "privrob.suite.site_parts.extension"],
        "root_doc": "index",
        "language": "en",
        "html_theme": "sphinx_book_theme",
        "html_title": "privrob",
        "html_favicon": str(static / "icon.svg"),
        "html_static_path": [str(static)],
        "html_extra_path": [str(extra)],
        "html_css_files": ["site.css"],
        "html_js_files": [("site.js", {"defer": "defer"})],
        "html_copy_source": False,
        "html_show_sourcelink": False,
        "html_show_sphinx": False,
        "html_show_copyright": False,
        "html_show_search_summary": False,  # it would fetch pages, which a browser refuses to do on a disk
        "html_permalinks_icon": "#",
        "html_context": {"default_mode": "auto"},
        "html_theme_options": {
            "logo": {"text": "privrob"},
            "home_page_in_toc": True,
            "show_navbar_depth": 1,
            "collapse_navbar": True,
            "show_toc_level": 2,
            "toc_title": "On this page",
            "search_bar_text": "Search",
            "use_download_button": False,
            "use_fullscreen_button": False,
            "footer_content_items": ["extra-footer.html"],
            "extra_footer": FOOTER,
            "secondary_sidebar_items": {"**": ["page-toc.html"], **wide},
        },
        "mathjax_path": f"mathjax/{MATHJAX}",
        "mathjax3_config": {"options": {"enableMenu": False}, "svg": {"fontCache": "global"}},
        "nb_execution_mode": "off",
        "nb_render_markdown_format": "myst",
        "nb_merge_streams": True,
        "nb_ipywidgets_js": {},
        "myst_enable_extensions": ["dollarmath", "amsmath", "deflist"],
        "myst_heading_anchors": 3,
        "default_role": "literal",
        "toc_object_entries_show_parents": "hide",
        "add_module_names": False,
    }
    if not api:
        return base
    return {
        **base,
        "autodoc_typehints": "none",
        "autodoc_use_type_comments": False,
        "autodoc_preserve_defaults": True,
        "linkcode_resolve": listing.link,
    }


def copy_static(static):
    """Put style, script, icon and MathJax where Sphinx picks them up."""
    for name in ("site.css", "site.js", "claims.js"):
        shutil.copyfile(HERE / name, static / name)
    (static / "icon.svg").write_text(ICON, encoding="utf-8")
    shipped = resources.files("mathjax") / "static" / "mathjax"
    (static / "mathjax").mkdir()
    for path in (shipped / "es5" / MATHJAX, shipped / "LICENSE"):
        with resources.as_file(path) as file:
            shutil.copyfile(file, static / "mathjax" / path.name)


def trim(site):
    """Take out what no page asks for: maps for debuggers, templates, and Sphinx's notes to itself."""
    for pattern in ("*.map", "*webpack-macros.html"):
        for path in sorted(site.rglob(pattern)):
            path.unlink()
    for path in sorted(site.rglob("*")):
        if path.suffix in (".js", ".css") and "_static" in path.parts:
            text = read_text(path)
            lean = re.sub(r"(//# sourceMappingURL=\S+|/\*# sourceMappingURL=[^*]+\*/)\s*$", "", text)
            if lean != text:
                path.write_text(lean, encoding="utf-8")
    (site / ".buildinfo").unlink(missing_ok=True)
