"""Claims and verdicts: what a document says, what we got, and the one rule that judges it.

``data/claims.yaml`` holds an entry for every numbered or factual item, written from the document before its notebook.
A notebook hands in what it got; the verdict is decided here:

* statements (theorems, lemmas, definitions with content, facts): ``holds``; ``corrected`` when the printed form is
  wrong and what we use instead holds; ``fails`` when no repair was found;
* printed numbers: ``matches`` when |got − paper| ≤ half the last printed digit + 2 standard errors, else ``differs``;
* ``trend`` when something named in the claim's ``scale`` was changed by a preset or a stand-in: only the direction was
  tried, and ``agrees`` says whether it is the document's;
* ``not tried``, with a reason from a closed list.
"""

from __future__ import annotations

import functools
import math
import numbers
from dataclasses import asdict, dataclass, field
from pathlib import Path

import yaml

from privrob.suite.files import read_text
from privrob.suite.sources import repository

STATEMENTS = (
    "definition",
    "theorem",
    "lemma",
    "corollary",
    "proposition",
    "remark",
    "algorithm",
    "statement",
    "figure",
)
KINDS = (*STATEMENTS, "number")
VERDICTS = ("holds", "corrected", "fails", "matches", "differs", "trend", "not tried")
REASONS = ("needs data", "needs hardware", "not in the text", "left out by a parameter")
DOCUMENTS = {
    "ptr": "Rényi differential privacy of Propose-Test-Release, and PTR-SGD",
    "fdp": "f-DP guarantees of discrete-valued mechanisms",
    "dplearn": "CS5562 lecture: differentially private learning",
    "stobatch": "StoBatch: scalable differential privacy with certified robustness",
    "prime": "PRIME: robust and private mean estimation",
}


class ClaimError(ValueError):
    """An entry of claims.yaml, or a result handed in for it, that cannot be judged."""


def _is_number(value):
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


@dataclass(frozen=True)
class Claim:
    """One item of a document. ``scale`` names the parameters (and ``dataset``) that its value was made with."""

    id: str
    kind: str
    where: str
    text: str
    notebook: str
    expected: str
    paper: float | str | None = None
    printed_digits: int | None = None
    scale: dict = field(default_factory=dict)
    expected_trend: bool | None = None  # None: either direction is no surprise

    def __post_init__(self):
        def fail(why):
            raise ClaimError(f"claims.yaml, {self.id}: {why}")

        if self.kind not in KINDS:
            fail(f"kind must be one of {', '.join(KINDS)}, got {self.kind!r}")
        if self.document not in DOCUMENTS or "/" not in self.id:
            fail(f"id must be '<document>/<item>' with a document of {', '.join(DOCUMENTS)}")
        allowed = ("matches", "differs") if self.kind == "number" else ("holds", "corrected", "fails")
        if self.expected not in (*allowed, "not tried"):
            fail(f"expected must be one of {', '.join(allowed)} or 'not tried', got {self.expected!r}")
        if self.kind == "number" and not (_is_number(self.paper) and isinstance(self.printed_digits, int)):
            fail("a number needs 'paper' (the printed value) and 'printed_digits' (digits after the point)")

    @property
    def document(self):
        """Key of the document that makes the claim."""
        return self.id.partition("/")[0]

    def as_dict(self):
        """The entry as plain data."""
        return asdict(self)


def load(path=None):
    """All claims, {id: Claim}, in file order. Refuses unknown fields, repeated ids and values that cannot be judged."""
    path = Path(path or repository() / "data" / "claims.yaml")
    try:
        stat = path.stat()
        return dict(_load(path, stat.st_mtime_ns, stat.st_size))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ClaimError(f"claims.yaml cannot be read: {' '.join(str(error).split())}") from error


@functools.lru_cache(maxsize=4)
def _load(path, mtime_ns, size):  # the stat values are only part of the cache's key
    entries = yaml.load(read_text(path), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    if not isinstance(entries, list):
        raise ClaimError(f"claims.yaml must hold a list of entries, got {str(entries)[:80]!r}; is it whole?")
    claims = {}
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("id"), str):
            raise ClaimError(f"claims.yaml: each entry needs an id that is text, got {str(entry)[:80]!r}")
        unknown = set(entry) - set(Claim.__dataclass_fields__)
        if unknown:
            raise ClaimError(f"claims.yaml, {entry.get('id')}: unknown field(s) {', '.join(sorted(unknown))}")
        try:
            claim = Claim(**entry)
        except TypeError as error:
            raise ClaimError(f"claims.yaml, {entry.get('id')}: {error}") from error
        if claim.id in claims:
            raise ClaimError(f"claims.yaml: {claim.id} stands twice")
        claims[claim.id] = claim
    return claims


def of_notebook(claims, notebook):
    """The claims that a notebook has to hand in."""
    return {i: c for i, c in claims.items() if c.notebook == notebook}


