"""What a sweep costs beside calling the function: names, streams, files written whole, and reading them again."""

import itertools
import json
import os

from no_op import cell

from privrob.kinds import Streams
from privrob.suite import sweep

CELLS = 100
WORK = [("no_op:cell", {"place": place}) for place in range(CELLS)]


def rows(store):
    return sweep.run(sweep.make_cells(WORK, seed=0), store, num_workers=1).rows()


def test_sweep_of_cells_that_do_nothing(compare, tmp_path):
    folders = (tmp_path / str(number) for number in itertools.count())

    def called():
        return [cell(settings, streams=Streams(0, "cell", str(settings))) for _, settings in WORK]

    def written():
        folder = next(folders)
        folder.mkdir()
        for place, found in enumerate(called()):
            with open(folder / f"{place}.json", "w") as file:
                json.dump(found, file)
                file.flush()
                os.fsync(file.fileno())

    peers = {"plain calls": called, "plain calls, each written to a file and synced": written}
    ours = lambda: rows(sweep.Store(next(folders)))  # noqa: E731
    found = compare(f"sweep of {CELLS} cells that do nothing (a cell: a hundredth)", ours, peers=peers)
    assert [row["place"] for row in found["ours"]] == list(range(CELLS))


def test_second_run_of_a_stored_sweep(compare, tmp_path):
    store = sweep.Store(tmp_path / "store")
    first = rows(store)

    def called():
        return [cell(settings, streams=Streams(0, "cell", str(settings))) for _, settings in WORK]

    found = compare(f"the same sweep again: {CELLS} cells read", lambda: rows(store), peers={"plain calls": called})
    assert found["ours"] == first
