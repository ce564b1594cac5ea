"""One writer at a time: who may go on, who is refused, and what a writer that was replaced can still do (nothing)."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch

from elastic_checkpoint import Checkpointer, CheckpointError, ClaimHeld, ClaimLost
from elastic_checkpoint.runs.holder import Free, Held, Wait, decide
from elastic_checkpoint.runs.liveness import Alive, Gone, LivenessServer, Refused, Unknown, ask
from elastic_checkpoint.storage import Buffer, Storage, open_storage
from tests.kit.forkserver import Piped, piped
from tests.storage.cut import CutAfter

Make = Callable[..., Checkpointer]
Holder: TypeAlias = "subprocess.Popen[str] | Piped"
STATE = {"w": torch.arange(6.0)}

# Claims the URL given as first argument, says so, and stays until it is killed.
HOLDER = """
import sys, elastic_checkpoint
job = sys.argv[2] or None
runs = elastic_checkpoint.Checkpointer(sys.argv[1], job=job)
print(runs.claim(world={"workers": 4}).number, flush=True)
runs.save(5, {"at": 5})
print("saved", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def start() -> Iterator[Callable[..., Holder]]:
    """Starts a holder in a process of its own, `a_child` of ours or not, and waits until it has saved."""
    started: list[Holder] = []

    def run(url: Path, job: str = "", *, a_child: bool = False) -> Holder:
        command = [sys.executable, "-c", HOLDER, str(url), job]
        if a_child:
            process: Holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        else:
            process = piped(command)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        assert process.stdout.readline() == "saved\n"
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate(timeout=30)


def test_of_two_jobs_on_one_folder_exactly_one_goes_on(
    tmp_path: Path, start: Callable[..., Holder], checkpointer: Make
) -> None:
    """An accidental second launch must not kill a week-long run; the death of the first must not block the second."""
    holder = start(tmp_path)
    with pytest.raises(ClaimHeld, match="take_over=True") as caught:
        checkpointer(tmp_path).save(6, STATE)
    assert (caught.value.claim, caught.value.pid, caught.value.host) == (1, holder.pid, socket.gethostname())
    assert checkpointer(tmp_path).read().step == 5  # reading is always allowed

    holder.send_signal(signal.SIGKILL)
    holder.wait(timeout=30)
    waits: list[str] = []
    claim = checkpointer(tmp_path, grace_s=3600, log=waits.append).claim()
    assert claim.number == 2
    assert claim.resumed_from is not None
    assert claim.resumed_from.step == 5
    assert not any("waiting" in line for line in waits)


def test_a_stopped_holder_is_replaced_after_the_grace(
    tmp_path: Path, start: Callable[..., Holder], checkpointer: Make
) -> None:
    """Its port accepts, and nobody answers: no proof of death, so the grace is given."""
    holder = start(tmp_path, a_child=True)
    holder.send_signal(signal.SIGSTOP)
    os.waitpid(holder.pid, os.WUNTRACED)  # on a busy machine its threads go on, and answer, until the kernel has come
    lines: list[str] = []
    assert checkpointer(tmp_path, grace_s=0.5, log=lines.append).claim().number == 2
    assert any("silent for 0.5 s" in line for line in lines)


def test_a_restart_of_the_same_job_waits_for_its_dying_predecessor(
    tmp_path: Path, start: Callable[..., Holder], checkpointer: Make
) -> None:
    holder = start(tmp_path, "job-9")
    with pytest.raises(ClaimHeld, match="still answers"):
        checkpointer(tmp_path, job="job-9", grace_s=0.3).claim()

    def die_when_asked(line: str) -> None:
        if "waiting" in line:
            holder.kill()

    assert checkpointer(tmp_path, job="job-9", grace_s=60, log=die_when_asked).claim().number == 2


def test_a_job_that_was_taken_over_stops_at_its_next_save(tmp_path: Path, checkpointer: Make) -> None:
    old, new = checkpointer(tmp_path), checkpointer(tmp_path, take_over=True)
    old.save(10, STATE)
    assert new.claim().resumed_from == old.list()[0].id
    with pytest.raises(ClaimLost) as caught:
        old.save(11, STATE)

    assert (caught.value.ours, caught.value.newest) == (1, 2)
    assert [commit.step for commit in new.list()] == [10]
    assert old.sweep() == []


class ZombieJustBefore(CutAfter):
    """Lets another job act at the moment between the last look and the manifest."""

    def __init__(self, inner: Storage, act: Callable[[], object]) -> None:
        super().__init__(inner, 10**6)
        self.act: Callable[[], object] | None = act

    def put_new(self, key: str, data: Buffer) -> None:
        if key.startswith("commits/") and self.act is not None:
            act, self.act = self.act, None
            act()
        super().put_new(key, data)


def test_what_a_zombie_commits_late_is_never_chosen_and_hurts_nobody(tmp_path: Path, checkpointer: Make) -> None:
    """The partitioned host looked, was replaced, and committed a far later step. It is listed, marked, and swept."""
    checkpointer(tmp_path).save(10, STATE)
    new = checkpointer(tmp_path, take_over=True, keep=2, orphan_grace_s=0)
    zombie = checkpointer(ZombieJustBefore(open_storage(tmp_path), lambda: new.save(11, STATE)), take_over=True)
    with pytest.raises(ClaimLost, match="step 99 was written as that claim was taken, which goes on without it"):
        zombie.save(99, STATE)

    assert [(commit.step, commit.in_lineage) for commit in new.list()] == [(11, True), (10, True), (99, False)]
    assert new.read().step == 11
    latest = zombie.latest()
    assert latest is not None
    assert latest.step == 11
    new.save(12, STATE)
    assert [commit.step for commit in new.list()] == [12, 11]
    assert checkpointer(tmp_path, take_over=True).claim().resumed_from == new.list()[0].id


def test_a_commit_of_the_old_holder_while_a_claim_is_taken_is_kept(tmp_path: Path, checkpointer: Make) -> None:
    """Between a newcomer's reading and its claim the old holder committed: that work is not thrown away."""
    old = checkpointer(tmp_path, keep=2)
    old.save(1, STATE)

    class Slow(CutAfter):
        def put_new(self, key: str, data: Buffer) -> None:
            if key == "claims/00000002.json":
                for step in (2, 3, 4):  # and its sweep removes step 1, which the newcomer was about to name
                    old.save(step, STATE)
            self.inner.put_new(key, data)

    claim = checkpointer(Slow(open_storage(tmp_path), 10**6), take_over=True).claim()
    assert claim.number == 3
    assert claim.resumed_from is not None
    assert claim.resumed_from.step == 4


def race(url: str, ready: Any, number: int, results: Any) -> None:
    """Takes a claim when all are ready."""
    with Checkpointer(url, take_over=True) as runs:
        ready.wait(60)
        results.put((number, runs.claim().number))


def test_of_eight_processes_that_race_one_wins_each_number(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    ready, results = context.Barrier(8), context.Queue()
    racers = [context.Process(target=race, args=(str(tmp_path), ready, number, results)) for number in range(8)]
    for racer in racers:
        racer.start()
    try:
        taken = [results.get(timeout=60) for _ in racers]
    finally:
        for racer in racers:
            racer.join(timeout=30)
            racer.kill()

    assert len({claim for _, claim in taken}) == 8
    files = sorted(int(path.stem) for path in (tmp_path / "claims").iterdir())
    assert files == list(range(1, len(files) + 1))


def test_a_conditional_write_whose_answer_was_lost_still_counts_as_ours(tmp_path: Path, checkpointer: Make) -> None:
    """The retry sees its own bytes as "exists already": that is not another writer."""
    inner = open_storage(tmp_path)

    class LosesAnswers(CutAfter):
        def put_new(self, key: str, data: Buffer) -> None:
            self.inner.put_new(key, data)
            self.inner.put_new(key, data)

    assert checkpointer(LosesAnswers(inner, 10**6)).save(1, STATE).claim == 1


def test_a_claim_overwritten_by_a_racing_writer_is_lost(tmp_path: Path, checkpointer: Make) -> None:
    """What a storage without conditional writes can do: the number is ours, the record is another's."""
    saved, other = checkpointer(tmp_path), checkpointer(tmp_path / "other")
    saved.save(1, STATE)
    other.claim()
    (tmp_path / "claims" / "00000001.json").write_bytes((tmp_path / "other" / "claims" / "00000001.json").read_bytes())
    with pytest.raises(ClaimLost, match="another writer holds its number"):
        saved.save(2, STATE)


def test_a_forked_child_does_not_keep_a_dead_holder_alive() -> None:
    liveness = LivenessServer(nonce="n", job=None)
    endpoint = liveness.endpoint()
    go, gone = os.pipe()
    forked, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(gone)
        os.write(tell, b"x")  # it has run what runs in a forked child
        os.read(go, 1)  # outlives the listener, until the parent closes its end
        os._exit(0)
    try:
        os.read(forked, 1)
        assert isinstance(ask(endpoint, "n", timeout_s=30), Alive)
        liveness.close()
        assert isinstance(ask(endpoint, "n", timeout_s=30), Gone)
    finally:
        os.close(gone)
        os.waitpid(child, 0)
        for end in (go, forked, tell):
            os.close(end)


def test_answers_are_judged_by_what_they_prove() -> None:
    liveness = LivenessServer(nonce="n", job="j")
    endpoint = liveness.endpoint()
    assert ask(endpoint, "n", timeout_s=30) == Alive("j")
    assert isinstance(ask(endpoint, "another", timeout_s=30), Gone)
    here = {"port": endpoint["port"], "addresses": endpoint["addresses"]}
    assert isinstance(ask(here, "n", timeout_s=0.2), Unknown)  # another boot that advertises our own address
    near = {**here, "addresses": ["127.0.0.1", "169.254.1.1", "::1"]}
    assert isinstance(ask(near, "n", timeout_s=0.2), Unknown)  # which mean another machine there
    for nonsense in ({}, {"port": "x"}, {"port": 0, "addresses": []}, {"port": 9, "addresses": [3, None]}):
        assert isinstance(ask(nonsense, "n", timeout_s=0.2), Unknown)
    liveness.close()

    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        assert isinstance(ask({**endpoint, "port": port}, "n", timeout_s=0.2), Unknown)


def test_what_an_answer_allows() -> None:
    alive, gone, unknown, refused = Alive("job-1"), Gone("dead"), Unknown("silence"), Refused("a firewall, perhaps")
    allows = functools.partial(decide, theirs="job-1", ours="job-1", waited_s=0, grace_s=15)
    for job in (None, "", "job-2"):
        assert isinstance(allows(alive, ours=job), Held)
    assert isinstance(allows(Alive(None), theirs=None, ours=None, waited_s=99), Held)
    assert isinstance(allows(alive, waited_s=14), Wait)
    assert isinstance(allows(alive, waited_s=15), Held)
    assert allows(gone) == Free("is gone (dead)")
    assert allows(refused) == Free("is gone (a firewall, perhaps)")  # our own job's: it has been told
    for answer in (unknown, refused):
        assert isinstance(allows(answer, ours="job-2", waited_s=14), Wait)
        silent = allows(answer, ours="job-2", waited_s=15)
        assert isinstance(silent, Free)
        assert not silent.certain
        assert isinstance(allows(answer, ours="job-2", waited_s=3, sign_changed=True), Held)
    assert isinstance(allows(unknown, waited_s=14, sign_changed=True), Wait)
    assert isinstance(allows(unknown, waited_s=15, sign_changed=True), Held)


def test_nothing_is_saved_after_closing(tmp_path: Path, checkpointer: Make) -> None:
    runs = checkpointer(tmp_path)
    runs.save(1, STATE)
    runs.close()
    with pytest.raises(CheckpointError, match="make a new one"):
        runs.save(2, STATE)
