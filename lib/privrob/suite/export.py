"""``./run_all.sh export``: the table behind every figure, and every document's verdicts, as LaTeX or CSV files.

The LaTeX needs ``booktabs`` and ``longtable``, and no more: Greek letters and signs are written as commands.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

from privrob.suite import claims, findings, index, tables
from privrob.suite.files import check_writable, csv_to_rows, read_text, rows_to_csv, write_text
from privrob.suite.sources import repository

SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
SPECIAL |= {sign: f"\\{sign}" for sign in "&%$#_{}"}
GREEK = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho varsigma"  # from U+03B1
)
GREEK = [*GREEK.split(), "sigma", "tau", "upsilon", "phi", "chi", "psi", "omega"]
MATH = {chr(0x3B1 + n): f"\\{name}" for n, name in enumerate(GREEK)}
MATH |= {"Γ": r"\Gamma", "Δ": r"\Delta", "Θ": r"\Theta", "Λ": r"\Lambda", "Σ": r"\Sigma", "Φ": r"\Phi", "Ψ": r"\Psi"}
MATH |= {"Ω": r"\Omega", "Π": r"\Pi", "ο": "o", "ε": r"\varepsilon", "φ": r"\varphi", "ϕ": r"\phi", "ℓ": r"\ell"}
MATH |= {"≤": r"\leq", "≥": r"\geq", "≠": r"\neq", "≈": r"\approx", "×": r"\times", "·": r"\cdot", "√": r"\surd"}
MATH |= {"−": "-", "±": r"\pm", "∞": r"\infty", "∈": r"\in", "∉": r"\notin", "→": r"\to", "⇒": r"\Rightarrow"}
MATH |= {"′": "'", "‖": r"\|", "∑": r"\sum", "∏": r"\prod", "∫": r"\int", "∇": r"\nabla", "∂": r"\partial"}
MATH |= {"⊂": r"\subset", "⊆": r"\subseteq", "∪": r"\cup", "∩": r"\cap", "∖": r"\setminus", "⪯": r"\preceq"}
MATH |= {"⪰": r"\succeq", "⟨": r"\langle", "⟩": r"\rangle", "⌈": r"\lceil", "⌉": r"\rceil", "⌊": r"\lfloor"}
MATH |= {"⌋": r"\rfloor", "≪": r"\ll", "≫": r"\gg", "∝": r"\propto", "∀": r"\forall", "∃": r"\exists", "≡": r"\equiv"}
SIGNS = {
    "½": r"$\frac{1}{2}$",
    "–": "--",
    "—": "---",
    "…": r"\dots{}",
    "“": "``",
    "”": "''",
    "’": "'",
    "\u00a0": "~",
    "\u202f": "~",
    "°": r"$^\circ$",
}
RAISED = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿᵀ", "0123456789+-nT", strict=True))
LOWERED = dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋", "0123456789+-", strict=True))
ACCENTS = {"\u0302": r"\hat{}", "\u0303": r"\tilde{}", "\u0304": r"\bar{}", "\u0305": r"\bar{}"}


def tex(text):
    """Text as LaTeX: what LaTeX would read as a command is escaped, signs outside ASCII become commands."""
    out = []
    for run in re.findall(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿᵀ]+|[₀₁₂₃₄₅₆₇₈₉₊₋]+|.", str(text).replace("\n", " ")):
        if run[0] in RAISED:
            out.append(f"$^{{{''.join(RAISED[c] for c in run)}}}$")
        elif run[0] in LOWERED:
            out.append(f"$_{{{''.join(LOWERED[c] for c in run)}}}$")
        elif run in MATH:
            out.append(f"${MATH[run]}$")
        else:
            out.append(SPECIAL.get(run) or SIGNS.get(run) or (f"${ACCENTS[run]}$" if run in ACCENTS else run))
    return "".join(out)


def cell(value):
    """One value of a table as LaTeX: six digits, words for what is no number."""
    if isinstance(value, float):
        if math.isnan(value):
            return ""
        return tables.show(value) if math.isfinite(value) else rf"${'-' if value < 0 else ''}\infty$"
    return "" if value is None else tex(value)


def latex(rows, *, caption, label):
    """A table (list of dicts) as a ``longtable``."""
    import pandas

    names = list(dict.fromkeys(name for row in rows for name in row))
    frame = pandas.DataFrame([[cell(row.get(n)) for n in names] for row in rows], columns=[tex(n) for n in names])
    return frame.to_latex(index=False, longtable=True, escape=False, caption=tex(caption), label=label)


def every(results, done):
    """(path without ending, caption, rows) of every table: those behind figures, and each document's verdicts."""
    for name, (folder, result) in done.items():
        for drawn in result["figures"]:
            path = folder / f"{drawn['name']}.csv"
            if path.is_file():
                yield f"{name}/{drawn['name']}", drawn["caption"], csv_to_rows(read_text(path))
    digits = {i: c.printed_digits for i, c in claims.load().items()}
    judged = index.judged(results, done)
    for key, title in claims.DOCUMENTS.items():
        rows = [_row(item, digits[item["id"]]) for item in judged if item["id"].startswith(f"{key}/")]
        if rows:
            yield f"{key}/verdicts", f"{title}: every item with its verdict", rows
    if found := findings.load():
        rows = [{"document": f.document, "kind": f.kind, "finding": f.title} for f in found]
        yield "findings", findings.TITLE, rows


def _row(item, digits):
    return {
        "item": tables.place(item),
        "the document says": item["text"],
        "printed": tables.value(item["paper"], digits=digits),
        "we got": tables.got(item, digits),
        "verdict": tables.verdict(item),
        "preset": item["preset"],
        "notebook": item["notebook"],
    }


def _refuse_inside(folder, results, *, name):
    """Refuse a folder below the results, among which tables would look like what a run left."""
    for home in (Path(results).resolve(), (repository() / "results").resolve()):
        if Path(folder).resolve().is_relative_to(home):
            raise ValueError(f"{name} must lie outside the results, got {folder}, in {home}; name another folder")


def write(results, *, latex_folder=None, csv_folder=None):
    """Write all tables below the folders; returns how many there are.

    Raises: ValueError — a folder that lies in the results, or cannot be written.
    """
    results, count = Path(results), 0
    for name, folder in (("latex", latex_folder), ("csv", csv_folder)):
        if folder:
            _refuse_inside(folder, results, name=f"--{name}")
            check_writable(folder, name=f"--{name}", way_out="name a folder that you may write to")
    done = index.counted(results)
    for name, caption, rows in every(results, done) if done else ():
        count += 1
        if latex_folder:
            text = latex(rows, caption=caption, label=f"tab:{name.replace('/', ':')}")
            write_text(Path(latex_folder) / f"{name}.tex", text)
        if csv_folder:
            write_text(Path(csv_folder) / f"{name}.csv", rows_to_csv(rows))
    return count
