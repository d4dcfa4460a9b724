"""Algorithm 4 over real processes: the single-process result, and what happens when a trainer is lost."""

import io
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from stobatch_toys import STUDY

from privrob.learn.stobatch import distributed
from privrob.learn.stobatch.distributed import LostTrainer, Member, Study

pytestmark = pytest.mark.usefixtures("one_thread")  # as in the processes
LIBRARY = Path(distributed.__file__).parents[3]
FAULTY = """
import os, sys, time
from privrob.learn.stobatch import distributed, training
right = training.Training.contribution
def wrong(self, trainer, worker):
    if self.step == 2:
        {fault}
    return right(self, trainer, worker)
training.Training.contribution = wrong
raise SystemExit(distributed.main(sys.argv[1:]))
"""


def study(**changes):
    settings = {**STUDY["settings"], "num_steps": 4, "noise": "independent"}
    return {**STUDY, "settings": settings, **changes}


def start(folder, number, world, *, fault=None, timeout="60", port=None, file="study.json"):
    """One process of the study in that folder."""
    how = ["-m", "privrob.learn.stobatch.distributed"] if fault is None else ["-c", FAULTY.format(fault=fault)]
    arguments = [str(folder / file), "--rank", str(number), "--world-size", str(world)]
    arguments += ["--address", f"127.0.0.1:{port}", "--timeout", timeout]
    if number == 0:
        arguments += ["--checkpoint", str(folder / "training.pt")]
    environment = {**os.environ, "PYTHONPATH": str(LIBRARY), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, *how, *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def together(folder, *, faults=(None, None), timeout="60", files=("study.json",) * 3):
    """Run all processes of a study; what each printed, and its exit status."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    how = {"timeout": timeout, "port": port}
    running = [start(folder, i, len(faults), fault=f, file=files[i], **how) for i, f in enumerate(faults)]
    try:
        return [(p.communicate(timeout=240)[0], p.returncode) for p in running]
    finally:
        for process in running:
            process.kill()


def rows_of(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "study.json").write_text(json.dumps(study()))
    return tmp_path


def alone(folder):
    """The single-process reference: rows, final state."""
    run = Study.read(folder / "study.json").training()
    return list(run.rows()), run


def assert_same_weights(folder, run, tolerance):
    """The server's file holds the weights and averages of that training."""
    content = io.BytesIO((folder / "training.pt").read_bytes()[32:])
    state = torch.load(content, weights_only=True)
    for found, wanted in zip(state["tensors"], (*run.first, *run.rest, *run.buffers)):
        torch.testing.assert_close(found, wanted.detach(), rtol=tolerance, atol=tolerance)


@pytest.mark.paper("stobatch", "Algorithm 4")
def test_a_lost_trainer_is_told_and_the_restarted_run_ends_as_the_single_process_does(folder):
    (said, status), (_, gone) = together(folder, faults=(None, "os._exit(7)"))
    assert (status, gone) == (3, 7), said
    assert "lost rank 1" in said
    assert "in step 2" in said
    assert "2 completed steps" in said
    assert "Start all processes again" in said
    assert [r["step"] for r in rows_of(said)] == [2]
    (said, status), (other, quiet) = together(folder)
    assert (status, quiet) == (0, 0), said + other
    want, run = alone(folder)
    got = rows_of(said)
    assert [r["step"] for r in got] == [2, 4]
    assert_same_weights(folder, run, 1e-10)  # float64, four steps
    for a, b in zip(got, want):
        assert a["benign_loss"] == pytest.approx(b["benign_loss"], rel=1e-9)
        assert a["test_accuracy"] == b["test_accuracy"]


@pytest.mark.slow
@pytest.mark.paper("stobatch", "Algorithm 4")
def test_single_precision_over_three_processes_is_the_single_process_too(folder):
    (folder / "study.json").write_text(json.dumps(study(double=False)))
    found = together(folder, faults=(None, None, None))
    assert [status for _, status in found] == [0, 0, 0], found
    assert_same_weights(folder, alone(folder)[1], 1e-5)


@pytest.mark.slow
def test_a_silent_trainer_is_told_after_the_timeout(folder):
    (said, status), _ = together(folder, faults=(None, "time.sleep(20); os._exit(0)"), timeout="5")
    assert status == 3, said
    assert "lost rank 1 (trainer" in said
    assert "was not applied" in said


def test_a_process_with_another_study_is_told_before_the_first_step(folder):
    """It would compute gradients of other batches with other noise, and nobody would see."""
    settings = {**study()["settings"], "learning_rate": 0.5}
    (folder / "other.json").write_text(json.dumps(study(seed=6, settings=settings)))
    for said, status in together(folder, files=("study.json", "other.json")):
        assert status == 2, said
        assert "rank 1 differs in learning_rate, streams" in said
        assert not rows_of(said)
    assert not (folder / "training.pt").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (json.dumps(study(trainers=2)), "study must be one of"),
        (json.dumps(study(settings={**STUDY["settings"], "batch_size": "8"})), "batch_size must be an integer"),
        ("{", "Expecting"),
        (None, "No such file"),
    ],
)
def test_the_command_line_says_what_is_wrong_with_a_study(tmp_path, capsys, text, message):
    file = tmp_path / "study.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(SystemExit) as stopped:
        distributed.main([str(file), "--rank", "0", "--world-size", "1", "--address", "127.0.0.1:9"])
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert message in said
    assert str(file) in said