def touched(claim, parameters, data):
    """Names in the claim's scale whose value in this run is another, {name: (document's, ours)}.

    ``dataset`` is compared with the data really used: a stand-in or a changed copy counts as another data set.
    """
    changed = {}
    for name, value in claim.scale.items():
        if name == "dataset":
            used = [d["name"] if d["variant"] == "original" else f"{d['name']} ({d['variant']})" for d in data]
            if value not in used:
                changed[name] = (value, ", ".join(used) or "none")
        elif name not in parameters:
            raise ClaimError(
                f"claims.yaml, {claim.id}: its scale names {name!r}, which is no parameter of the notebook"
            )
        elif parameters[name] != value:
            changed[name] = (value, parameters[name])
    return changed


def judge(claim, evidence, *, parameters, data):
    """The verdict on one claim: the claim's own entry, what we got, and why, as plain data.

    Args: evidence — ``{"holds", "repaired", "got", "note"}`` of a statement, ``{"got", "spread", "agrees", "note"}`` of
    a number, or ``{"not_tried": reason}``;  parameters — of the run;  data — provenance records of the data used.
    """
    if (reason := evidence.get("not_tried")) is not None:
        if reason not in REASONS:
            raise ClaimError(f"{claim.id}: not tried because of {reason!r}; the reasons are {', '.join(REASONS)}")
        return _result(claim, evidence, "not tried", reason=reason)
    changed = touched(claim, parameters, data)
    if "dataset" in changed and any(d["kind"] == "synthetic" or d["name"].startswith("folder:") for d in data):
        return _result(claim, evidence, "not tried", reason="needs data", changed=changed)
    if claim.kind == "number":
        got, spread = evidence["got"], evidence.get("spread") or 0.0
        if not _is_number(got) or math.isnan(got) or not _is_number(spread) or not 0 <= spread < math.inf:
            raise ClaimError(f"{claim.id}: needs a number and a finite standard error >= 0, got {got!r} and {spread!r}")
        if changed:
            if evidence.get("agrees") is None:
                raise ClaimError(
                    f"{claim.id}: {', '.join(changed)} changed, so hand in agrees=True or False (the direction)"
                )
            return _result(claim, evidence, "trend", agrees=bool(evidence["agrees"]), changed=changed)
        allowed = 0.5 * 10.0**-claim.printed_digits + 2 * spread
        # the printed value is decimal, its double is not: a ulp of it is no difference
        matches = abs(got - claim.paper) <= allowed + 4 * math.ulp(abs(claim.paper))
        return _result(claim, evidence, "matches" if matches else "differs")
    holds = bool(evidence["holds"])
    if changed:
        return _result(claim, evidence, "trend", agrees=holds, changed=changed)
    verdict = "holds" if holds else ("corrected" if evidence.get("repaired") else "fails")
    return _result(claim, evidence, verdict)


def _result(claim, evidence, verdict, *, agrees=None, reason=None, changed=None):
    if verdict == "trend":
        surprise = claim.expected_trend is not None and agrees != claim.expected_trend
    elif verdict == "not tried":
        surprise = reason == "not in the text" and claim.expected != "not tried"
    else:
        surprise = verdict != claim.expected
    return {
        "id": claim.id,
        "kind": claim.kind,
        "where": claim.where,
        "text": claim.text,
        "paper": claim.paper,
        "got": evidence.get("got"),
        "spread": evidence.get("spread"),
        "note": evidence.get("note", ""),
        "verdict": verdict,
        "agrees": agrees,
        "reason": reason,
        "changed": {n: {"paper": p, "here": h} for n, (p, h) in (changed or {}).items()},
        "expected": claim.expected,
        "surprise": bool(surprise),
    }


def tally(judged):
    """One line: what was judged in full and how it came out, what was tried as a trend only, what was not tried.

    A trend says which way a changed setting points, and counts neither for nor against: it stands apart.
    """
    count = dict.fromkeys(VERDICTS, 0)
    for item in judged:
        count[item["verdict"]] += 1
    good = count["holds"] + count["matches"]
    full = len(judged) - count["trend"] - count["not tried"]
    words = {"corrected": ("corrected", "corrected"), "differs": ("differs", "differ"), "fails": ("fails", "fail")}
    rest = [f"{count[v]} {w[count[v] != 1]}" for v, w in words.items() if count[v]]
    if not judged:
        return "beyond the document: no items"
    if full == len(judged):
        return ", ".join([f"{good}/{full} reproduced", *rest])
    shown = ([f"{good} reproduced"] if good else []) + rest
    parts = [f"{full} of {len(judged)} judged in full: {', '.join(shown)}"] if full else []
    if count["trend"]:
        parts.append(f"{count['trend']} tried only as a trend: {directions(judged)}")
    if count["not tried"]:
        parts.append(f"{count['not tried']} not tried")
    return "; ".join(parts)


def directions(judged):
    """How many trends point the document's way, and how many do not."""
    trends = [bool(i["agrees"]) for i in judged if i["verdict"] == "trend"]
    agree, against = sum(trends), len(trends) - sum(trends)
    if len(trends) == 1:
        return "it agrees" if agree else "it does not"
    if not (agree and against):
        return "all agree" if agree else "none agrees"
    return f"{agree} agree{'s' * (agree == 1)}, {against} do{'es' * (against == 1)} not"
