r"""Algorithm 4 on several processes or machines: a parameter server and its local trainers over ``torch.distributed``.

Every process reads the same ``study.json``::

    {"seed": 7, "dataset": "mnist", "data": {"num_records": 8000, "num_test": 1000},
     "settings": {"network": "mnist", "num_steps": 100, "batch_size": 250, "pairing": "pairs", ...},
     "num_trainers": 2, "num_workers": 1}

    python -m privrob.learn.stobatch.distributed study.json --rank 0 --world-size 3 --address server:29500 \
        --checkpoint training.pt
    python -m privrob.learn.stobatch.distributed study.json --rank 1 --world-size 3 --address server:29500

Rank 0 is the server, and works too. Each part of a trainer's batches has a home, rank (trainer · M + worker) mod world
size. A step: every rank computes the gradients of its tasks, sends them; the server adds them *in the order of the
tasks*, divides, and sends the mean, by which every rank steps. So the result is that of
:class:`privrob.learn.stobatch.training.Training` with the same ``num_trainers`` and ``num_workers``, to the bit on
equal machines, and to rounding otherwise. ``gloo`` on CPUs, ``nccl`` where every rank has a GPU.

A lost trainer. Whoever breaks the connection, or sends nothing for ``--timeout`` seconds, stops the run before that
step is applied: the server writes the state after the last completed step to the checkpoint and says who was missing.
The same commands again go on from there, to the same result: a step draws from streams of its own.

Another study. Ranks compare settings, seed, data and trainers before the first step, and all stop if one differs: its
batches would be other records, with other noise.

Privacy. Every process can read all records here (it keeps only what its tasks need); the batches of a real deployment
would be read where they lie. Gradients are sent as they are.

Paper: stobatch, Algorithm 4, Section 3.5.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
import torch.distributed as dist

from privrob import checks
from privrob.kinds import Streams
from privrob.learn.stobatch.settings import StoBatchSettings
from privrob.learn.stobatch.training import Training

_STUDY = ("seed", "dataset", "data", "settings", "num_trainers", "num_workers", "double")


class LostTrainer(RuntimeError):
    """A process sent nothing in time, or is gone. The message says which, and how to go on."""


@dataclass(frozen=True)
class Study:
    """What all processes agree on.

    Args: settings — of :class:`privrob.learn.stobatch.settings.StoBatchSettings`, with ``pairing="pairs"``;
        seed — of all streams;  num_trainers — N;  num_workers — M;  dataset, data — a name and arguments for
        :func:`privrob.learn.datasets.load`;  double — float64 instead of float32.
    """

    settings: StoBatchSettings
    seed: int
    num_trainers: int
    num_workers: int = 1
    dataset: str = "mnist"
    data: dict = field(default_factory=dict)
    double: bool = False

    @classmethod
    def read(cls, file):
        """A study from a JSON file."""
        found = json.loads(Path(file).read_text())
        if not isinstance(found, dict) or "settings" not in found:
            raise ValueError(f"study {file} must be a JSON object with settings, a seed and num_trainers")
        for name in found:
            checks.choice("study", name, _STUDY)
        settings = {"pairing": "pairs"} | found.pop("settings")
        return cls(settings=StoBatchSettings(**settings), **found)

    def training(self, **more):
        """The training of this study: one process alone, or one of several.

        Args: more — of :class:`privrob.learn.stobatch.training.Training`.
        """
        from privrob.learn.attacked import loaded

        data, tensors = loaded(self.dataset, self.data, double=self.double)
        arguments = {"num_classes": data.num_classes, "streams": Streams(self.seed), **more}
        arguments |= {"num_trainers": self.num_trainers, "num_workers": self.num_workers}
        return Training(self.settings, *tensors, **arguments)


class OtherStudy(ValueError):
    """The processes were not given the same study. The message says which rank differs, and in what."""


class Member:
    """One process of a distributed training.

    Args: training — a :class:`~privrob.learn.stobatch.training.Training` with ``num_trainers``, the same everywhere;
        only rank 0's has a checkpoint;
        rank, world_size — of the process group, which is there already;  timeout_s — for the messages.
    """

    def __init__(self, training, *, rank, world_size):
        if training.num_trainers is None:
            raise ValueError("num_trainers must be given for a distributed training, got None")
        self.training, self.rank, self.world_size = training, rank, world_size

    def home(self, task):
        """The rank that computes a task (trainer, worker)."""
        return (task[0] * self.training.num_workers + task[1]) % self.world_size

    def rows(self):
        """Run to the end; yields rows on the server (rank 0), none elsewhere."""
        training, last = self.training, self.training.settings.num_steps
        if self.rank == 0:
            yield from training.done
        if not self._begin():
            return
        while training.step < last:
            row = self._step()
            if row:
                yield row
        if self.rank == 0:
            yield training.row()

    def _begin(self):
        """All ranks at the server's state; whether anything is left to do."""
        finished = bool(self.training.done and self.training.done[-1]["weights_sha256"])
        box = [(finished, self.training.state(), self.training.identity) if self.rank == 0 else None]
        self._heard(0, dist.broadcast_object_list, box, src=0)
        finished, state, wanted = box[0]
        mine, told = self.training.identity, [None] * self.world_size
        differs = sorted(name for name in {*wanted, *mine} if wanted.get(name) != mine.get(name))
        self._heard(0, dist.all_gather_object, told, differs)
        other = {rank: names for rank, names in enumerate(told) if names}
        if other:
            found = "; ".join(f"rank {rank} differs in {', '.join(names)}" for rank, names in other.items())
            raise OtherStudy(f"study must be the same for all processes, got another than rank 0's: {found}")
        if self.rank:
            self.training.restore(state)
        return not finished

    def _step(self):
        training, tasks = self.training, self.training.tasks()
        mine = [task for task in tasks if self.home(task) == self.rank]
        if self.rank:
            for task in mine:
                sent = training.contribution(*task)
                self._heard(0, dist.send, sent, dst=0)
            mean = self._vector()
        else:
            own = {task: training.contribution(*task) for task in mine}
            mean = self._sum(tasks, own).div_(len(tasks))
        self._heard(0, dist.broadcast, mean, src=0)
        training.apply(mean)
        if self.rank == 0:
            if training.progress:
                training.progress(training.step, training.settings.num_steps)
            return training.due()
        return None

    def _sum(self, tasks, own):
        total, room = None, self._vector()
        for task in tasks:
            sent = own.get(task)
            if sent is None:
                sent = room
                self._heard(self.home(task), dist.recv, room, src=self.home(task), task=task)
            total = sent.clone() if total is None else total.add_(sent)
        return total

    def _vector(self):
        training = self.training
        size = sum(t.numel() for t in (*training.first, *training.rest, *training.buffers)) + 4
        return torch.empty(size, dtype=training.images.dtype, device=training.device)

    def _heard(self, other, exchange, *arguments, task=None, **named):
        """A message, or an error in words."""
        began = time.monotonic()
        try:
            exchange(*arguments, **named)
            if self.training.device.type == "cuda":
                torch.cuda.synchronize()
        except (RuntimeError, ValueError) as error:
            raise LostTrainer(self._lost(other, task, time.monotonic() - began)) from error

    def _lost(self, other, task, waited):
        training = self.training
        if self.rank:
            return f"rank {self.rank}: no answer from the server in step {training.step} ({_seconds(waited)}); stopped"
        training.save()
        who = f"rank {other} (trainer {task[0]}, worker {task[1]})" if task else "a trainer"
        kept = (
            f"the state after {training.step} completed steps is in {_shown(training.file)}"
            if training.file
            else "not saved"
        )
        return (
            f"lost {who} in step {training.step}: nothing came within {_seconds(waited)}. The step was not applied; "
            f"{kept}. Start all processes again with the same commands to go on from there"
        )


