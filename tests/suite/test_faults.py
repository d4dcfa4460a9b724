"""What a sceptic would do to a run. Nothing is lost, nothing half-done counts, and a message says how to go on.

Here is what is done to a run: signals, full disks, odd and read-only places, another run beside it. What a run is given
(damaged files, wrong values, no network, no GPU, little memory) is in test_faults_given.py. Each fault once; with
``--all`` (``./run_all.sh test --all``) the strikes at many moments and every odd path alone. The closing line of the
session counts them by kind. Faults of single parts (atomic files, data sets, checkpoints, a cluster) stand beside them.
"""

import contextlib
import inspect
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import nbformat
import psutil
import pytest

import fault_kit as kit
from fault_kit import ONE, SIGNALS, SMOKE, assert_like_calm, assert_nothing_lost, helpful, refused
from privrob.suite import claims, evidence, execute, files, guard, preflight, run, session

GOES_ON = "stopped; what was done is kept, and the same command goes on from here"
DIED = "the kernel died (killed, or out of memory); lower the notebook's sizes, or give it more memory"


# -------------------------------------------------------------------------------------------------------------- signals

TOLD = {  # exit status and words of a struck run
    ("driver", "SIGINT"): (130, GOES_ON),
    ("driver", "SIGTERM"): (143, GOES_ON),
    ("driver", "SIGKILL"): (-9, "started"),
    ("notebook", "SIGINT"): (1, "interrupted from outside (SIGINT to the notebook's process)"),
    ("notebook", "SIGTERM"): (1, "the notebook's process was asked to end from outside (SIGTERM)"),
    ("notebook", "SIGKILL"): (1, "ended by signal 9 and left no word (killed, or out of memory?)"),
    ("kernel", "SIGINT"): (1, "interrupted from outside (SIGINT to its kernel); the same command goes on from here"),
    ("kernel", "SIGTERM"): (1, DIED),
    ("kernel", "SIGKILL"): (1, DIED),
    **{("worker", s.name): (0, "1 of 1 notebook done.") for s in SIGNALS},  # its loss is made good without a word
}


@pytest.fixture(scope="module")
def struck(make_house):
    """A house of a long sweep that is struck again and again, each time going on from what is kept."""
    house = make_house("struck", names=(ONE,))
    house.presets(kit.LONG)
    return house


@pytest.mark.slow
@pytest.mark.fault("signals")
@pytest.mark.parametrize("number", SIGNALS, ids=lambda s: s.name)
@pytest.mark.parametrize("who", ["driver", "notebook", "kernel"])
def test_a_process_struck_in_mid_sweep_ends_all_in_seconds_and_loses_no_cell(struck, who, number):
    with kit.begun(struck) as driver:
        before = kit.cells(struck)
        (victim,) = [psutil.Process(driver.pid)] if who == "driver" else kit.named(struck, who)
        assert kit.strike(victim, number)
        code, out = kit.end(driver, 30)
    status, words = TOLD[who, number.name]
    assert code == status, out
    helpful(out, words)
    assert_nothing_lost(struck, before)
    kit.assert_not_done(struck)


@pytest.mark.slow
@pytest.mark.fault("signals")
def test_after_all_strikes_the_same_command_goes_on_to_the_results_of_an_undisturbed_run(struck, calm):
    if not kit.cells(struck):  # this test alone
        with kit.begun(struck) as driver:
            kit.strike(driver, signal.SIGKILL)
    before = kit.cells(struck)
    struck.presets(kit.SHORT)
    status, out = struck.run(*SMOKE)
    struck.presets(kit.LONG)
    assert status == 0, out
    assert_nothing_lost(struck, before)
    assert_like_calm(struck, calm)
    shutil.rmtree(struck.results / ONE)


@pytest.mark.slow
@pytest.mark.fault("signals")
@pytest.mark.parametrize("number", SIGNALS, ids=lambda s: s.name)
def test_a_struck_worker_is_replaced_and_its_cell_is_computed_again(make_house, calm, number):
    kit.needs_workers("worker")
    house = make_house(names=(ONE,))
    house.presets(kit.SHORT)
    with kit.begun(house, num_cells=2) as driver:
        before, victim = kit.cells(house), kit.named(house, "worker")[0]
        assert kit.strike(victim, number)
        code, out = kit.end(driver)
        assert not victim.is_running()
    assert code == 0, out
    helpful(out, TOLD["worker", number.name][1])
    assert_nothing_lost(house, before)
    assert_like_calm(house, calm)


