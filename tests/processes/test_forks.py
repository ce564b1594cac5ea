"""What a forked child must not end: its parent's threads, by way of garbage that its collector finds."""

from __future__ import annotations

import gc
import os
import sys
import threading
from datetime import timedelta
from typing import Any

from torch.distributed import HashStore, ProcessGroupGloo

from elastic_checkpoint.forks import leave_garbage_to_parents
from tests.kit.ranks import returned, run_ranks

FORKS = 20


class Cycle:
    """Garbage, once nobody holds it, that only a collector finds. It may be one that says so when it ends."""

    def __init__(self, holds: Any = None) -> None:
        self.holds, self.itself = holds, self


def a_gloo_group() -> ProcessGroupGloo:
    """Of one rank, with the thread of its device: it is joined when the last word to the group is gone."""
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._timeout = timedelta(seconds=10)
    return ProcessGroupGloo(HashStore(), 0, 1, options)


def forks_while_a_broken_group_is_garbage(rank: int, world_size: int) -> list[int]:
    leave_garbage_to_parents()
    gc.collect()
    gc.disable()
    Cycle(a_gloo_group())
    gc.enable()
    ended = []
    for _ in range(FORKS):
        pid = os.fork()
        if pid == 0:
            gc.collect()
            os._exit(0 if gc.isenabled() else 3)
        ended.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    return ended


def test_a_child_collects_no_garbage_of_its_parent() -> None:
    assert returned(run_ranks(forks_while_a_broken_group_is_garbage, 1, within_s=60.0)) == [[0] * FORKS]


def forks_in_threads(rank: int, world_size: int) -> tuple[bool, bool, set[int]]:

    ended: list[int] = []
    sys.setswitchinterval(1e-5)

    def many(on: bool) -> None:
        for _ in range(FORKS):
            pid = os.fork()
            if pid == 0:
                os._exit(0 if gc.isenabled() == on else 3)
            ended.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    threads = [threading.Thread(target=many, args=(True,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    on = gc.isenabled()
    gc.disable()
    many(False)
    return on, gc.isenabled(), set(ended)


def test_collectors_are_as_the_parent_s_was() -> None:
    """In parent and child, after forks of several threads at once, too, and where a script has switched it off."""
    assert returned(run_ranks(forks_in_threads, 1, within_s=60.0)) == [(True, False, {0})]
