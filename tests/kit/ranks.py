"""Runs one function in several real processes at once, as the ranks of something, and brings their answers back.

The processes are forked from a server that has imported what they will and computed nothing, so they start within
milliseconds and share no state with pytest. All of them end by the deadline, whatever they do.
"""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
from torch.distributed import TCPStore

from tests.kit.forkserver import OTHERS, OURS

_CONTEXT = multiprocessing.get_context("forkserver")
_SHARDING = ("torch.distributed.fsdp", "torch.distributed.checkpoint", "torch.distributed.tensor.parallel")
_CONTEXT.set_forkserver_preload([*OTHERS, *OURS, *_SHARDING, "pytest", "tests.kit.ranks"])


@dataclass(frozen=True)
class Died:
    """The process ended without an answer. status: as Popen has it; negative is a signal."""

    status: int


@dataclass(frozen=True)
class Raised:
    """What a function raised: the exception's class name, its text, and the traceback for people."""

    kind: str
    text: str
    traceback: str


def run_ranks(function: Callable[..., Any], world_size: int, *args: Any, within_s: float = 240.0) -> list[Any]:
    """What `function(rank, world_size, *args)` returned in each process: a value that pickles, a Died or a Raised."""
    pipes, processes = [], []
    try:
        for rank in range(world_size):
            ours, theirs = _CONTEXT.Pipe(duplex=False)
            process = _CONTEXT.Process(target=_call, args=(theirs, function, rank, world_size, *args))
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        answers = _answers(pipes, time.monotonic() + within_s)
        missing = [rank for rank in range(world_size) if rank not in answers]
        assert not missing, f"ranks {missing} gave no answer within {within_s} s; the others: {answers}"
        for rank, answer in answers.items():
            if isinstance(answer, Died):
                processes[rank].join(timeout=10)
                answers[rank] = Died(processes[rank].exitcode or 0)
        return [answers[rank] for rank in range(world_size)]
    finally:
        for process in processes:
            process.kill()
            process.join(timeout=10)
        for pipe in pipes:
            pipe.close()


def returned(answers: list[Any]) -> list[Any]:
    """The answers, where no rank raised or died."""
    for rank, answer in enumerate(answers):
        assert not isinstance(answer, Raised), f"rank {rank}\n{answer.traceback}"
        assert not isinstance(answer, Died), f"rank {rank} died with status {answer.status}"
    return answers


def _answers(pipes: list[Connection], deadline: float) -> dict[int, Any]:
    waiting = dict(zip(pipes, range(len(pipes)), strict=True))
    answers: dict[int, Any] = {}
    while waiting and (left_s := deadline - time.monotonic()) > 0:
        for pipe in wait(list(waiting), timeout=left_s):
            assert isinstance(pipe, Connection)
            rank = waiting.pop(pipe)
            try:
                answers[rank] = pipe.recv()
            except EOFError:
                answers[rank] = Died(0)
    return answers


def _call(pipe: Connection, function: Callable[..., Any], *args: Any) -> None:
    torch.set_num_threads(1)
    try:
        answer = function(*args)
    except Exception as error:
        answer = Raised(type(error).__name__, str(error), traceback.format_exc())
    pipe.send(answer)


@contextmanager
def agent_store() -> Iterator[int]:
    """A store as torchrun's agent hosts one. Yields its port."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=30))
    yield store.port
    del store


def as_worker_of_torchrun(rank: int, world_size: int, port: int) -> None:
    """Gives this process the environment of a torchrun worker on one node, whose agent's store listens on `port`."""
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world_size),
        LOCAL_WORLD_SIZE=str(world_size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        TORCHELASTIC_USE_AGENT_STORE="True",
        TORCHELASTIC_RUN_ID="none",
    )