@pytest.mark.slow
@pytest.mark.fault("signals")
def test_ctrl_c_in_a_terminal_ends_the_driver_in_order_though_the_whole_pipe_gets_it(make_house):
    """As typed: every process of the foreground group gets the signal, tee ignores it and ends when the driver does."""
    house = make_house(names=(ONE,))
    house.presets(kit.LONG)
    command = f"{sys.executable} -m privrob.suite --preset smoke 2>&1 | tee -i out.txt; exit ${{PIPESTATUS[0]}}"
    script = f"trap : INT; {command}"
    shell = subprocess.Popen(["bash", "-c", script], env=house.env(), cwd=house.root, start_new_session=True)
    house.wait_for(lambda: len(kit.cells(house)) > 3)
    before = kit.cells(house)
    os.killpg(shell.pid, signal.SIGINT)
    assert shell.wait(timeout=30) == 130
    helpful((house.root / "out.txt").read_text(encoding="utf-8"), GOES_ON)
    assert_nothing_lost(house, before)
    kit.assert_not_done(house)


@pytest.mark.fault("signals")
def test_a_replacement_that_was_cut_short_is_mended(make_house):
    """Between the two renames of putting results in place there is no folder; the former one is put back."""
    house = make_house(names=(ONE,))
    former = house.results / "dplearn" / "sec1_toy" / ".former.smoke"
    former.mkdir(parents=True)
    (former / "result.json").write_text("old")
    (house.results / ".staging" / "x").mkdir(parents=True)
    (house.results / ".cells" / "ab").mkdir(parents=True)
    (house.results / ".cells" / "ab" / ".cell.json.1234.part").write_text("half")
    run.mend(house.results)
    assert (house.results / ONE / "smoke" / "result.json").read_text() == "old"
    assert [p.name for p in house.results.rglob("*") if p.is_file()] == ["result.json"]
    former.mkdir()
    (house.results / ONE / "smoke" / "result.json").write_text("new")
    run.mend(house.results)
    assert (house.results / ONE / "smoke" / "result.json").read_text() == "new"
    assert not former.exists()


@pytest.mark.many
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.fault("signals")
@pytest.mark.parametrize("number", SIGNALS, ids=lambda s: s.name)
@pytest.mark.parametrize("who", kit.ACTORS)
def test_strikes_at_many_random_moments_lose_nothing_and_the_end_equals_an_undisturbed_run(
    make_house, calm, who, number
):
    """Start-up, sweep, figure, saving; the driver 20 times, its children 6 times each."""
    kit.needs_workers(who)
    house, moments, hits = make_house(names=(ONE,)), random.Random(f"{who} {number.name}"), 0
    house.presets(kit.SHORT)
    while hits < (20 if who == "driver" else 6):
        before, driver = kit.cells(house), house.start(*SMOKE)
        victim = psutil.Process(driver.pid) if who == "driver" else kit.appears(house, who, driver)
        time.sleep(moments.uniform(0.1, 5.0 if who == "driver" else 2.5))
        hit = victim is not None and kit.strike(victim, number)
        hits += hit
        code, out = kit.end(driver)
        # a signal before Python, or we, listen ends a process by that signal; one after the last word changes nothing
        assert code in {TOLD[who, number.name][0], -number, 0, 1 if who == "worker" else 0}, out
        assert_nothing_lost(house, before)
        if (house.results / ONE / "smoke").exists():  # back to the middle of the sweep
            assert_like_calm(house, calm)
            shutil.rmtree(house.results / ONE)
            for path in list(kit.cells(house))[::2]:
                path.unlink()
    status, out = house.run(*SMOKE)
    assert status == 0, out
    assert_like_calm(house, calm)


# ----------------------------------------------------------------------------------------------------------------- disk


