"""Cells that do nothing, to see what a sweep costs."""


def cell(settings, *, streams):
    """One row that says which cell it is."""
    return [{"place": settings["place"], "draw": int(streams.numpy("draw").integers(1000))}]
