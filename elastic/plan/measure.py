"""`elastic plan --measure`: what a step, an all-reduce and a save take here, in real processes, into a file."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch

import elastic_checkpoint
from elastic.errors import ConfigError
from elastic.plan.figures import Figure, Figures

_WITHIN_S = 300.0
STATE_BYTES = 256 << 20
_TENSORS = 64
_ROUNDS = 3

_WORKERS_MAX = 256


def measure(file: Path, *, model: str, workers: int, storage: str | None, state_bytes: int = STATE_BYTES) -> Figures:
    """Measure, write the figures to the file, and return them. Raises ConfigError; nothing that it started is left.

    model    "module:function", whose function gives (model, loss)
    storage  the folder in which saves are measured; None: a temporary one
    state_bytes  of what is saved
    """
    if not 1 <= workers <= _WORKERS_MAX:
        raise ConfigError(f"--workers {workers}; expected 1 to {_WORKERS_MAX}, all on this machine")
    if ":" not in model:
        raise ConfigError(f"--model {model!r}; expected MODULE:FUNCTION, such as package.module:function")
    if file.is_dir() or not os.access(file.parent, os.W_OK):  # before minutes are spent
        raise ConfigError(
            f"--measure {file}: no file can be written there; nothing was measured\n"
            "  next  name a file in a folder that exists and can be written"
        )
    where = f"elastic plan --measure on {platform.node()}, {os.cpu_count()} processors"
    of_step = _in_processes(model, workers, file)
    parameters = of_step.pop("parameters")
    sources = dict.fromkeys(of_step, f"{where}: {workers} processes, {model}, {parameters:,.0f} parameters")
    of_saves = _saves(storage, state_bytes, file)
    sources |= dict.fromkeys(of_saves, f"{where}: {state_bytes >> 20} MiB in {_TENSORS} tensors")
    today = time.strftime("%Y-%m-%d")
    found = {name: Figure(value, sources[name], today) for name, value in {**of_step, **of_saves}.items()}
    try:
        file.write_text(json.dumps({name: vars(one) for name, one in found.items()}, indent=1) + "\n")
    except OSError as refused:
        raise ConfigError(
            f"--measure {file}: {refused}; what was measured is lost\n  next  make room there, or name another file"
        ) from refused
    return found


def _in_processes(model: str, workers: int, file: Path) -> dict[str, float]:
    """Measure a step in so many processes; return what rank 0 found. Raises ConfigError."""
    with tempfile.TemporaryDirectory(prefix="elastic-measure-") as folder, ExitStack() as ending:
        started = []
        for rank in range(workers):
            arguments = [str(rank), str(workers), os.path.join(folder, "rendezvous"), model]
            process = subprocess.Popen(
                [sys.executable, "-m", "elastic.plan.measure_worker", *arguments],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={"GLOO_SOCKET_IFNAME": "lo", **os.environ},
            )
            ending.callback(process.wait)
            ending.callback(process.kill)
            started.append(process)
        until_s = time.monotonic() + _WITHIN_S
        said = []
        for rank, process in enumerate(started):
            try:
                out, err = process.communicate(timeout=max(0.1, until_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise ConfigError(
                    f"--measure: process {rank} of {workers} had not ended after {_WITHIN_S:.0f} s; all were ended, "
                    f"and {file} was not written\n  next  measure with fewer --workers, or a smaller batch"
                ) from None
            if process.returncode:
                raise ConfigError(
                    f"--measure: process {rank} of {workers} failed; all were ended, and {file} was not written\n"
                    f"{err.strip()[-1500:]}"
                )
            said.append(out)
        found: dict[str, float] = json.loads(said[0].strip().splitlines()[-1])
        return found


def _saves(storage: str | None, state_bytes: int, file: Path) -> dict[str, float]:
    """Measure copies, saves, reads and plain writes of a state: the median of some rounds. Raises ConfigError."""
    draw = torch.Generator().manual_seed(0)
    state = {f"layer{n}": torch.randn(state_bytes // 4 // _TENSORS, generator=draw) for n in range(_TENSORS)}
    copies, stalls, commits, reads, writes = [], [], [], [], []
    warm, other = np.ones(state_bytes // 8), np.zeros(state_bytes // 8)
    try:
        folder = tempfile.TemporaryDirectory(prefix="elastic-measure-", dir=storage)
    except OSError as refused:
        raise ConfigError(
            f"--storage {storage}: {refused}; {file} was not written\n"
            "  next  name a folder that exists and can be written, or leave --storage out"
        ) from refused
    with folder as at, elastic_checkpoint.Checkpointer(os.path.join(at, "run"), keep=2) as saves:
        saves.warm(state)
        for step in range(_ROUNDS + 1):
            copies.append(_took(lambda: np.copyto(other, warm)))
            begun_s = time.perf_counter()
            saving = saves.save(step, state, blocking=False)
            stalls.append(time.perf_counter() - begun_s)
            saving.wait()
            commits.append(time.perf_counter() - begun_s)
            reads.append(_took(saves.read))
            writes.append(_took(lambda: _written(state, os.path.join(at, "torch.save"))))
    copy_s, stall_s, commit_s, read_s, write_s = (
        statistics.median(took_s[1:]) for took_s in (copies, stalls, commits, reads, writes)
    )
    return {
        "copy_bytes_per_s": state_bytes / copy_s,
        "stall_copies": stall_s / copy_s,
        "upload_bytes_per_s": state_bytes / commit_s,
        "read_bytes_per_s": state_bytes / read_s,
        "write_bytes_per_s": state_bytes / write_s,
    }


def _written(state: dict[str, torch.Tensor], path: str) -> None:
    with open(path, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())


def _took(act: Callable[[], object]) -> float:
    begun_s = time.perf_counter()
    act()
    return time.perf_counter() - begun_s
