"""Algorithm 4 at work on one machine: real processes, one of them killed; the time of a step; who computes what.

Every process is ``python -m privrob.learn.stobatch.distributed``, with one thread, and they talk over the loopback.

Paper: stobatch, Section 3.5, Algorithm 4.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from privrob import checks
from privrob.learn.stobatch import networks
from privrob.learn.stobatch.distributed import Study

_LIBRARY = Path(__file__).parents[3]
_STATE = "training.pt"


@dataclass(frozen=True)
class Together:
    """What some processes left: the server's rows, when each came (seconds), what was said otherwise, exit statuses."""

    rows: list
    arrived: list
    said: str
    statuses: list


def together(study, folder, *, num_processes, kill_after=None, timeout_s=120.0):
    """Run a study with so many processes to its end, or until one of them is lost.

    Paper: stobatch, Algorithm 4.
    Args: study — a dict, see :mod:`privrob.learn.stobatch.distributed`;  folder — for ``study.json`` and the server's
        checkpoint, from which a run goes on;  kill_after — after a row of at least this step the last process is
        killed (it gets no chance to say anything);  timeout_s — the longest wait for a message; after four times as
        long everything is killed.
    """
    num_processes = checks.integer("num_processes", num_processes, low=1 if kill_after is None else 2)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "study.json").write_text(json.dumps(study))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    running = [_start(folder, rank, num_processes, address, timeout_s) for rank in range(num_processes)]
    watch = threading.Timer(4 * timeout_s, lambda: [process.kill() for process in running])
    watch.start()
    rows, arrived, said = [], [], []
    try:
        for line in running[0].stdout:
            if not line.startswith("{"):
                said.append(line)
                continue
            rows.append(json.loads(line))
            arrived.append(time.perf_counter())
            if kill_after is not None and rows[-1]["step"] >= kill_after:
                running[-1].kill()
        statuses = [process.wait(timeout=timeout_s) for process in running]
        said += [process.stdout.read() for process in running[1:]]
    finally:
        watch.cancel()
        for process in running:
            process.kill()
            process.wait()
            process.stdout.close()
    return Together(rows, arrived, "".join(said), statuses)


