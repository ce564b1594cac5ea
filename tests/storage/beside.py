"""Saves beside training, watched from outside: the writer processes, what they left, and a trainer to kill."""

from __future__ import annotations

import contextlib
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch

from elastic_checkpoint import (
    Checkpointer,
    NoCheckpoint,
    StorageError,
    digest,
)
from elastic_checkpoint.save.writer import WRITER_MODULE
from tests.kit.forkserver import piped

Make = Callable[..., Checkpointer]
WITHIN_S = 240.0
SEED = int(os.environ.get("SEED", "0")) or random.randrange(1, 10**6)


def state(seed: int, size: int = 1000) -> dict[str, Any]:
    """size  floats per tensor; there are 20"""
    generator = torch.Generator().manual_seed(seed)
    return {"model": {f"w{n}": torch.randn(size, generator=generator) for n in range(20)}, "at": seed}


def writers(of: int | None = None) -> list[psutil.Process]:
    """The writer processes of process `of`, by default of this one."""
    there = [one for one in psutil.Process(of).children() if one.status() != psutil.STATUS_ZOMBIE]
    return [one for one in there if WRITER_MODULE in one.cmdline()]


def newest(url: Path | str, **options: Any) -> int | None:
    """The step of the newest whole checkpoint, whose bytes are checked."""
    with Checkpointer(url, **options) as runs:
        try:
            found = runs.read()
        except NoCheckpoint:
            return None
    size = next(iter(found.tree["model"].values())).numel()
    assert digest(found.tree) == digest(state(found.step, size))
    assert found.tree["at"] == found.step
    return found.step


def gone(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.TimeoutExpired):
        process.wait(WITHIN_S)
        return True
    return False


def ended(process: psutil.Process) -> None:
    """Returns once it runs no more. Its parent, this process, is left to hear how it ended."""
    deadline = time.monotonic() + WITHIN_S
    with contextlib.suppress(ChildProcessError):  # that was quicker
        while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
            assert time.monotonic() < deadline
            time.sleep(0.001)


def command_of(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


# A trainer in a process of its own. Its commands come in one line each: save N, and what the tests add.
TRAINER = """
import sys, threading
import elastic_checkpoint, elastic_checkpoint.save.staging
from tests.storage.beside import state
url, size = sys.argv[1], int(sys.argv[2])
runs = elastic_checkpoint.Checkpointer(url, shard_bytes=2**20, keep=100)
print("claimed", runs.claim().number, flush=True)
for line in sys.stdin:
    command, step = line.split()
    if command == "hold":  # the next copy stops in the middle, for good
        move = elastic_checkpoint.save.staging.move
        def half(moves):
            move(moves[: len(moves) // 2])
            print("held", flush=True)
            threading.Event().wait()
        elastic_checkpoint.save.staging.move = half
    if command == "fork":
        import os, time
        child = os.fork()
        if child == 0:
            time.sleep(600)
        print("forked", child, flush=True)
    saving = runs.save(int(step), state(int(step), size), blocking=False) if command in ("save", "hold") else None
    if command == "save":
        print("staged", step, flush=True)
"""


class Trainer:
    """A training process that saves when it is told to."""

    def __init__(self, url: Path, size: int = 1000) -> None:
        self.process = piped([sys.executable, "-c", TRAINER, str(url), str(size)])
        assert self.hear()[0] == "claimed"

    def tell(self, command: str) -> None:
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def hear(self) -> list[str]:
        return self.process.stdout.readline().split()

    def save(self, step: int) -> None:
        self.tell(f"save {step}")
        assert self.hear() == ["staged", str(step)]

    @property
    def writer(self) -> psutil.Process:
        [writer] = writers(self.process.pid)
        return writer

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=WITHIN_S)


def settled(runs: Checkpointer) -> None:
    with contextlib.suppress(StorageError):
        runs.wait()