@pytest.mark.slow
@pytest.mark.fault("disk")
def test_a_full_disk_is_said_and_the_rerun_with_space_is_whole(calm, tiny_disk):
    (tiny_disk / "ballast").write_bytes(b"x" * (2**20 - 40_000))
    status, out = calm.run(*SMOKE, "--out", tiny_disk)
    assert status == 1
    helpful(out.replace("[Errno 28] ", ""), "no space left")
    assert not list(tiny_disk.rglob("result.json"))
    subprocess.run(["mount", "-o", "remount,size=64m", str(tiny_disk)], check=True)
    status, out = calm.run(*SMOKE, "--out", tiny_disk)
    assert status == 0, out
    assert_like_calm(calm, calm, out=tiny_disk)


@pytest.mark.slow
@pytest.mark.fault("disk")
@pytest.mark.parametrize("size", [2_000, 20_000])  # the executed notebook, then a figure, do not fit
def test_a_limit_on_the_size_of_files_is_told_and_the_rerun_without_it_is_whole(calm, tmp_path, size):
    status, out = calm.run(*SMOKE, "--out", tmp_path, preexec_fn=kit.limited(FSIZE=size))
    assert status == 1
    helpful(out.replace("[Errno 27] ", ""), "no space left below the limit on the size of files (ulimit -f) to write")
    assert not list(tmp_path.rglob("result.json"))
    if size == 20_000:
        status, out = calm.run(*SMOKE, "--out", tmp_path)
        assert status == 0, out
        assert_like_calm(calm, calm, out=tmp_path)


@pytest.mark.fault("disk")
def test_a_place_without_any_space_is_refused_before_any_work(command, tiny_disk):
    with contextlib.suppress(OSError), open(tiny_disk / "ballast", "wb", buffering=0) as ballast:
        while ballast.write(b"x" * 4096):
            pass
    assert "--out must have space left" in refused(command, *SMOKE, "--out", tiny_disk)


@pytest.mark.fault("disk")
@pytest.mark.parametrize("arguments", [["--list"], ["status"], [*SMOKE]], ids=" ".join)
def test_output_into_a_full_disk_ends_in_words(house, arguments):
    with open("/dev/full", "w") as full:
        driver = house.start(*arguments, stdout=full, stderr=subprocess.PIPE)
        _, said = driver.communicate(timeout=60)
    assert driver.returncode == 1
    helpful(said, "stopped: no space left for what is printed or written; make room")
    house.assert_no_orphans()


@pytest.mark.fault("disk")
def test_a_pipe_that_closes_early_is_no_traceback(house):
    driver = house.start("--list", stderr=subprocess.PIPE, env=house.env(PYTHONUNBUFFERED="1"))
    driver.stdout.close()
    helpful(driver.stderr.read())
    assert driver.wait(timeout=30) == 141


# --------------------------------------------------------------------------------------------------------------- places


@pytest.mark.fault("places")
@pytest.mark.parametrize(
    ("out", "words"),
    [
        ("a file", "--out must be a folder, got a file of that name"),
        ("a file/below", "--out must be writable"),
        ("/proc/nowhere", "--out must be writable"),
        ("x" * 300, "--out must be writable"),
    ],
    ids=lambda text: text[:20],
)
def test_a_place_that_cannot_be_written_is_refused_before_any_work(command, out, words):
    (command.house.root / "a file").write_text("")
    assert words in refused(command, *SMOKE, "--out", out)


@pytest.mark.fault("places")
@pytest.mark.parametrize("arguments", [[*SMOKE], ["status"], ["clean", "--yes"], ["site"], ["bench"], ["export"]])
def test_an_empty_name_for_a_folder_is_refused(command, arguments):
    said = refused(command, *arguments, "--out", "")
    assert "--out: must name a folder or file, got '' (a shell variable that is not set?)" in said
    assert not command.house.results.exists()


