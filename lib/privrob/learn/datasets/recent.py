"""Data sets that this process has just read: the cells of a sweep share them.

Source: ours.
"""

from __future__ import annotations

from privrob.learn import datasets

_MOST = 2  # a private set and a public one
_kept = {}  # what was asked for: (data set, tensors, their versions), the last one last


def recent(name, arguments, *, change=None, **how):
    """The data set of that name and its tensors, read once by cells that ask for the same one after another.

    The tensors are shared: nobody may change them. Where somebody does, the set is read again.

    Args: arguments — of :func:`privrob.learn.datasets.load`;  change — None, or (a function, its further arguments):
        what is made of the tensors;  how — of :meth:`privrob.learn.datasets.types.Dataset.tensors`.
    Returns: (:class:`~privrob.learn.datasets.types.Dataset`, :class:`~privrob.learn.datasets.types.Tensors`).
    """
    try:
        content = datasets.fingerprint(name, **arguments)
    except datasets.DataUnavailable:  # not here yet: loading may fetch it
        return _read(name, arguments, change, how)
    key = repr((name, content, sorted(arguments.items()), change, sorted(how.items())))
    found = _kept.pop(key, None)
    if found is None or found[-1] != _versions(found[1]):
        while len(_kept) >= _MOST:
            _kept.pop(next(iter(_kept)))
        data, tensors = _read(name, arguments, change, how)
        found = data, tensors, _versions(tensors)
    _kept[key] = found
    return found[:2]


def _read(name, arguments, change, how):
    data = datasets.load(name, **arguments)
    tensors = data.tensors(**how)
    return data, tensors if change is None else change[0](tensors, *change[1:])


def _versions(tensors):
    return [tensor._version for tensor in tensors]
