"""Pure parts of the launcher: when a worker is stuck, and what becomes of its output."""

from __future__ import annotations

import math
import os

import pytest

from elastic.launch.workers.logs import LogRules, Logs
from elastic.launch.workers.watch import Doubts, Patience, sighting
from elastic.membership.progress import BYTES, LIMITED, Phase, Progress, Record
from elastic.membership.stalls import Sighting


def computing(**other: float) -> Record:
    return Record(**{"generation": 1, "step": 7, "phase": Phase.COMPUTING, "since_s": 100.0, "limit_s": 30.0} | other)  # type: ignore[arg-type]


def seen(now_s: float, record: Record, *, not_before_s: float = 0.0, patience: float = 1.0) -> Sighting:
    return sighting(now_s, "w", record, not_before_s=not_before_s, patience=patience)


@pytest.mark.parametrize("phase", LIMITED)
def test_a_worker_that_gives_no_sign_for_too_long_is_stuck(phase: Phase) -> None:
    """In whatever calls the script's code, or storage: evaluating and saving too."""
    assert not seen(130.0, computing(phase=phase)).stuck
    assert seen(130.5, computing(phase=phase)).stuck
    assert not seen(130.5, computing(phase=phase), patience=2.0).stuck


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.WAITING, Phase.ENDED])
def test_waiting_is_not_mistaken_for_a_hang(phase: Phase) -> None:
    assert not seen(1e6, computing(phase=phase)).stuck


def test_a_stopped_process_is_found_at_the_second_look() -> None:
    """One look may catch a debugger that stops it for a moment."""
    patience = Patience()
    assert [patience.stopped(state) for state in "TSTT"] == [False, False, False, True]


def test_a_worker_that_waits_for_a_processor_is_not_quiet() -> None:
    """On a machine with four busy loops a backward pass of 2.9 s was taken for a hang, twice (1 of 1)."""
    patience = Patience()
    assert patience.held_up(4, 10.0) == 0.0
    assert patience.held_up(4, 12.5) == 2.5
    assert patience.held_up(5, 13.0) == 0.0
    held_up = sighting(131.0, "w", computing(), not_before_s=0.0, held_up_s=2.5)
    assert (held_up.quiet_s, held_up.stuck) == (28.5, False)


def test_a_watcher_that_was_held_up_itself_accuses_nobody() -> None:
    """A machine that was suspended, or a frozen container, stops all of them."""
    assert not seen(5000.0, computing(), not_before_s=4990.0).stuck


def test_what_may_compile_or_moves_the_whole_state_has_ten_times_as_long() -> None:
    fd = os.memfd_create("record")
    os.ftruncate(fd, BYTES)
    progress = Progress(fd, hang_s=30.0)

    def limit_s(phase: Phase) -> float:
        progress.at(phase, generation=1, step=7)
        return Record.read(fd).limit_s

    assert [limit_s(phase) for phase in (Phase.COMPUTING, Phase.SAVING, Phase.LOADING, Phase.WAITING)] == [
        300.0,
        300.0,
        300.0,
        math.inf,
    ]
    progress.step_done()
    progress.step_done()
    assert [limit_s(phase) for phase in (Phase.COMPUTING, Phase.READING, Phase.EVALUATING, Phase.SAVING)] == [
        30.0,
        30.0,
        30.0,
        300.0,
    ]
    os.close(fd)


def test_a_worker_that_was_killed_for_a_hang_may_only_have_been_slow() -> None:
    """Whoever takes the step over gets twice the time, or nobody ever gets through it."""
    doubts = Doubts()
    doubts.killed(200.0, computing(), 30.0)
    doubts.look(210.0, [computing(), computing(step=6)])
    assert doubts.patience(Phase.COMPUTING) == 2.0
    doubts.look(231.0, [computing()])
    doubts.look(232.0, [computing(step=8)])  # it took as long as the one before
    assert doubts.patience(Phase.COMPUTING) == 2.0
    doubts.killed(300.0, computing(step=9), 60.0)
    assert doubts.patience(Phase.COMPUTING) == 4.0


def test_a_hang_that_was_one_is_not_held_against_the_next() -> None:
    """The sixth hang of a run was found after 32 times the limit. (Random drill 102.)"""
    doubts = Doubts()
    for step in (0, 5, 5, 13, 17):
        doubts.killed(100.0 * step, computing(step=step), 30.0)
        doubts.look(100.0 * step + 3, [computing(step=step + 1)])
        assert doubts.patience(Phase.COMPUTING) == 1.0
    doubts.killed(3000.0, computing(generation=0, step=0), 30.0)
    doubts.look(3001.0, [computing(generation=0), computing(step=0)])
    assert doubts.patience(Phase.COMPUTING) == 1.0


