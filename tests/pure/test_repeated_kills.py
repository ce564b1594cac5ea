"""Kills from outside cost nothing but time, unless they come at one step every time: then a run ends, and says why."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastic.launch.workers.memory import OomKills, oom_kills, sentence, struck
from elastic.membership.rules.endings import KILLED, Bug, Ended, Endings
from elastic.membership.rules.kills import ENOUGH, Enough, Kills, Replace
from tests.kit.stage import Stage, trains

HERE = ("A", 0)
AT = "in this control group"


def killed(
    kills: Kills, step: int | None, *, applied: int = 0, lived_s: float = 1.0, oom: bool = False
) -> float | None:
    """After how many seconds another one comes; None: enough."""
    follows = kills.killed(HERE, step=step, applied=applied, lived_s=lived_s, out_of_memory=oom)
    assert isinstance(follows, Replace | Enough)
    return follows.after_s if isinstance(follows, Replace) else None


def test_kills_at_one_step_are_replaced_later_and_later_until_it_is_enough() -> None:
    kills = Kills()
    assert [killed(kills, 5, applied=5) for _ in range(ENOUGH)] == [0.0, 0.0, 1.0, 2.0, 4.0, 8.0, None]


def test_kills_at_other_steps_are_replaced_at_once_however_many_come() -> None:
    """Spot machines may take a worker a thousand times, also while the run goes back to what is saved."""
    kills = Kills()
    assert {killed(kills, step, applied=step) for step in range(1000)} == {0.0}
    assert {killed(kills, 5 + turn % 2, applied=6) for turn in range(1000)} == {0.0}


def test_a_step_that_was_applied_once_is_not_to_blame() -> None:
    kills = Kills()
    assert {killed(kills, 5, applied=6) for _ in range(20)} == {0.0}


def test_before_its_first_step_only_the_kernel_says_that_it_is_enough() -> None:
    """A script without a Run has no steps, and may be killed as often as somebody likes; but not in a busy loop."""
    kills = Kills()
    assert [killed(kills, None) for _ in range(20)] == [0.0, 0.0] + 18 * [1.0]
    assert killed(kills, None, lived_s=61.0) == 0.0
    assert [killed(kills, None, oom=True) for _ in range(ENOUGH - 1)][-1] is None


def test_the_run_ends_with_what_the_kernel_says() -> None:
    stage = trains(1)
    worker = "A0"
    for after_s in (0, 0, 1, 2, 4, 8):
        stage.killed(worker, step=5)
        if after_s:
            assert stage.to("start over") == ""
            assert f"in {after_s} s" in stage.only("status")["text"]
            assert stage.later(after_s - 0.1).orders == []
            stage.later(0.2)
        assert stage.to("start") == "A"
        worker = stage.started("A0")
        assert stage.ready(worker).view == worker
    why = stage.killed(worker, step=5, kernel="its out-of-memory killer took 1", out_of_memory=True).only(
        "run_is_over"
    )["why"]
    assert "was killed (SIGKILL) at step 5, as 6 before it in its place" in why
    assert "kernel  its out-of-memory killer took 1" in why
    assert "micro_batch_size" in why


def test_others_train_on_while_a_slot_waits_and_if_it_is_given_up() -> None:
    """They neither wait for it to join, nor end with it."""
    stage = trains(2, gather_s=0.3)
    stage.killed("A1", step=7)
    assert stage.over("A0").view == "A0"
    for after_s in (0, 1, 2, 4, 8):
        stage.later(after_s)
        stage.killed(stage.started("A1"), step=None, out_of_memory=True)
    for after_s in (16, 30):
        assert stage.to("over end broken") == ""
        stage.later(after_s)
        if stage.to("start") == "A":
            stage.killed(stage.started("A1"), step=None, out_of_memory=True)
    assert "the run goes on without it" in stage.only("status")["text"]
    assert stage.later(60).to("start over end") == ""


def test_a_run_that_waits_for_a_slot_alone_is_not_over_and_waits_for_nobody_else() -> None:
    stage = Stage(2, start_s=120)
    stage.begin("A0 A1")
    for _ in range(3):
        for slot in ("A0", "A1"):
            stage.killed(slot + "'" * (stage.starts[slot] - 1), step=None)
            if stage.to("start"):
                stage.started(slot)
    assert stage.to("run_is_over") == ""
    stage.later(1)
    assert stage.to("start") == "A A"


@pytest.mark.parametrize(
    ("cgroup", "file", "text", "found"),
    [
        ("0::/pod/one", "sys/fs/cgroup/pod/one/memory.events", "low 0\noom 4\noom_kill 3\n", OomKills(AT, 3)),
        ("0::/of/the/host", "sys/fs/cgroup/memory.events", "oom_kill 2\n", OomKills(AT, 2)),
        ("4:memory:/pod", "sys/fs/cgroup/memory/pod/memory.oom_control", "under_oom 0\noom_kill 5\n", OomKills(AT, 5)),
        ("0::/", "proc/vmstat", "nr_free_pages 8\noom_kill 1\n", OomKills("on this machine", 1)),
        ("0::/", "proc/other", "", None),
    ],
)
def test_the_kernel_s_counters_are_found(
    tmp_path: Path, cgroup: str, file: str, text: str, found: OomKills | None
) -> None:
    for name, content in {"proc/self/cgroup": f"{cgroup}\n", file: text}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert oom_kills(tmp_path) == found


def test_what_the_kernel_took_before_is_not_this_worker_s() -> None:
    before, after = OomKills(AT, 3), OomKills(AT, 4)
    assert struck(before, after)
    assert not struck(after, after)
    assert not struck(None, after)
    assert sentence(before, after, 3 << 20) == (
        "its out-of-memory killer took 1 in this control group while that worker lived; "
        "the worker had used 3 MiB at most"
    )
    assert "took nothing in this" in str(sentence(after, after, 0))
    assert sentence(None, None, 0) is None


def test_a_kill_is_no_failure_that_max_restarts_counts() -> None:
    """Spot machines may take a worker a hundred times."""
    endings = Endings(restarts_max=0, window_s=3600)
    for step in range(100):
        killed = Ended(worker=f"w{step}", slot=("A", 0), what=KILLED, step=step, killed=True, lived_s=60.0)
        endings.applied(step)
        assert isinstance(endings.follows(step, killed), Replace)
    failed = Ended(worker="w", slot=("A", 0), what="ValueError: bad", step=100)
    assert isinstance(endings.follows(100, failed), Bug)
