"""Cells that two notebooks want at the same time: one of them computes each, the other takes over its rows.

A cell is claimed by a locked file beside its checkpoints. The system drops the lock when its holder dies, however that
happens, and a file that is left means nothing.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from concurrent.futures import FIRST_COMPLETED, Future, wait

_PATIENCE = 0.2  # seconds between looks at cells that are all being computed elsewhere
AHEAD = 2  # tasks a worker has at most, the one it works on among them


class Busy(Exception):
    """Another process computes this cell now."""


@contextlib.contextmanager
def claim(path):
    """Hold the cell whose claim is the file ``path``; where the file system has no locks, everybody may.

    Raises: Busy.
    """
    import fcntl

    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy(path.name) from None
        except OSError:
            pass
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


class Here:
    """An executor that runs each task in this process, at once."""

    def submit(self, fn, /, *args, **kwargs):
        """``fn(*args, **kwargs)``, done; a Future as of any executor."""
        future = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def in_turn(work, executor, *, room, task, taken):
    """Yield (group, future) of groups of cells as they are done, and (group, None) of cells taken over.

    Args: work — groups of cells, in order;  executor — with ``submit``;  room — tasks that it has at once;
        task — ``task(group)``: what to submit, and the files that claim its cells;
        taken — ``taken(group)``: those of its cells that are stored by now. Asked once the group is claimed.
    """
    queue, running, busy = deque(work), {}, 0
    with contextlib.ExitStack() as held:
        while queue or running:
            while queue and len(running) < room and busy < len(queue):
                group = queue.popleft()
                call, claims = task(group)
                try:
                    with contextlib.ExitStack() as own:
                        for path in claims:
                            own.enter_context(claim(path))
                        own = own.pop_all()
                except Busy:
                    queue.append(group)
                    busy += 1
                    continue
                busy = 0
                if there := taken(group):
                    own.close()
                    yield there, None
                    left = [cell for cell in group if cell not in there]
                    queue.extendleft([left] * bool(left))
                    continue
                held.push(own)
                running[executor.submit(*call)] = group, own
            if not running:  # all that is left is being computed elsewhere, or nothing is left
                time.sleep(_PATIENCE if busy else 0.0)
            done, _ = wait(running, timeout=_PATIENCE if busy else None, return_when=FIRST_COMPLETED)
            busy = 0
            for future in done:
                group, own = running.pop(future)
                yield group, future
                own.close()
