"""What counts as left behind, what is only waiting for the next worker to remove it, and what a worker may hold."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from elastic.drill.machine import leftovers
from elastic.drill.machine.holdings import OF_A_GROUP, leaks
from elastic.drill.machine.leftovers import Snapshot
from elastic.events.event import Event


def test_the_folder_of_a_killed_worker_s_loaders_is_the_next_worker_s_to_remove(tmp_path: Path) -> None:
    """Only if workers were killed, and only once nobody holds it: an orderly end removes its own."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    before = Snapshot.take(tmp_path)
    (temporary / "elst-abc").mkdir()

    assert before.new(tmp_path, []) == ["temporary file elst-abc"]
    assert before.new(tmp_path, [], killed=True) == []
    held = os.open(temporary / "elst-abc", os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    assert before.new(tmp_path, [], killed=True) == ["temporary file elst-abc"]
    os.close(held)
    (temporary / "forgotten").touch()
    assert before.new(tmp_path, [], killed=True) == ["temporary file forgotten"]


def test_shared_memory_is_the_launch_s_where_it_names_one_of_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any program may make any other meanwhile, and a kill within sem_open leaves a name that tells nothing."""
    monkeypatch.setattr(leftovers, "SHARED_MEMORY", tmp_path)
    pid = os.getpid()
    before = Snapshot.take(tmp_path)
    ours = tmp_path / f"torch_{pid}_12_0"
    names = ["sem.mp-of_somebody", "sem.Ab3xYz", "psm_3f", f"torch_{pid}0_12_0", f"torch_{pid}_of_a_drill", ours.name]
    for name in names:
        (tmp_path / name).touch()
    assert before.new(tmp_path, [pid]) == [f"shared memory {ours}", f"shared memory {tmp_path}/torch_{pid}_of_a_drill"]
    with ours.open():
        assert len(before.new(tmp_path, [pid])) == 1  # of a process that has the number now
    before.remove([pid])
    assert sorted(os.listdir(tmp_path)) == sorted(names[:4])


def look(generation: int, size: int, sockets: int, *, rank: int = 1, last: bool = False, **more: Any) -> Event:
    common = {"t": float(generation), "worker": "w1", "rank": rank, "world_size": size, "generation": generation}
    holds = {"descriptors": 20 + sockets, "sockets": sockets, "threads": 8, "writers": 0}
    return {**common, "event": "held", **holds, "last": last, **more}


TORN: Event = {"t": 2.0, "worker": "w1", "event": "peer_lost", "error": "it did not end after a peer hung up"}


@pytest.mark.parametrize(
    ("events", "kinds"),
    [
        ([look(1, 4, 9), look(1, 4, 9), look(2, 3, 7), look(3, 4, 9, last=True)], set()),
        ([look(1, 4, 9), look(1, 4, 9), look(2, 3, 7), look(3, 4, 10, last=True)], {"sockets", "descriptors"}),
        ([look(1, 4, 9), look(1, 4, 11), look(2, 4, 11, last=True)], set()),
        (
            [look(1, 4, 9), look(1, 4, 9), look(2, 4, 10), look(2, 4, 9, last=True)],
            set(),
        ),  # a group's end takes a moment
        (
            [look(1, 4, 9), look(1, 4, 9), look(2, 3, 12, last=True)],
            {"sockets", "descriptors"},
        ),  # fewer workers need no more
        ([look(1, 3, 7), look(1, 3, 7), look(2, 4, 9, last=True)], set()),  # each peer has a connection
        ([look(1, 4, 9), look(1, 4, 9), look(2, 4, 9, threads=9, last=True)], {"threads"}),
        (
            [look(1, 4, 9), look(1, 4, 9), look(2, 4, 10, rank=0, threads=9, writers=1, last=True)],
            set(),
        ),  # the writer of checkpoints
        (
            [look(1, 4, 9), look(1, 4, 9), look(2, 4, 16, threads=14, writers=1, last=True, replica="n-1")],
            set(),
        ),  # it saves with the others of its replica
        (
            [look(1, 4, 9), look(1, 4, 9), look(2, 4, 17, threads=15, writers=1, last=True, replica="n-1")],
            {"sockets", "threads"},
        ),
        ([look(1, 4, 9), look(1, 4, 9), TORN, look(2, 4, 9 + OF_A_GROUP, last=True)], set()),
        ([look(1, 4, 9), look(1, 4, 9), TORN, look(2, 4, 10 + OF_A_GROUP, last=True)], {"sockets", "descriptors"}),
        ([look(1, 4, 6), look(2, 4, 9), look(2, 4, 9), look(3, 4, 9, last=True)], set()),  # a peer died there
        ([look(1, 4, 9), look(1, 4, 9), look(2, 4, 30)], set()),  # it was killed there
    ],
)
def test_a_worker_holds_no_more_at_the_end_than_in_its_first_view_of_as_many(
    events: list[Event], kinds: set[str]
) -> None:
    found = leaks(events)
    told = [one.message.partition(" in its last view")[0].rpartition(" ")[2] for one in found]
    assert sorted(told) == sorted(kinds)
    assert all(len(one.evidence) == 2 for one in found)


def test_a_collective_that_a_misled_worker_was_not_in_may_be_kept() -> None:
    """gloo holds what the others had in flight as that worker's error ended the view."""
    lost = {**TORN, "generation": 1, "error": "the all-gather failed: Connection closed by peer"}
    events = [look(1, 4, 9), look(1, 4, 9), lost, look(2, 4, 11, last=True)]
    assert leaks(events, misled={(0, 1)}) == []
    assert leaks(events) != []