@pytest.mark.paper("stobatch", "Algorithm 4")
@pytest.mark.parametrize(("double", "tolerance"), [(True, 1e-10), (False, 1e-5)])
def test_a_group_of_one_is_the_single_process(tmp_path, double, tolerance):
    (tmp_path / "study.json").write_text(json.dumps(study(double=double)))
    made = Study.read(tmp_path / "study.json")
    rows = list(distributed.run(made, rank=0, world_size=1, address=f"file:{tmp_path / 'meet'}"))
    want, _ = alone(tmp_path)
    for a, b in zip(rows, want):
        assert a["benign_loss"] == pytest.approx(b["benign_loss"], rel=tolerance)
    assert [r["step"] for r in rows] == [r["step"] for r in want]


def test_every_task_has_a_home_that_never_moves(folder):
    run = Study.read(folder / "study.json").training()
    member = Member(run, rank=0, world_size=3)
    homes = {task: member.home(task) for task in [(i, j) for i in range(4) for j in range(2)]}
    assert homes == {(i, j): (2 * i + j) % 3 for i, j in homes}
    assert set(homes.values()) == {0, 1, 2}


def test_nobody_at_the_address_is_told(folder):
    made = Study.read(folder / "study.json")
    with pytest.raises(LostTrainer, match="rank 1 of 2 found no group"):
        list(distributed.run(made, rank=1, world_size=2, address="127.0.0.1:9", timeout_s=1.0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"trainers": 2}, "study must be one of"),
        ({"num_trainers": 9}, "num_trainers"),
        ({"settings": {"network": "mnist"}}, "num_steps"),
    ],
)
def test_a_bad_study_is_refused(tmp_path, change, message):
    (tmp_path / "study.json").write_text(json.dumps(study(**change)))
    with pytest.raises((ValueError, TypeError), match=message):
        Study.read(tmp_path / "study.json").training()


def test_short_limits_and_files_are_told_so_that_they_help(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kept = tmp_path / "runs" / "group"
    kept.parent.mkdir()
    (tmp_path / "study.json").write_text(json.dumps(study()))
    chosen = Study.read(tmp_path / "study.json")
    with pytest.raises(LostTrainer, match=r"found no group at file:runs/group within 0\.3 s"):
        list(distributed.run(chosen, rank=1, world_size=2, address=f"file:{kept}", timeout_s=0.3))
    run = chosen.training(checkpoint=kept.parent / "training.pt")
    message = Member(run, rank=0, world_size=2)._lost(1, (0, 1), 0.02)
    assert "nothing came within 0.1 s" in message
    assert "is in runs/training.pt" in message
    monkeypatch.chdir(kept.parent)
    run.file = tmp_path / "elsewhere.pt"
    assert "is in elsewhere.pt" in Member(run, rank=0, world_size=2)._lost(1, (0, 1), 12.4)
