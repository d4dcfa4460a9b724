"""A training's state in a file: whole or not at all, with a checksum, and only for the training that it belongs to.

Source: ours.
"""

from __future__ import annotations

import hashlib
import io

import torch

from privrob import atomic


class BadCheckpoint(ValueError):
    """A checkpoint that can't be read, or is another training's."""


def write(file, identity, state):
    """Save a state: tensors, numbers, text, lists and dicts of them.

    Args: file — a ``Path``;  identity — a dict, which :func:`read` must be given again.
    """
    buffer = io.BytesIO()
    torch.save({"identity": identity, **state}, buffer)
    body = buffer.getvalue()
    atomic.write_bytes(file, hashlib.sha256(body).digest() + body)


def read(file, identity):
    """The state that :func:`write` saved.

    Raises: BadCheckpoint — damaged, or of another identity; the message names what differs.
    """
    try:
        content = file.read_bytes()
        if hashlib.sha256(content[32:]).digest() != content[:32]:
            raise ValueError("its checksum is another")
        state = torch.load(io.BytesIO(content[32:]), map_location="cpu", weights_only=True)
        found = state["identity"]
    except Exception as error:
        raise BadCheckpoint(f"checkpoint {file} can't be read ({error}); delete it to start again") from error
    other = [k for k in {*identity, *found} if found.get(k) != identity.get(k)]
    if other:
        raise BadCheckpoint(
            f"checkpoint {file} belongs to another training, it differs in {', '.join(sorted(other))}; "
            "delete it or name another file"
        )
    return state