@pytest.mark.fault("places")
def test_a_checkout_below_a_colon_is_refused_in_words(tmp_path):
    house = tmp_path / "a:b"
    house.mkdir()
    shutil.copy(kit.SCRIPT, house)
    for arguments in ([], ["--help"], ["--no-env", "--list"]):
        command = ["bash", str(house / "run_all.sh"), *arguments]
        done = subprocess.run(command, env=kit.bare(), capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (2, "")
        helpful(done.stderr, "a folder whose name has a colon", str(house))


@pytest.mark.fault("places")
def test_a_machine_without_a_loopback_interface_is_told_before_any_work(command, monkeypatch):
    def unreachable(*_, **__):
        raise OSError(99, "Cannot assign requested address")

    for name in ("create_connection", "create_server"):
        with monkeypatch.context() as patch:
            patch.setattr(preflight.socket, name, unreachable)
            said = refused(command, *SMOKE)
            assert "127.0.0.1 cannot be reached here (Cannot assign requested address); bring it up" in said
            with pytest.raises(ValueError, match=r"127\.0\.0\.1"):
                execute._papermill({}, command.house.root)
    preflight.check_loopback()


@pytest.mark.fault("places")
def test_a_clock_that_is_set_back_in_mid_run_changes_no_duration(house, monkeypatch):
    monkeypatch.setattr(claims, "of_notebook", lambda *_: {})
    source = guard.read(house.root / "notebooks" / f"{ONE}.ipynb", ONE)
    one = session.Run(session.Job(ONE, folder=house.root / "out"), source, dict(source.defaults))
    monkeypatch.setattr(time, "time", lambda: one.began - 65.78)
    assert 0 <= one._result([], "")["run"]["seconds"] < 60


@pytest.mark.fault("places")
def test_a_read_only_place_is_refused_before_any_work(command, tmp_path):
    (tmp_path / "sealed").mkdir()
    with kit.read_only(tmp_path / "sealed") as folder:
        said = refused(command, *SMOKE, "--out", folder)
    assert "--out must be writable" in said
    assert "give a folder you may write to with --out DIR" in said


@pytest.mark.slow
@pytest.mark.fault("places")
def test_a_read_only_checkout_and_home_are_left_alone_with_results_elsewhere(calm):
    """As an ordinary user, who cannot write there (or as root, who could, and does not); the same bytes come out."""
    base = Path(tempfile.mkdtemp(prefix="privrob read-only "))
    try:
        house = kit.checkout(base / "checkout")
        house.presets(kit.SHORT)
        home, out = base / "home", base / "out"
        for folder in (home, out):
            folder.mkdir()
        subprocess.run(["chmod", "-R", "a+rX,a-w", str(house.root), str(home)], check=True)
        base.chmod(0o755)
        out.chmod(0o777)
        who = {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.geteuid() == 0 else {}
        env = kit.bare(HOME=str(home))
        if not kit.can_run(env, who):  # this python lies in a place that only root may read
            who, env = {}, kit.bare(HOME=str(home), PYTHONDONTWRITEBYTECODE="1")
        before = kit.listing(house.root) | kit.listing(home)
        status, said = kit.run_all(house, *SMOKE, "--out", out, env=env, cwd="/", **who)
        assert status == 0, said
        assert kit.listing(house.root) | kit.listing(home) == before
        assert_like_calm(house, calm, out=out)
        if os.geteuid() or who:
            status, said = kit.run_all(house, *SMOKE, env=env, cwd="/", **who)
            assert status == 2
            assert "--out must be writable" in said
    finally:
        subprocess.run(["chmod", "-R", "u+w", str(base)], check=True)
        shutil.rmtree(base)


@pytest.mark.slow
@pytest.mark.fault("places")
def test_odd_paths_a_c_locale_a_far_time_zone_and_no_home_give_the_same_bytes(odd, calm):
    assert_like_calm(odd, calm, out=odd.out)
    assert not odd.results.exists()
    result = files.load_json(files.read_text(odd.out / ONE / "smoke" / "result.json"))
    began = datetime.strptime(result["run"]["started"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    assert abs((datetime.now(UTC) - began).total_seconds()) < 3600, "times are UTC wherever the run is"


@pytest.mark.many
@pytest.mark.slow
@pytest.mark.fault("places")
@pytest.mark.parametrize("name", kit.ODD)
def test_each_odd_path_alone_holds_a_checkout_and_its_results(calm, tmp_path, name):
    house = kit.checkout(tmp_path / name / name)
    house.presets(kit.SHORT)
    status, said = kit.run_all(house, *SMOKE, "--out", f"./{name}", env=kit.bare(LC_ALL="C"), cwd=house.root)
    assert status == 0, said
    assert_like_calm(house, calm, out=house.root / name)
    assert kit.run_all(house, "status", *SMOKE, f"--out={name}", env=kit.bare(), cwd=house.root)[0] == 0


@pytest.mark.many
@pytest.mark.slow
@pytest.mark.fault("places")
@pytest.mark.parametrize(
    "changes", [{"LC_ALL": "tr_TR.UTF-8"}, {"LANG": "nonsense"}, {"TZ": "Nowhere/Nothing"}, {"TZ": "America/St_Johns"}]
)
def test_each_odd_locale_and_time_zone_alone_gives_the_same_bytes(calm, tmp_path, changes):
    status, said = calm.run(*SMOKE, "--out", tmp_path, "--fresh", env=calm.env(**changes))
    assert status == 0, said
    assert_like_calm(calm, calm, out=tmp_path)


@pytest.mark.fault("places")
@pytest.mark.parametrize("said", ["", "a warning\n"])
def test_a_machine_so_busy_that_the_first_figure_is_late_leaves_the_same_bytes(said):
    def executed(text):
        cell = nbformat.v4.new_code_cell("plot()", execution_count=1)
        cell.outputs = [nbformat.v4.new_output("stream", name="stderr", text=text)] if text else []
        return evidence.tidy(nbformat.v4.new_notebook(cells=[cell]))

    assert executed(evidence.SLOW + said) == executed(said)
    from matplotlib import font_manager

    assert evidence.SLOW.strip() in inspect.getsource(font_manager), "matplotlib words it otherwise now"


# ------------------------------------------------------------------------------------------------------------- two runs


@pytest.mark.fault("two runs")
def test_a_second_driver_on_the_same_results_is_refused_naming_the_first(calm):
    with files.lock(calm.results, purpose="./run_all.sh somewhere"):
        status, out = calm.run(*SMOKE)
    assert status == 2
    helpful(out, f"results/ is in use by ./run_all.sh somewhere, pid {os.getpid()} on", "another folder with --out")


@pytest.mark.fault("two runs")
def test_a_run_within_or_around_the_folder_of_another_is_refused_and_leaves_nothing(command):
    out = command.house.root / "study"
    sweep = (*SMOKE, "sec1_toy", "--sweep", "scale=1.0,3.0", "--out", out)
    with files.lock(out, purpose="./run_all.sh the sweep"):
        status, said = command(*SMOKE, "sec1_toy", "-p", "scale", "1.0", "--out", out / "scale=1.0")
        assert status == 2
        helpful(said, f"scale=1.0/ lies in {out}, which is in use by ./run_all.sh the sweep, pid {os.getpid()} on")
        assert not (out / "scale=1.0").exists()
    with files.lock(out / "scale=3.0", purpose="./run_all.sh one of it"):
        status, said = command(*sweep)
        assert status == 2
        helpful(said, f"scale=3.0/ in {out} is in use by ./run_all.sh one of it", "another folder with --out")
        assert [p.name for p in out.iterdir() if p.name != ".lock"] == ["scale=3.0"]
    with files.lock(out / "other"):  # which the sweep does not touch
        files.refuse_nested(out, below=[out / "scale=1.0"])
    with files.lock(out, below=[out, out / "scale=1.0"]):
        pass


@pytest.mark.fault("two runs")
def test_a_lock_in_a_folder_that_was_removed_meanwhile_is_none(tmp_path, monkeypatch):
    import fcntl

    take = fcntl.flock

    def late(stream, how):
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        take(stream, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with (
        pytest.raises(files.Locked, match="out/ was removed by a run that ended just now"),
        files.lock(tmp_path / "out"),
    ):
        pass


@pytest.mark.slow
@pytest.mark.fault("two runs")
def test_of_two_runs_begun_at_once_one_is_refused_and_the_other_undisturbed(make_house, calm):
    house = make_house(names=(ONE,))
    house.presets(kit.SHORT)
    ended = sorted((kit.end(driver, 300) for driver in [house.start(*SMOKE), house.start(*SMOKE)]), key=lambda e: e[0])
    assert [code for code, _ in ended] == [0, 2], ended
    helpful(ended[1][1], "results/ is in use by")
    assert_like_calm(house, calm)


@pytest.mark.slow
@pytest.mark.fault("two runs")
def test_two_runs_at_once_into_two_folders_do_not_meet(calm, tmp_path):
    places = [tmp_path / "one", tmp_path / "two"]
    for code, out in [kit.end(driver, 300) for driver in [calm.start(*SMOKE, "--out", place) for place in places]]:
        assert code == 0, out
    for place in places:
        assert_like_calm(calm, calm, out=place)
