"""Cells are computed once, kept, noticed when they change, and the same on every engine."""

import importlib
import json
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

import toy_cells
from privrob.suite import engine as engines
from privrob.suite import sweep
from privrob.suite.sweep import Cell, NoStoredRows, Store, SweepError

WORK = [("toy_cells:draw", {"index": i, "scale": 2.0}) for i in range(4)]


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "cells")


def run(work, store, *, seed=0, common=None, num_workers=1, **kwargs):
    return sweep.run(sweep.make_cells(work, seed=seed, common=common), store, num_workers=num_workers, **kwargs)


def files_of(store):
    return sorted(store.folder.glob("*/*.json"))


# ------------------------------------------------------------------------------------------------------ kept and redone


def test_a_second_run_takes_every_cell_from_the_store(store):
    first, second = run(WORK, store), run(WORK, store)
    assert (first.computed, first.reused, second.computed, second.reused) == (4, 0, 0, 4)
    assert first.rows() == second.rows()
    assert len(files_of(store)) == 4


def test_a_stopped_sweep_goes_on_at_the_first_missing_cell(store):
    undisturbed = run(WORK, Store(store.folder / "other"))
    run(WORK[:2], store)
    rest = run(WORK, store)
    assert (rest.computed, rest.reused) == (2, 2)
    assert rest.rows() == undisturbed.rows()


def test_a_folder_in_the_place_of_a_stored_cell_makes_way_for_it(store):
    rows = run(WORK, store).rows()
    path = files_of(store)[0]
    path.unlink()
    path.mkdir()
    (path / "inner.json").write_text("{}")
    outcome = run(WORK, store)
    assert (outcome.computed, outcome.rows(), outcome.damaged) == (1, rows, [path.name])
    assert path.is_file()
    assert run(WORK, store).computed == 0


def test_a_changed_setting_seed_or_data_is_computed_anew_and_the_rest_is_kept(store):
    run(WORK, store)
    changed = [*WORK[:3], ("toy_cells:draw", {"index": 3, "scale": 2.5})]
    assert run(changed, store).computed == 1
    assert run(WORK, store, seed=1).computed == 4
    data = [("toy_cells:with_data", {"sha": "one"})]
    assert run(data, store).computed == 1
    assert run(data, store).computed == 0
    assert run([("toy_cells:with_data", {"sha": "two"})], store).computed == 1


