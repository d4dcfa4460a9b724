"""Algorithm 4 at work on one machine: real processes, one of them killed; the time of a step; who computes what.

Every process runs :func:`privrob.learn.stobatch.distributed.run` with one thread; they talk by gloo over the loopback.

``training`` is a :class:`privrob.learn.stobatch.training.Training`.

Paper: stobatch, Section 3.5, Algorithm 4.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from privrob import checks
from privrob.learn import datasets
from privrob.learn.stobatch import distributed, networks
from privrob.learn.stobatch.distributed import LostTrainer, Study

_STATE = "training.pt"
_CONTEXT = multiprocessing.get_context("forkserver" if hasattr(os, "fork") else "spawn")
if hasattr(os, "fork"):  # imported once, not once a process; the last one is what an empty network makes torch import
    _READY = [__name__, "privrob.learn.stobatch.cells", "torch.fx.experimental.symbolic_shapes"]
    _CONTEXT.set_forkserver_preload(_READY)


@dataclass(frozen=True)
class Together:
    """What some processes left: the server's ``rows``, when each had ``arrived`` (seconds), what was ``said``
    otherwise, exit ``statuses``.
    """

    rows: list
    arrived: list
    said: str
    statuses: list


def together(study, folder, *, num_processes, kill_after=None, timeout_s=120.0):
    """Run a study with so many processes to its end, or until one of them is lost.

    Paper: stobatch, Algorithm 4.
    Args: num_processes — the server included;  study — a dict, see :mod:`privrob.learn.stobatch.distributed`;  folder —
        for ``study.json`` and the server's checkpoint, from which a run goes on;  kill_after — after a row of at least
        this step the last process is killed (it gets no chance to say anything);  timeout_s — the longest wait for a
        message; after four times as long everything is killed.
    """
    num_processes = checks.integer("num_processes", num_processes, low=1 if kill_after is None else 2)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "study.json").write_text(json.dumps(study))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    running, ends = [], []
    for rank in range(num_processes):
        end, other = _CONTEXT.Pipe(duplex=False)
        arguments = (folder, rank, num_processes, address, timeout_s, other)
        running.append(_CONTEXT.Process(target=_member, args=arguments))
        running[-1].start()
        other.close()  # so that the end of the process is the end of what it says
        ends.append(end)
    watch = threading.Timer(4 * timeout_s, lambda: [process.kill() for process in running])
    watch.start()
    rows, arrived, said = [], [], []
    try:
        for one in _heard(ends[0]):
            if isinstance(one, str):
                said.append(one)
                continue
            rows.append(one)
            arrived.append(time.perf_counter())
            if kill_after is not None and one["step"] >= kill_after:
                running[-1].kill()
        said += [one for end in ends[1:] for one in _heard(end)]
        for process in running:
            process.join(timeout_s)
    finally:
        watch.cancel()
        for process in running:
            process.kill()
            process.join()
    return Together(rows, arrived, "\n".join(said), [process.exitcode for process in running])


def _heard(end):
    """What comes through a pipe until its other end is gone."""
    while True:
        try:
            yield end.recv()
        except (EOFError, ConnectionResetError):
            return


def _member(folder, rank, world_size, address, timeout_s, pipe):
    """One process: says its rows (the server), or who was lost."""
    torch.set_num_threads(1)
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    how = {"rank": rank, "world_size": world_size, "address": address, "timeout_s": timeout_s}
    try:
        checkpoint = folder / _STATE if rank == 0 else None
        for row in distributed.run(Study.read(folder / "study.json"), checkpoint=checkpoint, **how):
            pipe.send(row)
    except LostTrainer as error:
        pipe.send(str(error))
        raise SystemExit(3) from None


# ------------------------------------------------------------------------------------------------- the same training?


def tensors(training):
    """All weights and running averages, one vector."""
    every = (*training.first, *training.rest, *training.buffers)
    return torch.cat([tensor.detach().reshape(-1).double() for tensor in every])


def _fingerprint(settings):
    study = settings["study"]
    return {study["dataset"]: datasets.fingerprint(study["dataset"], **study["data"])}


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
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the processes have; sums in another order differ in their last bits
    try:
        *_, last = alone.rows()
    finally:
        torch.set_num_threads(threads)
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
agreement_cell.data = _fingerprint


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


def passes_of_step(training):
    """Images that pass forward through the whole network in one step of all tasks, counted at its last layer.

    Paper: stobatch, Section 3.5.
    """
    count = 0

    def note(module, inputs, output):
        nonlocal count
        count += len(output)

    handle = training.network.last.register_forward_hook(note)
    try:
        training.total()
    finally:
        handle.remove()
    return count


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
timing_cell.data = _fingerprint


def scaling_cell(settings, *, streams, scratch=None):
    """Both, one after the other, so that nothing else of a notebook is beside the clock.

    Paper: stobatch, Algorithm 4, Section 3.5.
    Args: settings — ``agreement`` and ``clock``, the settings of :func:`agreement_cell` and :func:`timing_cell`.
    Returns: the rows of both, with ``row`` ``agreement`` or ``clock``.
    """
    base = Path(scratch or tempfile.mkdtemp())
    rows = []
    for name, function in (("agreement", agreement_cell), ("clock", timing_cell)):
        found = function(settings[name], streams=streams, scratch=base / name)
        rows += [{"row": name, **row} for row in found]
    return rows


def _fingerprints(settings):
    return _fingerprint(settings["agreement"]) | _fingerprint(settings["clock"])


scaling_cell.resumes = True
scaling_cell.data = _fingerprints
