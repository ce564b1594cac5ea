"""A notice is used: SIGTERM and Ctrl-C end a run at a step boundary, with nothing lost and nothing done twice."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from elastic.events.event import Event
from elastic.events.reading import read_events
from tests.kit.launch import Launch

pytestmark = pytest.mark.nightly(sample=1, of="signals")

PROGRAM = "tests.kit.programs.long"
LONG, STEPS = 1_000_000, 200
WITHIN_S = 240.0


def interrupted(tmp_path: Path, workers: int | None, *numbers: signal.Signals) -> tuple[int, str, list[Event]]:
    """Runs until step 5 is applied, sends the signals without a pause, and waits for the end."""
    with Launch(PROGRAM, [tmp_path / "run", LONG, tmp_path], workers=workers) as launch:
        launch.wait_for((tmp_path / "step-5").exists, "step 5", within_s=WITHIN_S)
        for number in numbers:
            launch.send(number)
        status = launch.finish(within_s=WITHIN_S)
        return status, launch.output, read_events(tmp_path / "run")


def left_in_order(events: list[Event], workers: int) -> int:
    """At which step; every worker left there, and it is saved."""
    steps = {event["step"] for event in events if event["event"] == "left"}
    assert len([event for event in events if event["event"] == "left"]) == workers
    assert len(steps) == 1
    (step,) = steps
    assert [event["step"] for event in events if event["event"] == "saved"] == [0, step]
    assert not [event for event in events if event["event"] in ("peer_lost", "error", "finished")]
    return int(step)


def finished(output: str) -> str:
    (line,) = [line for line in output.splitlines() if line.startswith("finished ")]
    return line


@pytest.mark.parametrize("workers", [None, 2], ids=["alone", "torchrun"])
def test_sigterm_finishes_the_step_saves_and_the_same_command_goes_on_to_the_same_bytes(
    tmp_path: Path, workers: int | None
) -> None:
    status, output, events = interrupted(tmp_path, workers, signal.SIGTERM)
    assert "all is saved, and the same command goes on from here" in output
    assert status == (0 if workers is None else 1), output  # torchrun's own: it was told to end, and says so
    step = left_in_order(events, workers or 1)
    assert step >= 6
    assert output.count("handlers are as they were") == (workers or 1)

    with (
        Launch(PROGRAM, [tmp_path / "run", step + STEPS, tmp_path], workers=workers) as resumed,
        Launch(PROGRAM, [tmp_path / "whole", step + STEPS, tmp_path]) as whole,
    ):
        again, straight = resumed.succeed(within_s=WITHIN_S), whole.succeed(within_s=WITHIN_S)
    assert f"resuming after step {step} of {step + STEPS}, epoch" in again
    assert "(the launch before left in order)" in again
    assert "refuses connections" not in again
    assert finished(again) == finished(straight)


@pytest.mark.parametrize(
    "numbers",
    [(signal.SIGTERM, signal.SIGTERM), (signal.SIGINT, signal.SIGINT), (signal.SIGINT, signal.SIGTERM)],
    ids=["terminated-twice", "interrupted-twice", "both"],
)
def test_signals_that_come_twice_at_once_are_one_notice(tmp_path: Path, numbers: tuple[signal.Signals, ...]) -> None:
    """A terminal sends Ctrl-C to everyone and launchers forward it: that is no second wish."""
    status, output, events = interrupted(tmp_path, None, *numbers)

    assert status in {130 if number == signal.SIGINT else 0 for number in numbers}, output  # `train.py && upload`
    left_in_order(events, 1)


def test_one_ctrl_c_leaves_in_order_under_torchrun(tmp_path: Path) -> None:
    _, output, events = interrupted(tmp_path, 2, signal.SIGINT)

    left_in_order(events, 2)
    assert "goes on from here" in output


def test_a_second_ctrl_c_ends_a_blocked_worker_at_once(tmp_path: Path) -> None:
    """No Python handler runs while the main thread is blocked: a thread reads the signals."""
    with Launch(PROGRAM, [tmp_path / "run", LONG, tmp_path, "--stuck"]) as launch:
        launch.wait_for((tmp_path / "stuck-0").exists, "a blocked worker", within_s=WITHIN_S)
        launch.send(signal.SIGINT)
        time.sleep(0.6)  # what tells a second wish from an echo is half a second; no event marks it
        assert launch.process.poll() is None
        launch.send(signal.SIGINT)
        assert launch.finish(within_s=10) == 130
        assert "interrupted twice; ending at once, what was committed stays" in launch.output

    with Launch(PROGRAM, [tmp_path / "run", 8, tmp_path]) as resumed:
        assert finished(resumed.succeed(within_s=WITHIN_S))