def _start(folder, rank, world_size, address, timeout_s):
    arguments = [str(folder / "study.json"), "--rank", str(rank), "--world-size", str(world_size)]
    arguments += ["--address", address, "--timeout", str(timeout_s)]
    if rank == 0:
        arguments += ["--checkpoint", str(folder / _STATE)]
    environment = {**os.environ, "PYTHONPATH": str(_LIBRARY), "OMP_NUM_THREADS": "1"}
    if sys.platform == "linux":
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    command = [sys.executable, "-m", "privrob.learn.stobatch.distributed", *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


# ------------------------------------------------------------------------------------------------- the same training?


def tensors(training):
    """All weights and running averages, one vector."""
    every = (*training.first, *training.rest, *training.buffers)
    return torch.cat([tensor.detach().reshape(-1).double() for tensor in every])


def agreement_cell(settings, *, streams, scratch=None):
    """Several processes against one, undisturbed and with a process killed and all started again.

    Paper: stobatch, Algorithm 4.
    Args: settings — ``study`` (a dict, see :mod:`privrob.learn.stobatch.distributed`),  ``num_processes`` (a list),
        ``kill_after`` — a step;  streams — not used: a study has its own seed.
    Returns: a row for each number of processes, and one more for the killed run (the most processes): ``killed``,
        ``statuses``, ``completed`` (steps in the checkpoint after the loss), ``said``, ``num_steps``,
        ``largest_difference`` (of weights and averages, to the single process), ``largest_weight``, ``same_bits``.
    """
    study, counts = settings["study"], list(settings["num_processes"])
    base = Path(scratch or tempfile.mkdtemp())
    (base / "alone").mkdir(parents=True, exist_ok=True)
    (base / "alone" / "study.json").write_text(json.dumps(study))
    alone = Study.read(base / "alone" / "study.json").training()
    *_, last = alone.rows()
    rows = []
    for count, kill_after in [*((count, None) for count in counts), (max(counts), settings["kill_after"])]:
        folder = base / f"{count} {kill_after}"
        (folder / _STATE).unlink(missing_ok=True)
        row = {"num_processes": count, "killed": kill_after is not None, "num_steps": alone.settings.num_steps}
        if kill_after is not None:
            lost = together(study, folder, num_processes=count, kill_after=kill_after)
            kept = Study.read(folder / "study.json").training(checkpoint=folder / _STATE)
            told = next((line for line in lost.said.splitlines() if line.startswith("lost")), "")
            row |= {"lost_statuses": str(lost.statuses), "completed": kept.step, "said": told}
        ended = together(study, folder, num_processes=count)
        if any(ended.statuses):
            raise RuntimeError(f"{count} processes ended with {ended.statuses}: {ended.said[-2000:]}")
        found = Study.read(folder / "study.json").training(checkpoint=folder / _STATE)
        row |= {
            "statuses": str(ended.statuses),
            "same_bits": ended.rows[-1]["weights_sha256"] == last["weights_sha256"],
            "largest_difference": (tensors(found) - tensors(alone)).abs().max().item(),
            "largest_weight": tensors(alone).abs().max().item(),
        }
        rows.append(row)
    return rows


agreement_cell.resumes = True


def without_batch_norm(training):
    """The same training with each batch norm replaced by the identity, so that records do not mix. Returns it."""
    for module in list(training.network.modules()):
        for name, inner in list(module.named_children()):
            if isinstance(inner, networks.BatchNorm):
                setattr(module, name, nn.Identity())
    training.rest, training.buffers = list(training.network.rest.parameters()), []
    return training


def workers_difference(make, num_workers, *, batch_norm):
    """How far the mean of M workers' gradients is from that of their trainer by itself, relative to its length.

    Paper: stobatch, Section 3.5, (1).
    Args: make — called with ``num_workers``, gives a fresh :class:`privrob.learn.stobatch.training.Training` whose
        attack draws nothing (not ``pgd``);  batch_norm — False: :func:`without_batch_norm`.
    """
    sent = {}
    for count in (1, checks.integer("num_workers", num_workers, low=1)):
        training = make(count) if batch_norm else without_batch_norm(make(count))
        trainer = training.tasks()[0][0]
        size = sum(p.numel() for p in (*training.first, *training.rest))
        parts = [training.contribution(trainer, worker)[:size].double() for worker in range(count)]
        sent[count] = sum(parts) / count
    whole, mean = sent[1], sent[num_workers]
    return ((mean - whole).norm() / whole.norm()).item()


# --------------------------------------------------------------------------------------------------------------- time


def timing_cell(settings, *, streams, scratch=None):
    """Seconds of a step, for numbers of trainers, workers, processes and attack steps, one after the other.

    Paper: stobatch, Section 3.5, Section 4 (days of training).
    Args: settings — ``study``, whose ``num_trainers``, ``num_workers`` and ``attack_steps`` are replaced by those of
        ``layouts``, a list of [N, M, processes, T_μ];  ``num_steps`` — timed steps of each (one more comes first);
        streams — not used.
    Returns: a row each: ``num_trainers``, ``num_workers``, ``num_processes``, ``attack_steps``, ``seconds`` (median of
        a step), ``quickest``, ``slowest``, ``cores``, ``load`` (processes that wanted a core, just before): a clock of
        this machine, not a property of the algorithm.
    """
    rows, base = [], Path(scratch or tempfile.mkdtemp())
    steps = checks.integer("num_steps", settings["num_steps"], low=1)
    for trainers, workers, count, attack_steps in settings["layouts"]:
        how = {"num_steps": steps + 2, "evaluate_every": 1, "attack_steps": attack_steps}
        study = settings["study"] | {"num_trainers": trainers, "num_workers": workers}
        study["settings"] = study["settings"] | how
        folder = base / f"{trainers} {workers} {count} {attack_steps}"
        (folder / _STATE).unlink(missing_ok=True)
        load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
        found = together(study, folder, num_processes=count)
        if any(found.statuses):
            raise RuntimeError(f"{count} processes ended with {found.statuses}: {found.said[-2000:]}")
        each = [b - a for a, b in zip(found.arrived, found.arrived[1:])][:steps]
        about = {"num_trainers": trainers, "num_workers": workers, "num_processes": count, "attack_steps": attack_steps}
        clock = {"seconds": statistics.median(each), "quickest": min(each), "slowest": max(each)}
        rows.append(
            {
                **about,
                **clock,
                "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
                "load": load,
            }
        )
    return rows


timing_cell.resumes = True
