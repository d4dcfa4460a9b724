"""The data that a run reads, seen to before any notebook starts: folders that must be there, sets that are fetched."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from privrob.suite import guard

FOLDER = "folder:"
SHOWN = 12  # folders named in a message


def _texts(value):
    """All texts in a value, however deep in lists and dicts."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _texts(one)


def check_folders(plans):
    """Refuse a parameter whose value is ``folder:NAME`` where PRIVROB_DATA holds neither that folder nor NAME.zip."""
    asked = {}
    for plan in plans:
        for name, value in {**plan.source.defaults, **plan.changes}.items():
            for text in _texts(value):
                if text.startswith(FOLDER):
                    asked.setdefault(text, (plan.name, name))
    if not asked:
        return
    from privrob.learn import datasets
    from privrob.learn.datasets.folders import folder_path
    from privrob.learn.datasets.request import check_request

    for text, (notebook, name) in asked.items():
        try:
            path, shown = folder_path(check_request(text, None))
        except (datasets.DataUnavailable, ValueError) as error:
            raise guard.ParameterError(
                f"{notebook}: {name} must name images that are there, got {text!r}; {error}. {_there()}"
            ) from None
        if not (path.is_dir() or (path.is_file() and path.suffix == ".zip")):
            raise guard.ParameterError(
                f"{notebook}: {name} must name a folder or a .zip, got {text!r}, and {shown} is neither. {_there()}"
            )


def images_of(values):
    """What the folders of images in a notebook's values hold, {folder: hash}; one that cannot be read has none."""
    found = {text: None for text in _texts(values) if text.startswith(FOLDER)}
    if found:
        from privrob.learn import datasets

        for text in found:
            with contextlib.suppress(datasets.DataUnavailable, datasets.DataCorrupt, ValueError, OSError):
                found[text] = datasets.fingerprint(text)
    return found


def better(data):
    """The first data set of a result in whose place another stood, and that is here itself now, in words; or None."""
    waiting = [d for d in data if d["stand_in"] or (d["kind"] == "real" and d["variant"] != "original")]
    if waiting:
        from privrob.learn import datasets

        for one in waiting:
            here = datasets.available(one["name"]) if one["name"] in datasets.names() else None
            if here and here.endswith("(original)"):
                return f"{datasets.title(one['name'])} itself is here now, made from {one['label']}"
    return None


def _there():
    """What could have been meant: the folders that are there, and the sets that need none."""
    from privrob.learn import datasets

    root, words = os.environ.get("PRIVROB_DATA", ""), []
    if os.path.isdir(root):
        found = sorted(p.name for p in Path(root).iterdir() if p.is_dir() and not p.name.startswith("."))
        more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        words.append(f"PRIVROB_DATA is {root}, its folders: {', '.join(found[:SHOWN]) or 'none'}{more}.")
    return " ".join([*words, f"Or name a known set: {', '.join(datasets.names())}, synthetic"])


def _sets(parameters):
    """Names of data sets in a notebook's parameters; a set that ``more_settings`` replaces gives its replacement."""
    more = parameters.get("more_settings")
    more = more if isinstance(more, dict) else {}
    for parameter, value in parameters.items():
        if parameter.endswith(("dataset", "datasets")):
            for name in _texts(value):
                other = more.get(name)
                yield other.get("dataset", name) if isinstance(other, dict) else name


def fetch(plans):
    """Bring the data sets that the plans read, before any notebook's clock starts.

    An unknown name ends the run here; what cannot be had is told in full, and its notebooks fail while others go on.
    """
    values = {v for p in plans for v in _sets({**p.source.defaults, **p.changes})}
    names = sorted(v for v in values if v and not v.startswith(("synthetic", FOLDER)))
    if not names:
        return
    from privrob.learn import datasets
    from privrob.learn.datasets.manifest import data_folder, read_manifest

    try:
        data_folder(), read_manifest()
    except datasets.DataUnavailable as error:  # no set could be read
        raise guard.ParameterError(str(error)) from None
    for name in names:
        try:
            datasets.fetch(name)
        except datasets.DataUnavailable as error:
            print(f"note: {error}\n{enough(name)}")
            if stand_in := datasets.available(name, allow_stand_in=True):
                print(f"Notebooks that allow a stand-in, and say so, go on with one ({stand_in}).")
        except datasets.DataCorrupt as error:
            print(f"note: {error}")


def enough(name):
    """Which files make a data set complete, and in which folder: each line is enough by itself."""
    from privrob.learn.datasets.manifest import is_self_verifying, read_manifest

    spec, lines = read_manifest()[name], []
    for form in spec["forms"]:
        said = "" if form["variant"] == "original" else f" ({form['variant']})"
        lines += [f"  - the file {a['name']}, as it is{said}" for a in form.get("archives", [])]
        if not is_self_verifying(form):  # only its archive can be checked
            continue
        folders = [f for f in form["loose"] if f and "*" not in f]
        if form["reader"] == "tree":
            lines.append(f"  - the folder {folders[0]}/{said}")
            continue
        files = list(form["files"].values() if "files" in form else form["content"])
        every = f"all {len(files)} files" if len(files) > 1 else "the file"
        packed = ", each as it is or as .gz" if form["reader"] == "idx" else ""
        within = f"; there or in its folder {folders[0]}/" if folders else ""
        lines.append(f"  - {every} {', '.join(files)}{packed}{said}{within}")
    root = os.environ.get("PRIVROB_DATA", "")
    where = f"which is {root} now" if root else "which is not set now: export PRIVROB_DATA=<a folder of yours>"
    return "\n".join(
        [f"Without a network, one of these is enough for {name}, in the folder PRIVROB_DATA ({where}):", *lines]
    )