def test_a_step_that_is_slow_for_all_workers_is_no_hang_of_the_one_that_was_killed() -> None:
    """45 s of user code every thousand steps, where 30 may be: one worker was killed each time, and the other, which
    ended 15 s later, was taken for the proof that it had hung."""
    doubts = Doubts()
    doubts.killed(130.5, computing(), 30.5, [computing(since_s=100.2), computing(phase=Phase.WAITING)])
    doubts.look(145.5, [computing(step=8)])
    assert doubts.patience(Phase.COMPUTING) == 2.0
    doubts.killed(200.5, computing(step=8), 60.5, [computing(step=8, since_s=199.0), computing(phase=Phase.WAITING)])
    doubts.look(201.5, [computing(step=9)])
    assert doubts.patience(Phase.COMPUTING) == 1.0


@pytest.mark.parametrize(
    "others", [[], [computing(step=8, phase=Phase.WAITING, since_s=100.1)]], ids=["alone", "one of two"]
)
def test_what_the_coordinator_alone_does_between_steps_is_redone_by_nobody_and_proves_no_hang(
    others: list[Record],
) -> None:
    """It wrote samples for longer than the limit: at each such step a coordinator was killed, and at the fourth a place
    was given up for ever, where one kill had been enough to learn that it takes so long."""
    doubts = Doubts()
    doubts.killed(130.5, computing(phase=Phase.BETWEEN), 30.5, others)
    doubts.look(130.7, [*others, computing(step=8)])
    assert doubts.patience(Phase.BETWEEN) == 2.0
    doubts.look(131.0, [*others, computing(step=9)])
    assert doubts.patience(Phase.BETWEEN) == 2.0


def test_hangs_between_steps_do_not_blind_the_agent_for_good() -> None:
    """Nor for hangs in steps at all, one of which may be being looked into."""
    doubts = Doubts()
    doubts.killed(0.0, computing(step=1), 30.0)
    for step in range(100):
        doubts.killed(1.0, computing(step=step, phase=Phase.BETWEEN), 30.0)
    assert (doubts.patience(Phase.BETWEEN), doubts.patience(Phase.COMPUTING)) == (16.0, 2.0)
    doubts.look(2.0, [computing(step=2)])
    assert (doubts.patience(Phase.BETWEEN), doubts.patience(Phase.COMPUTING)) == (16.0, 1.0)


def test_each_incarnation_of_a_worker_has_its_own_files(tmp_path: os.PathLike[str]) -> None:
    said: list[str] = []
    logs = Logs(LogRules(log_dir=os.fspath(tmp_path), run_id="job/7", redirects={1: 3}), say=said.append)
    assert logs.open(0, 0).fds == {}
    first, second = logs.open(1, 0), logs.open(1, 1)
    first.close()
    second.close()
    assert first.files["stdout"].parts[-3:] == ("attempt_0", "1", "stdout.log")
    assert second.files["stderr"].parts[-3:] == ("attempt_1", "1", "stderr.log")
    assert len(said) == 1


def test_teed_lines_are_marked_and_a_broken_line_waits_for_its_rest(
    tmp_path: os.PathLike[str], capsys: pytest.CaptureFixture[str]
) -> None:
    streams = Logs(LogRules(log_dir=os.fspath(tmp_path), tee=1), say=lambda _: None).open(2, 0)
    os.write(streams.fds["stdout"], b"one\ntw")
    streams.tails[0].show()
    assert capsys.readouterr().out == "[default2]:one\n"
    os.write(streams.fds["stdout"], b"o\nthree")
    streams.close()
    assert capsys.readouterr().out == "[default2]:two\n[default2]:three\n"


def test_who_goes_on_while_its_stacks_are_printed_was_only_slow() -> None:
    """An agent that learned nothing of it would be about to kill the same worker each time that it came there."""
    doubts = Doubts()
    doubts.acquitted(Phase.BETWEEN)
    assert doubts.patience(Phase.BETWEEN) == 2.0
    assert doubts.patience(Phase.COMPUTING) == 1.0
    for _ in range(20):
        doubts.acquitted(Phase.BETWEEN)
    assert doubts.patience(Phase.BETWEEN) < 2.0**20
