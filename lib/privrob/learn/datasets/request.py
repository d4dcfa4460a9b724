"""What was asked for: the arguments of ``datasets.load``, checked; and the smaller set that they may ask for.

Source: ours.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from privrob import checks
from privrob.kinds import Streams
from privrob.learn.datasets import synthetic
from privrob.learn.datasets.decode import Arrays, identity_of
from privrob.learn.datasets.manifest import read_manifest

_SYNTHETIC_ONLY = ("shape", "noise")
_FOLDER_ONLY = ("image_size", "channels")


@dataclass(frozen=True)
class Request:
    """The arguments of :func:`privrob.learn.datasets.load`, checked.

    ``name``, ``split``, ``num_records``, ``num_test``, ``num_classes``, ``seed``, ``variant``, ``shape``, ``noise``,
    ``image_size`` and ``channels`` are described there.
    """

    name: str
    split: str | None = None
    num_records: int | None = None
    num_test: int | None = None
    num_classes: int | None = None
    seed: int = 0
    variant: str | None = None
    shape: tuple | None = None
    noise: float | None = None
    image_size: tuple | None = None
    channels: int | None = None

    @property
    def is_synthetic(self):
        """Whether a made-up set is asked for, ``synthetic`` or ``synthetic:<name>``."""
        return self.name.partition(":")[0] == "synthetic"

    @property
    def is_folder(self):
        """Whether someone's own images are asked for, ``folder:<path>``."""
        return self.name.startswith("folder:")


def check_request(name, manifest, **given):
    """The :class:`Request` of these arguments; what does not go together is refused.

    Args: name — of the set;  manifest — a path, None: the usual one;  given — the other arguments of ``load``.
    """
    if not isinstance(name, str) or not name:
        checks.choice("name", name, [*read_manifest(manifest), "synthetic", "folder:<path>"])
    out = Request(name, **given)
    checks.seed("seed", out.seed)
    if out.split is not None:
        checks.choice("split", out.split, ("train", "test"), hint="None loads both")
    if out.num_records is not None:
        checks.integer("num_records", out.num_records, low=1)
    if out.num_test is not None:
        checks.integer("num_test", out.num_test, low=0)
    if out.num_classes is not None:
        checks.integer("num_classes", out.num_classes, low=2)
    for field, allowed, prefix in (
        (_SYNTHETIC_ONLY, out.is_synthetic, "synthetic"),
        (_FOLDER_ONLY, out.is_folder, "folder:"),
    ):
        for one in field:
            if getattr(out, one) is not None and not allowed:
                got = f"{one}={getattr(out, one)!r}"
                raise ValueError(f"{one} must be left out for {name!r}, got {got}; it is for {prefix} sets only")
    if out.image_size is not None:
        height, width = (checks.integer("image_size", n, low=1) for n in out.image_size)
        out = replace(out, image_size=(height, width))
    if out.channels is not None:
        checks.choice("channels", out.channels, (1, 3))
    if out.is_synthetic:
        return _synthetic_request(out, manifest)
    if out.is_folder:
        if out.variant is not None:
            raise ValueError(f"variant must be left out for {name!r}, got variant={out.variant!r}")
        return out
    table = read_manifest(manifest)
    checks.choice("name", name, [*table, "synthetic", "folder:<path>"])
    spec = table[name]
    if out.variant is not None:
        checks.choice("variant", out.variant, [form["variant"] for form in spec["forms"]])
    if out.num_classes is not None:
        checks.integer("num_classes", out.num_classes, low=2, high=_most_classes(spec))
        if out.num_classes == len(spec["classes"]):
            out = replace(out, num_classes=None)
    return out


def _most_classes(spec):
    return max(form.get("max_classes", len(spec["classes"])) for form in spec["forms"])


