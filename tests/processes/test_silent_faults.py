"""What is wrong in one worker, of which no process dies, is found, and the worker named: drills as people run them.

The run may end, and the same command goes on from what was saved, or the others go on without that worker: either way
the end is that of the undisturbed run, which the drill's verdict is about.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from elastic.drill import command as drill_command
from elastic.drill.command import HOLDS
from elastic.events.event import Event
from elastic.events.reading import read_events
from tests.kit.forked_drill import ForkedDrill

SMALL = str(Path(__file__).parents[1] / "kit" / "programs" / "small.py")


pytestmark = pytest.mark.nightly(sample=2, of="what a run is to find")


@pytest.fixture
def drilled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., list[Event]]:
    """The events of a run with faults, of which every promise held."""

    def run(options: str, of_script: str = "") -> list[Event]:
        asked = ["--keep", f"--folder={tmp_path / 'kept'}", "--within=240", *options.split()]
        script = ["own", "--steps=16", "--save-every=4", *of_script.split()]
        status = drill_command.main([SMALL, *asked, "--", *script], drill=ForkedDrill)
        shown = capsys.readouterr().out
        assert status == HOLDS, shown
        print(shown)
        return read_events(tmp_path / "kept" / "disturbed-drill")

    return run


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ("corrupt-weight", "the same state"),
        ("corrupt-moment", "the same state"),
        ("stale-state", "the same state"),
        ("corrupt-gradient", "other gradients"),
        ("corrupt-batch", "another batch"),
        ("other-rate", "are set differently"),
    ],
)
def test_what_is_wrong_in_one_worker_is_found_and_the_worker_named(
    drilled: Callable[..., list[Event]], capsys: pytest.CaptureFixture[str], fault: str, found: str
) -> None:
    events = drilled(f"--workers=3 --{fault}=1@step=5")
    errors = [event["error"] for event in events if event["event"] == "error"]
    assert errors
    assert all(found in error and "rank 1 (on " in error for error in errors), errors
    assert "found: " in capsys.readouterr().out


def test_a_rate_that_the_coordinator_alone_has_is_not_saved(drilled: Callable[..., list[Event]]) -> None:
    """The step that it was set behind is the last before a save, from which all would go on with it."""
    events = drilled("--workers=2 --other-rate=0@step=3")
    assert [event["step"] for event in events if event["event"] == "loaded"][-1] == 0


@pytest.mark.parametrize("fault", ["other-rate=0@step=4", "corrupt-weight=0@step=4,phase=update"])
def test_what_a_coordinator_holds_alone_is_not_held_against_the_script(
    drilled: Callable[..., list[Event]], fault: str
) -> None:
    """In the first step behind a save, which whoever goes on from that save compares with what was noted of it."""
    events = drilled(f"--workers=3 --{fault}")
    assert [event["step"] for event in events if event["event"] == "loaded"][-1] == 4
    assert not [event for event in events if "IdentityMismatch" in str(event.get("error"))]


def test_a_checkpoint_that_is_missing_is_not_gone_on_from(drilled: Callable[..., list[Event]], tmp_path: Path) -> None:
    events = drilled("--workers=2 --lose-checkpoint=@step=11 --lose-all=@step=11,phase=update")
    loads = [event["step"] for event in events if event["event"] == "loaded"]
    spoilt = int((tmp_path / "kept" / "disturbed-drill" / "spoilt").read_text().split(".s")[1][:9])
    assert loads[0] == 0
    assert 0 < loads[-1] < spoilt


def test_a_worker_whose_collectives_are_out_of_step_is_replaced(drilled: Callable[..., list[Event]]) -> None:
    """No step is applied whose sums met others: what arrives has another size, or is another step's row."""
    events = drilled("--workers=3 --skip-exchange=1@step=5,phase=backward")
    struck = next(event for event in events if event["event"] == "fault")
    later = [event for event in events if event["event"] == "step_applied" and event["step"] == 15]
    assert len(later) == 3
    assert struck["worker"] not in {event["worker"] for event in later}


@pytest.mark.parametrize("fault", ["drop-message", "duplicate-message", "reorder-messages"])
def test_where_a_worker_stands_may_be_lost_doubled_or_late(drilled: Callable[..., list[Event]], fault: str) -> None:
    """Of what it says as its view ends the hub waited for ever, since it was not said again."""
    events = drilled(f"--workers=3 --{fault}=1@step=4 --kill=2@step=6 --hang-limit=5")
    first = next(event["workers"] for event in events if event["event"] == "view_formed")
    last = [event["worker"] for event in events if event["event"] == "finished"]
    assert set(first[:2]) <= set(last)


def test_what_a_worker_puts_on_the_board_of_a_view_may_come_twice(drilled: Callable[..., list[Event]]) -> None:
    drilled("--workers=3 --kill=2@step=4 --duplicate-message=1@step=4,phase=form")


@pytest.mark.parametrize("fault", ["skip-exchange", "repeat-exchange"])
def test_a_collective_that_nobody_else_comes_to_is_waited_for_until_the_deadline(
    drilled: Callable[..., list[Event]], fault: str
) -> None:
    """The step comes round again then, with all of them; or sooner, without the worker whose row was another one's."""
    events = drilled(f"--workers=3 --{fault}=1@step=5", "--timeout=8")
    assert len([event for event in events if event["event"] == "step_applied" and event["step"] == 15]) == 3