def _seconds(time_s):
    """A time in words, rounded up to the next 0.1 s where it is short: never 0."""
    return f"{max(1, math.ceil(10 * time_s)) / 10:.1f} s" if time_s < 10 else f"{time_s:.0f} s"


def _shown(file):
    """A file as one finds it again from here: its path below the working folder, else its name alone."""
    file = Path(file)
    try:
        return str(file.resolve().relative_to(Path.cwd()))
    except ValueError:
        return file.name


def _address(address):
    kind, _, path = address.partition(":")
    return f"file:{_shown(path)}" if kind == "file" else address


def run(study, *, rank, world_size, address, checkpoint=None, timeout_s=600.0, save_every=1, progress=None):
    """Be one process of a study to its end; yields the rows on rank 0.

    Paper: stobatch, Algorithm 4.
    Args: study — :class:`Study`;  rank — this process, from 0;  world_size — how many there are;  address — HOST:PORT
        of rank 0, or ``file:`` and a path that all processes see;  checkpoint — rank 0's file;
        timeout_s — how long to wait for a message;  save_every — steps between checkpoints;  progress — as in
        :class:`~privrob.learn.stobatch.training.Training`.
    """
    world_size = checks.integer("world_size", world_size, low=1)
    rank = checks.integer("rank", rank, low=0, high=world_size - 1)
    timeout_s = checks.positive("timeout_s", timeout_s, finite=True)
    cuda = study.settings.device.startswith("cuda")
    if cuda:
        torch.cuda.set_device(study.settings.device)
    where = address if address.startswith("file:") else f"tcp://{address}"
    try:
        dist.init_process_group(
            "nccl" if cuda else "gloo",
            init_method=where,
            rank=rank,
            world_size=world_size,
            timeout=datetime.timedelta(seconds=timeout_s),
        )
    except (RuntimeError, ValueError) as error:
        raise LostTrainer(
            f"rank {rank} of {world_size} found no group at {_address(address)} within {_seconds(timeout_s)}: {error}"
        ) from error
    try:
        more = {"checkpoint": checkpoint, "save_every": save_every, "progress": progress} if rank == 0 else {}
        yield from Member(study.training(**more), rank=rank, world_size=world_size).rows()
    finally:
        dist.destroy_process_group()


def main(arguments=None):
    """Run one process; rank 0 prints a JSON line a row. Exit status 2: something is wrong with the study or the command
    line, or the training diverged; 3: a trainer was lost.

    Args: arguments — of the command line, None: the process's own.
    """
    parser = argparse.ArgumentParser(prog="python -m privrob.learn.stobatch.distributed", description="see the module")
    parser.add_argument("study")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world-size", type=int, required=True)
    parser.add_argument("--address", required=True, help="HOST:PORT of rank 0, or file:PATH")
    parser.add_argument("--checkpoint", help="the server's file")
    parser.add_argument("--timeout", dest="timeout_s", type=float, default=600.0)
    parser.add_argument("--save-every", type=int, default=1)
    parser.add_argument("--device", help="of this process, in place of the study's: cuda:1, say")
    given = vars(parser.parse_args(arguments))
    file, device = given.pop("study"), given.pop("device")
    try:
        study = Study.read(file)
        if device is not None:
            study = replace(study, settings=replace(study.settings, device=device))
    except (OSError, ValueError, TypeError) as error:
        parser.error(f"study {file}: {error}")
    try:
        for row in run(study, **given):
            print(json.dumps(row), flush=True)
    except LostTrainer as error:
        print(error, flush=True)
        return 3
    except (OtherStudy, FloatingPointError) as error:
        print(error, flush=True)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