def _synthetic_request(out, manifest):
    """All of a synthetic set's arguments spelled out; ``synthetic:mnist`` takes shape and classes from that set."""
    like = out.name.partition(":")[2]
    shape, classes = synthetic.DEFAULT_SHAPE, synthetic.DEFAULT_CLASSES
    if like:
        table = read_manifest(manifest)
        spec = table[checks.choice("name", like, list(table))]
        shape, classes = tuple(spec["shape"]), len(spec["classes"])
    if out.variant is not None:
        raise ValueError(f"variant must be left out for {out.name!r}, got variant={out.variant!r}")
    shape = tuple(checks.integer("shape", n, low=1) for n in (out.shape or shape))
    if len(shape) != 3:
        raise ValueError(f"shape must be (channels, height, width), got shape={shape!r}")
    return replace(
        out,
        shape=shape,
        num_classes=out.num_classes or classes,
        num_records=synthetic.DEFAULT_TRAIN if out.num_records is None else out.num_records,
        num_test=synthetic.DEFAULT_TEST if out.num_test is None else out.num_test,
        noise=checks.nonnegative("noise", synthetic.DEFAULT_NOISE if out.noise is None else out.noise, finite=True),
    )


def synthetic_arguments(request):
    """The arguments of :func:`privrob.learn.datasets.synthetic.synthetic_arrays` of a ``request``, by name."""
    return {
        "shape": request.shape,
        "num_classes": request.num_classes,
        "num_train": request.num_records,
        "num_test": request.num_test,
        "noise": request.noise,
        "seed": request.seed,
    }


# ------------------------------------------------------------------------------------------------------- reductions


def spread_order(labels, rng):
    """An order whose every beginning has the classes in (nearly) their proportions: smaller sets nest in larger ones.

    Args: labels — int64 (n,);  rng — numpy Generator.
    Returns: indices, a permutation of range(n).
    """
    shuffled = rng.permutation(len(labels))
    rank = np.empty(len(labels))
    for label in np.unique(labels):
        mine = shuffled[labels[shuffled] == label]
        rank[mine] = (np.arange(len(mine)) + 0.5) / len(mine)
    return shuffled[np.argsort(rank[shuffled], kind="stable")]


def reduce_arrays(arrays, request):
    """The first classes, then so many records of each part, in their old order.

    Args: arrays — :class:`privrob.learn.datasets.decode.Arrays`;  request — :class:`Request`.
    """
    out = dict(arrays._asdict())
    if request.num_classes is not None and request.num_classes < len(arrays.classes):
        out["classes"] = arrays.classes[: request.num_classes]
        for part in ("train", "test"):
            keep = out[f"{part}_labels"] < request.num_classes
            out[f"{part}_images"], out[f"{part}_labels"] = out[f"{part}_images"][keep], out[f"{part}_labels"][keep]
    for part, argument, count in (
        ("train", "num_records", request.num_records),
        ("test", "num_test", request.num_test),
    ):
        have = len(out[f"{part}_labels"])
        if count is None:
            continue
        checks.integer(argument, count, low=0, high=have, hint=f"the {part} part has no more")
        if count < have:
            order = spread_order(out[f"{part}_labels"], Streams(request.seed, "reduce").numpy(part))
            keep = np.sort(order[:count])
            out[f"{part}_images"], out[f"{part}_labels"] = out[f"{part}_images"][keep], out[f"{part}_labels"][keep]
    return Arrays(**out)


def only_split(arrays, split):
    """One part, the other left empty.

    Args: arrays — :class:`privrob.learn.datasets.decode.Arrays`;  split — ``train``, ``test`` or None: both.
    """
    if split is None:
        return arrays
    other = "test" if split == "train" else "train"
    return arrays._replace(
        **{f"{other}_{kind}": getattr(arrays, f"{other}_{kind}")[:0] for kind in ("images", "labels")}
    )


def fingerprint_of(identity, request):
    """The content's identity, and whatever was left out of it.

    Args: identity — a sha256;  request — :class:`Request`.
    """
    extra = {}
    if not request.is_synthetic:
        reduced = {n: getattr(request, n) for n in ("num_records", "num_test", "num_classes", "image_size", "channels")}
        extra = {n: str(v) for n, v in reduced.items() if v is not None}
        if request.num_records is not None or request.num_test is not None:
            extra["seed"] = str(request.seed)
    if request.split is not None:
        extra["split"] = request.split
    return identity_of({"content": identity, **extra}) if extra else identity
