"""Cell functions for tests of the sweep."""

import os
import time
import weakref


def draw(settings, *, streams):
    """One random number a cell."""
    time.sleep(settings.get("sleep", 0))
    value = settings["scale"] * streams.numpy("draw").normal()
    return [{"value": value, "big": float("inf")}]


def fail_on_two(settings, *, streams):
    """Raises for index 2."""
    if settings["index"] == 2:
        raise ValueError("index 2 is not to my taste")
    return draw(settings, streams=streams)


def die_on_two(settings, *, streams):
    """Ends its process for index 2, always."""
    if settings["index"] == 2:
        os._exit(9)
    return draw(settings, streams=streams)


def die_once(settings, *, streams):
    """Ends its process the first time each cell is tried."""
    marker = os.path.join(settings["folder"], str(settings["index"]))
    if settings["index"] == 1 and not os.path.exists(marker):
        open(marker, "w").close()
        os._exit(9)
    return draw({**settings, "scale": 1.0}, streams=streams)


def square(settings, *, streams):
    """Alone: the draw squared."""
    return [{"square": streams.numpy("draw").normal() ** 2, "batched": False}]


def _batch(many, *, streams):
    return [[{**square(s, streams=t)[0], "batched": True}] for s, t in zip(many, streams, strict=True)]


square.batch = _batch
square.batch_key = lambda settings: settings["shape"]


def with_data(settings, *, streams):
    """A cell that reads data."""
    return [{"value": 1.0}]


with_data.data = lambda settings: {"toy": settings["sha"]}


def leave(settings, *, streams):
    """Asks to end the process, politely."""
    raise SystemExit(0)


def who(settings, *, streams):
    """The process that computed it, and how many threads BLAS would use there."""
    from threadpoolctl import threadpool_info

    return [{"pid": os.getpid(), "threads": max([p["num_threads"] for p in threadpool_info()], default=1)}]


def not_rows(settings, *, streams):
    """Returns what no row is."""
    return {"value": 1}


def _wrong_batch(many, *, streams):
    return [[{"square": 0.0}]]


def odd(settings, *, streams):
    """Its batch forgets cells; alone it is right."""
    return [{"square": streams.numpy("draw").normal() ** 2}]


odd.batch = _wrong_batch
odd.batch_key = lambda settings: "same"


def matrix(settings, *, streams):
    """Sums whose last digits depend on their order: a product of matrices."""
    a = streams.numpy("a").normal(size=(300, 300))
    return [{"trace": float((a @ a.T @ a).trace()), "sum": float(a.sum())}]


def in_two_halves(settings, *, streams, scratch):
    """Fails half way the first time, and says by whom the first half was done."""
    marker = os.path.join(scratch, "half")
    if not os.path.exists(marker):
        os.makedirs(scratch, exist_ok=True)
        open(marker, "w").close()
        raise RuntimeError("killed half way")
    return [{"halves": "first by an earlier run"}]


in_two_halves.resumes = True


LEFT = []  # weak references to what :func:`cycle` leaves behind


def cycle(settings, *, streams):
    """Leaves two objects that point at each other, as a training and its release do."""

    class Part:
        pass

    one, other = Part(), Part()
    one.other, other.one = other, one
    LEFT.append(weakref.ref(one))
    return draw(settings, streams=streams)


def hog(settings, *, streams):
    """Wants more memory than any machine has, for index 2."""
    import numpy as np

    return [{"first": float(np.ones(2**46 if settings["index"] == 2 else 1)[0])}]


def plan_cell(settings, *, streams):
    """Says how many steps to train for, as a search for a plan does."""
    return [{"steps": settings["epsilon"] * 10}]


def train_cell(settings, *, streams):
    """A training that counting must not begin."""
    raise AssertionError("this was to be counted, not computed")


def draw_in_place(settings, *, streams):
    """A draw, and the process that drew it."""
    return [{**draw(settings, streams=streams)[0], "pid": os.getpid()}]


def slow_steps(settings, *, streams):
    """A training whose steps take 20 ms each, after half a second of getting ready."""
    time.sleep(0.5 + 0.02 * settings["training"]["num_steps"])
    return [{"value": 1.0}]


def starts_a_process(settings, *, streams):
    """Has a process of its own, as a cell of several trainers has."""
    import multiprocessing

    process = multiprocessing.get_context("spawn").Process(target=int)
    process.start()
    process.join()
    return [{"status": process.exitcode}]
