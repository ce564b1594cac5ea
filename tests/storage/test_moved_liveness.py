"""A run goes on under its claim when the machine leaves whose agent answered for it: another one answers then."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from elastic_checkpoint import Checkpointer, ClaimHeld
from elastic_checkpoint.cli.housekeeping import sweep_as_claimant
from elastic_checkpoint.runs.liveness import (
    Alive,
    Answer,
    Gone,
    LivenessEndpoint,
    LivenessServer,
    Refused,
    Unknown,
    ask_both,
    read_moved,
)
from elastic_checkpoint.storage import open_storage

Make = Callable[..., Checkpointer]
STATE = {"w": torch.arange(4.0)}
FIRST, NEXT = "1" * 32, "2" * 32


@pytest.fixture
def servers() -> Iterator[tuple[LivenessServer, LivenessServer]]:
    """Of the agent that had the hub first, and of the next one."""
    with (
        contextlib.closing(LivenessServer(nonce=FIRST, job="run")) as first,
        contextlib.closing(LivenessServer(nonce=NEXT, job="run")) as following,
    ):
        yield first, following


def _handed_over(url: Path, checkpointer: Make, servers: tuple[LivenessServer, LivenessServer]) -> Checkpointer:
    """A run whose first agent has left in order: its coordinator saves, and the next agent answers for it."""
    first, following = servers
    live = checkpointer(url, job="run", answers=(FIRST, first.endpoint()))
    live.save(5, STATE)
    checkpointer(url).move_liveness(live.claim(), answers=(NEXT, following.endpoint()))
    first.close()
    return live


@pytest.mark.parametrize(("job", "grace_s"), [("run", 0.5), ("another", 3600.0), (None, 3600.0)])
def test_a_second_launch_where_the_first_agent_was_does_not_evict_the_run(
    tmp_path: Path, checkpointer: Make, servers: tuple[LivenessServer, LivenessServer], job: str | None, grace_s: float
) -> None:
    """On that machine it saw that the process in the claim had ended: it had the next claim in 0.04 s, and the run,
    which was well, lost it at its next save."""
    live = _handed_over(tmp_path, checkpointer, servers)
    with pytest.raises(ClaimHeld):
        checkpointer(tmp_path, job=job, grace_s=grace_s).claim()
    assert live.save(6, STATE).claim == 1


def test_once_the_next_agent_is_gone_too_the_claim_is_free(
    tmp_path: Path, checkpointer: Make, servers: tuple[LivenessServer, LivenessServer]
) -> None:
    _handed_over(tmp_path, checkpointer, servers)
    servers[1].close()
    assert checkpointer(tmp_path, job="run", grace_s=3600.0).claim().number == 2
    assert read_moved(open_storage(tmp_path), 1) is None, "it is read no more"


def test_workers_of_the_agent_that_answers_now_are_not_kept_out_by_it(
    tmp_path: Path, checkpointer: Make, servers: tuple[LivenessServer, LivenessServer]
) -> None:
    """All of the run's state is lost with its workers, and those that replace them begin from storage."""
    _handed_over(tmp_path, checkpointer, servers)
    anew = checkpointer(tmp_path, job="run", grace_s=3600.0, answers=(NEXT, servers[1].endpoint()))
    assert anew.claim().number == 2


def test_an_older_writer_does_not_take_the_claim_for_a_dead_ones(
    tmp_path: Path, checkpointer: Make, servers: tuple[LivenessServer, LivenessServer]
) -> None:
    """Nothing was saved under the newer claim yet, and the agent that it names is gone: it looked as if its taker had
    died on the way."""
    before = checkpointer(tmp_path, job="run")
    before.save(1, STATE)
    live = checkpointer(tmp_path, job="run", take_over=True, answers=(FIRST, servers[0].endpoint()))
    assert live.claim().number == 2
    live.move_liveness(live.claim(), answers=(NEXT, servers[1].endpoint()))
    servers[0].close()
    with pytest.raises(Exception, match="claim 2 is newer"):
        before.save(2, STATE)
    assert live.save(2, STATE).claim == 2


def test_nobody_sweeps_under_a_run_whose_liveness_endpoint_has_moved(
    tmp_path: Path, checkpointer: Make, servers: tuple[LivenessServer, LivenessServer]
) -> None:
    _handed_over(tmp_path, checkpointer, servers)
    with pytest.raises(ClaimHeld, match="it answers"):
        sweep_as_claimant(open_storage(tmp_path), print, keep=2, orphan_grace_s=0.0, insist=True, deadline_s=5.0)


@pytest.mark.parametrize("lies_there", [b"", b"{}", b"\xff" * 100, b"x" * (1 << 17)])
def test_what_is_no_liveness_endpoint_keeps_nobody_out(tmp_path: Path, checkpointer: Make, lies_there: bytes) -> None:
    checkpointer(tmp_path).save(1, STATE)
    storage = open_storage(tmp_path)
    storage.put("claims/00000001.beacon", lies_there)
    assert read_moved(storage, 1) is None


def test_of_two_answers_the_one_that_leaves_more_doubt_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Answer] = [Alive("run"), Unknown("silent"), Refused("refuses"), Gone("ended")]
    by_nonce: dict[str, Any] = {}
    monkeypatch.setattr("elastic_checkpoint.runs.liveness.ask", lambda endpoint, nonce, timeout_s: by_nonce[nonce])
    for doubt, own in enumerate(answers):
        for other, moved in enumerate(answers):
            by_nonce |= {FIRST: own, NEXT: moved}
            found = ask_both({}, FIRST, LivenessEndpoint(NEXT, {}), timeout_s=1.0)
            assert found == answers[min(doubt, other)]