def test_the_hash_of_the_data_alone_makes_another_cell(store, monkeypatch):
    work = [("toy_cells:with_data", {"sha": "x"})]
    run(work, store)
    monkeypatch.setattr(toy_cells.with_data, "data", lambda settings: {"toy": "other bytes"})
    assert run(work, store).computed == 1


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module of cells whose source a test may edit: ``module(factor)`` writes and loads it."""
    folder = tmp_path / "modules"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))

    def write(factor):
        code = f"def cell(settings, *, streams):\n    return [{{'value': {factor} * settings['index']}}]\n"
        (folder / "edited_cells.py").write_text(code + f"# {'x' * factor}\n")
        sys.modules.pop("edited_cells", None)
        importlib.invalidate_caches()
        return [("edited_cells:cell", {"index": i}) for i in (1, 2)]

    yield write
    sys.modules.pop("edited_cells", None)


def test_changed_code_is_computed_anew_and_rows_of_older_code_are_only_shown_as_such(store, module):
    assert [r["value"] for r in run(module(2), store, provenance={"commit": "abc"}).rows()] == [2, 4]
    new = sweep.make_cells(module(3), seed=0)
    redrawn = sweep.run(new, store, redraw=True)
    assert (redrawn.computed, redrawn.stale) == (0, 2)
    assert [r["value"] for r in redrawn.rows()] == [2, 4]
    assert {r["commit"] for r in redrawn.records} == {"abc"}
    again = sweep.run(new, store, num_workers=1)
    assert (again.computed, again.stale) == (2, 0)
    assert [r["value"] for r in again.rows()] == [3, 6]
    assert len(files_of(store)) == 4, "rows of older code are kept"


def test_a_worker_with_other_source_code_than_the_driver_is_refused(module):
    cells = sweep.make_cells(module(2), seed=0)
    module(3)
    (result,) = sweep.compute_group(cells[:1])
    assert "the source of edited_cells:cell on this worker is not the one that the sweep began with" in result["error"]


def test_redraw_computes_nothing_and_says_so_when_rows_are_missing(store):
    with pytest.raises(NoStoredRows, match="no stored rows for 4 of 4 cells; run once without --redraw"):
        run(WORK, store, redraw=True)
    run(WORK, store)
    assert run(WORK, store, redraw=True).computed == 0


def test_fresh_computes_every_cell_again(store):
    run(WORK, store)
    assert run(WORK, store, fresh=True).computed == 4


def test_cells_of_another_store_are_read_and_never_written(tmp_path):
    reference, study = Store(tmp_path / "reference"), Store(tmp_path / "study", [tmp_path / "reference"])
    run(WORK[:2], reference)
    before = {p: p.stat().st_mtime_ns for p in files_of(reference)}
    assert run(WORK, study).computed == 2
    assert {p: p.stat().st_mtime_ns for p in files_of(reference)} == before
    assert len(files_of(study)) == 2


def test_a_store_named_twice_names_a_damaged_cell_once(tmp_path):
    run(WORK[:1], Store(tmp_path))
    files_of(Store(tmp_path))[0].write_text("{")
    assert len(run(WORK[:1], Store(tmp_path, [tmp_path])).damaged) == 1


# ------------------------------------------------------------------------------------------------------------- refusals


def test_repeated_cells_are_refused():
    with pytest.raises(ValueError, match="each cell once, got 1 repeated; give repetitions a setting such as seed"):
        sweep.make_cells([WORK[0], WORK[1], WORK[0]], seed=0)


@pytest.mark.parametrize("path", ["toy_cells", "toy_cells:nothing", "no_such_module:f"])
def test_a_function_that_cannot_be_imported_is_refused(path):
    with pytest.raises(ValueError, match="a cell's function must be"):
        sweep.make_cells([(path, {})], seed=0)


def test_common_settings_that_a_cell_lacks_are_named():
    with pytest.raises(ValueError, match="common must name settings of every cell, toy_cells:draw has no method"):
        sweep.make_cells(WORK, seed=0, common=["index", "method"])


# --------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("num_workers", [1, 2])
def test_one_cells_error_keeps_the_others_and_a_rerun_tries_only_it(store, num_workers):
    work = [("toy_cells:fail_on_two", {"index": i, "scale": 1.0}) for i in range(4)]
    with pytest.raises(
        SweepError, match=r"1 of 4 cells failed, the first with ValueError: index 2 is not to my taste(?s:.*)'index': 2"
    ):
        run(work, store, num_workers=num_workers)
    assert len(files_of(store)) == 3
    with pytest.raises(SweepError, match="1 of 4"):
        run(work, store)


def test_a_cell_that_asks_to_exit_or_returns_no_rows_has_failed(store):
    with pytest.raises(SweepError, match=r"1 of 1 cell failed(?s:.*)SystemExit"):
        run([("toy_cells:leave", {"index": 0})], store)
    with pytest.raises(SweepError, match="toy_cells:not_rows must return a list of dicts, got dict"):
        run([("toy_cells:not_rows", {"index": 0})], store)


def test_a_worker_that_always_dies_takes_only_its_own_cell_with_it(store):
    work = [("toy_cells:die_on_two", {"index": i, "scale": 1.0}) for i in range(4)]
    with pytest.raises(SweepError, match=f"1 of 4 cells failed(?s:.*)WorkerDied.*died {engines.TRIES} times"):
        run(work, store, num_workers=2)
    assert len(files_of(store)) == 3


def test_a_worker_that_dies_once_is_replaced_and_nothing_is_lost(store, tmp_path):
    work = [("toy_cells:die_once", {"index": i, "folder": str(tmp_path)}) for i in range(4)]
    assert run(work, store, num_workers=2).computed == 4


# ------------------------------------------------------------------------------------------------------- random streams


def values(work, store, **kwargs):
    return [r["value"] for r in run(work, store, **kwargs).rows()]


def test_streams_depend_on_the_seed_and_on_every_setting(tmp_path):
    one = values(WORK, Store(tmp_path / "1"))
    two = values(WORK, Store(tmp_path / "2"), seed=1)
    assert len({*one, *two}) == 8


def test_streams_of_a_cell_do_not_depend_on_the_other_cells(tmp_path):
    alone = values(WORK[2:3], Store(tmp_path / "1"))
    assert values(list(reversed(WORK)), Store(tmp_path / "2"))[1:2] == alone


def test_common_settings_pair_cells_and_the_device_draws_nothing(tmp_path):
    work = [("toy_cells:draw", {"index": i, "scale": s}) for i in range(2) for s in (1.0, 3.0)]
    paired = values(work, Store(tmp_path / "1"), common=["index"])
    assert paired[1] == pytest.approx(3 * paired[0], rel=1e-15)  # the same draw times the scale, one rounding
    assert paired[0] != paired[2]
    unpaired = values(work, Store(tmp_path / "2"))
    assert unpaired[1] != pytest.approx(3 * unpaired[0])
    devices = [("toy_cells:draw", {"scale": 1.0, "device": d}) for d in ("cpu", "cuda")]
    assert len(set(values(devices, Store(tmp_path / "3")))) == 1


# -------------------------------------------------------------------------------------------------- batches and engines


def test_cells_of_one_shape_are_computed_together_with_the_rows_of_each_alone(tmp_path):
    work = [("toy_cells:square", {"index": i, "shape": i % 2 or None}) for i in range(6)]
    together = run(work, Store(tmp_path / "1")).rows()
    assert [r["batched"] for r in together] == [False, True] * 3
    alone = [run([w], Store(tmp_path / "2")).rows()[0]["square"] for w in work]
    assert [r["square"] for r in together] == alone


def test_a_batch_that_fails_is_computed_one_by_one(tmp_path, capsys):
    work = [("toy_cells:odd", {"index": i}) for i in range(3)]
    assert len(run(work, Store(tmp_path)).rows()) == 3
    assert "must return rows for 3 cells, got 1" in capsys.readouterr().err


def test_a_batch_holds_no_more_cells_than_allowed():
    cells = [Cell("toy_cells:square", {"index": i, "shape": 1}, 0, ("x",), {}, "0") for i in range(2 * sweep.BATCH + 1)]
    assert sorted(map(len, sweep.groups(cells))) == [1, sweep.BATCH, sweep.BATCH]


@pytest.mark.cluster
@pytest.mark.slow
def test_rows_are_the_same_bits_with_one_worker_two_workers_and_dask(tmp_path):
    work = [("toy_cells:matrix", {"index": i}) for i in range(4)]
    work += [("toy_cells:square", {"index": i, "shape": 1}) for i in range(3)]
    stored = []
    for name, options in {
        "one": {"num_workers": 1},
        "two": {"num_workers": 2},
        "dask": {"engine": "dask", "num_workers": 2},
    }.items():
        store = Store(tmp_path / name)
        run(work, store, **options)
        stored.append([{**json.loads(p.read_text()), "checksum": 0, "seconds": 0} for p in files_of(store)])
    assert stored[0] == stored[1] == stored[2]
    assert len(stored[0]) == 7


def test_a_cell_computes_with_one_thread_wherever_it_runs(store):
    (here,) = run([("toy_cells:who", {"index": 0})], store).rows()
    there = run([("toy_cells:who", {"index": i}) for i in (1, 2)], store, num_workers=2).rows()
    assert {r["threads"] for r in (here, *there)} == {1}


def test_thread_pools_are_looked_for_once_and_again_after_an_import(store, monkeypatch):
    import threadpoolctl

    looked, real = [], threadpoolctl.ThreadpoolController
    monkeypatch.setattr(threadpoolctl, "ThreadpoolController", lambda: looked.append(1) or real())
    sweep._thread_pools.cache_clear()
    run(WORK, store)
    assert len(looked) == 1
    monkeypatch.setitem(sys.modules, "brings_a_pool", sys)
    run(WORK, store, fresh=True)
    assert len(looked) == 2


def test_looking_for_stored_cells_lists_no_folder(store, monkeypatch):
    monkeypatch.setattr(sweep.Path, "glob", lambda *_: pytest.fail("a folder was listed"))
    assert run(WORK, store).computed == 4


def test_progress_is_told_after_each_cell(store):
    told = []
    run(WORK[:3], store, progress=lambda *at: told.append(at))
    assert [at[:3] for at in told] == [(0, 3, 0), (1, 3, 0), (2, 3, 0), (3, 3, 0)]
    assert [at[3] is None for at in told] == [True, False, False, False]


def test_time_left_counts_what_is_computed_not_what_was_stored(store):
    slow = [("toy_cells:draw", {"index": i, "scale": 2.0, "sleep": 0.2}) for i in range(6)]
    run(slow[:4], store)
    told = []
    run(slow, store, progress=lambda *at: told.append(at))
    assert [at[:3] for at in told] == [(4, 6, 4), (5, 6, 4), (6, 6, 4)]
    assert told[1][3] > 0.15  # a fifth of 0.2 s would come from counting the stored ones


# ----------------------------------------------------------------------------------------------------- checkpoints


def test_a_cell_that_resumes_finds_what_its_killed_run_left_and_leaves_nothing(store):
    work = [("toy_cells:in_two_halves", {"index": 0})]
    with pytest.raises(SweepError, match="killed half way"):
        run(work, store)
    assert run(work, store).rows() == [{"index": 0, "halves": "first by an earlier run"}]
    assert not list(store.folder.glob(".scratch/*"))


def test_a_fresh_sweep_forgets_checkpoints(store):
    work = [("toy_cells:in_two_halves", {"index": 0})]
    for _ in range(2):
        with pytest.raises(SweepError, match="killed half way"):
            run(work, store, fresh=True)


def test_workers_have_the_checkpoint_folders_too(store):
    work = [("toy_cells:in_two_halves", {"index": i}) for i in range(3)]
    with pytest.raises(SweepError, match="3 of 3 cells failed"):
        run(work, store, num_workers=2)
    assert run(work, store, num_workers=2).computed == 3


def test_an_empty_sweep_is_no_error(store):
    assert run([], store).rows() == []


def test_what_a_long_cell_leaves_behind_is_freed_before_the_next(store, monkeypatch):
    monkeypatch.setattr(sweep, "LONG", 0.0)
    run([("toy_cells:cycle", {"index": i, "scale": 1.0}) for i in range(3)], store)
    assert [ref() for ref in toy_cells.LEFT] == [None] * 3


def test_a_cell_may_start_processes_on_a_worker(tmp_path):
    cells = sweep.make_cells([("toy_cells:starts_a_process", {"index": i}) for i in range(2)], seed=0)
    assert [row["status"] for row in sweep.run(cells, Store(tmp_path), num_workers=2).rows()] == [0, 0]


# --------------------------------------------------------------------------------------------- two notebooks at a time


@pytest.mark.parametrize("num_workers", [1, 2])
def test_two_sweeps_at_once_share_their_cells_and_compute_each_once(store, num_workers):
    work = [("toy_cells:draw", {"index": i, "scale": 2.0, "sleep": 0.3}) for i in range(8)]
    alone = run(work, Store(store.folder / "alone"))
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(run, work, Store(store.folder / "shared"), num_workers=num_workers) for _ in range(2)]
        one, two = [future.result() for future in both]
    assert one.rows() == two.rows() == alone.rows()
    assert one.computed + two.computed == one.reused + two.reused == 8
    assert min(one.computed, two.computed) >= 2
    assert one.stored_seconds + two.stored_seconds > 8 * 0.3
    assert not list(store.folder.glob("shared/.scratch/*"))


def test_a_cell_that_fails_elsewhere_is_tried_here(store):
    work = [("toy_cells:fail_on_two", {"index": i, "scale": 1.0, "sleep": 0.2}) for i in range(4)]
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(run, work, Store(store.folder)) for _ in range(2)]
        assert all("index 2 is not to my taste" in str(future.exception()) for future in both)
    assert len(files_of(store)) == 3


def test_a_claim_that_a_killed_run_left_means_nothing(store):
    (cell,) = sweep.make_cells(WORK[:1], seed=0)
    left = store.scratch(cell).with_name(f"{store.scratch(cell).name}.claim")
    left.parent.mkdir(parents=True)
    left.touch()
    assert run(WORK[:1], store).computed == 1
    assert not left.exists()
