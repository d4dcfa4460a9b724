"""Did the notebook really run? Nothing is taken from papermill's word: its written file says "completed" after a kill.

Evidence is: every cell is the source's, every code cell ran once in order, no output is an error, the result carries
this run's token and the values asked for, and the declared figures are there.
"""

from __future__ import annotations

import copy
import os
import re
import sys
from pathlib import Path

import nbformat

from privrob.suite import record
from privrob.suite.files import digest, dump_json, file_digest, load_json, read_text, write_text
from privrob.suite.sources import package_root, repository

INJECTED, NOTEBOOK = "injected-parameters", "notebook.ipynb"
# said on stderr when the first figure of a new place takes longer than 5 s, on a busy machine
SLOW = "Matplotlib is building the font cache; this may take a moment.\n"


class NotRun(RuntimeError):
    """The evidence that the notebook ran is incomplete."""


def check(folder, source, *, changes, token, inputs):
    """Check all evidence in a job's folder; returns the executed notebook and its result, or raises :class:`NotRun`."""
    path = folder / "executed.ipynb"
    if not path.is_file():
        raise NotRun("no executed notebook was written")
    node = nbformat.reads(read_text(path), as_version=4)
    cells = [c for c in node.cells if INJECTED not in c.metadata.get("tags", [])]
    if [(c.cell_type, c.source) for c in cells] != [(c.cell_type, c.source) for c in source.node.cells]:
        raise NotRun("the executed cells are not those of the notebook")
    code = [c for c in node.cells if c.cell_type == "code"]
    for cell in code:
        for output in cell.outputs:
            if output.output_type == "error":
                raise NotRun(f"cell {cell.execution_count}: {output.ename}: {output.evalue}")
    counts = [c.execution_count for c in code]
    if counts != list(range(1, len(code) + 1)):
        raise NotRun(f"not every code cell ran once, in order (counts {counts})")
    result_folder = folder / "results"
    try:
        result = record.read(result_folder, check_files=True)
    except record.BadResult as error:
        raise NotRun(str(error)) from error
    if result is None:
        raise NotRun("the notebook wrote no result.json; its last cell must call run.save()")
    if result["run"]["token"] != token or result["inputs"] != inputs or result["notebook"] != source.name:
        raise NotRun("result.json is of another run")
    if digest(result["parameters"]) != digest({**source.defaults, **changes}):
        raise NotRun(f"result.json holds other parameters than were asked for: {result['parameters']}")
    declared = set(source.about.get("figures", []))
    drawn = {f["name"] for f in result["figures"]}
    if declared != drawn:
        raise NotRun(f"declared figures {sorted(declared)}, drawn {sorted(drawn)}; correct the notebook's metadata")
    return node, result


def tidy(node, note=""):
    """The executed notebook as it is kept: the same bytes for the same outputs (no times, no names of this machine).

    Args: note — Markdown that is put below the title.
    """
    node = copy.deepcopy(node)
    if note:
        node.cells.insert(1, nbformat.v4.new_markdown_cell(note))
    node.metadata = nbformat.from_dict({k: v for k, v in node.metadata.items() if k in ("privrob", "language_info")})
    node.metadata["kernelspec"] = {"display_name": "Python 3", "language": "python", "name": "python3"}
    node.metadata.get("language_info", {}).pop("version", None)
    for index, cell in enumerate(node.cells):
        tags = cell.metadata.get("tags", [])
        cell.metadata = nbformat.from_dict({"tags": tags} if tags else {})
        cell["id"] = f"cell-{index}"
        if cell.cell_type == "code":
            for output in cell.outputs:
                output.pop("transient", None)
                if output.output_type == "stream":
                    output["text"] = nameless(output["text"].replace(SLOW, ""))
            cell.outputs = [o for o in cell.outputs if o.output_type != "stream" or o["text"]]
    return node


def note(plan):
    """What a reader must know of a run that is not the one the notebook's sentences are about; else an empty text."""
    if not plan.unlike:
        return ""
    changed = [f"`{name} = {value!r}`" for name, value in plan.unlike.items()]
    changed = [text if len(text) <= 120 else f"{text[:117]}…`" for text in changed]
    return (
        f"> **Another run than the text describes.** Preset `{plan.preset}`; changed: {', '.join(changed)}. Numbers, "
        "tables and figures below are of this run; sentences are about the reference results."
    )


def nameless(text):
    """A text without the paths of this machine and the process's number."""
    text = re.sub(r"\S*ipykernel_\d+/\d+\.py", "notebook cell", text)
    text = re.sub(r"/\S*/\.cells/", ".cells/", text)  # a row that tells where its cell kept something
    for root, shown in ((package_root(), "lib"), (repository(), "."), (Path(sys.prefix), "<environment>")):
        text = text.replace(f"{root}{os.sep}", f"{shown}/")
    return text


def write(node, folder):
    """Write the executed notebook beside its result, which takes its hash: a later edit by hand is noticed."""
    import json

    path = folder / NOTEBOOK
    write_text(path, json.dumps(node, sort_keys=True, ensure_ascii=False, indent=1) + "\n")
    result = load_json(read_text(folder / "result.json"))
    result["files"][NOTEBOOK] = file_digest(path)
    result["sha256"] = record.checksum(result)
    write_text(folder / "result.json", dump_json(result, indent=1) + "\n")
