"""A notice to `elastic run`, at any moment: everything ends, in order, and a hook has its time."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.kit.agents import STAY, WITHIN_S, Here, Run, meet

pytestmark = pytest.mark.nightly(sample=3, of="notices to an agent")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_notice_to_the_agent_ends_everything_in_order(run: Run, number: signal.Signals) -> None:
    """Ctrl-C with 130, so that `elastic run ... && upload` uploads nothing; a scheduler's notice with 0."""
    launch = run(STAY, "--nproc-per-node=2")
    Here(launch).wait(2)
    launch.send(number)
    assert launch.finish(within_s=WITHIN_S) == (130 if number == signal.SIGINT else 0)
    assert f"{number.name}: the 2 workers of this node leave" in launch.output


def test_a_notice_during_the_start_ends_everything_too(run: Run, tmp_path: Path) -> None:
    (tmp_path / "slow_import.py").write_text(f"import time\nopen({str(tmp_path / 'began')!r}, 'w')\ntime.sleep(600)\n")
    launch = run("import slow_import")
    launch.wait_for((tmp_path / "began").exists, "the fork server's imports", within_s=WITHIN_S)
    launch.send(signal.SIGTERM)
    assert launch.finish(within_s=WITHIN_S) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_a_notice_to_a_node_that_waits_for_others_is_a_leave_too(
    run: Run, tmp_path: Path, number: signal.Signals
) -> None:
    """Of its own with -15, it would pass --leave-status by, and the scheduler would not start it again."""
    hook = f"--on-notice=echo $ELASTIC_NOTICE_SOURCE >> {tmp_path / 'told'}"
    launch = run(STAY, *meet("2:2"), "--leave-status=75", hook)
    launch.wait_for(lambda: "waiting at" in launch.output, "a node that waits for another", within_s=WITHIN_S)
    launch.send(number)
    assert launch.finish(within_s=WITHIN_S) == 75, launch.output
    assert f"this node has left ({number.name}) before it was in the run" in launch.output
    assert (tmp_path / "told").read_text() == f"{number.name}\n"


def test_a_hook_is_called_for_a_signal_and_has_time_after_the_workers_have_left(run: Run, tmp_path: Path) -> None:
    """To order a machine takes seconds, and workers leave within a step."""
    hook = f"echo $ELASTIC_NOTICE_SOURCE >> {tmp_path / 'told'}; while ! test -e {tmp_path / 'go'}; do sleep 0.05; done"
    launch = run(STAY, f"--on-notice={hook}; echo ordered >> {tmp_path / 'told'}")
    Here(launch).wait(1)
    launch.send(signal.SIGTERM)
    launch.send(signal.SIGTERM)  # as Slurm does
    launch.wait_for(lambda: "waiting for --on-notice to end, 60 s" in launch.output, "a wait for it", within_s=WITHIN_S)
    (tmp_path / "go").touch()
    assert launch.finish(within_s=WITHIN_S) == 0
    assert (tmp_path / "told").read_text() == "SIGTERM\nordered\n"


def test_a_hook_that_does_not_end_has_until_the_machine_goes(run: Run) -> None:
    launch = run(STAY, "--on-notice=sleep 600", env={"ELASTIC_GRACE_S": "3"})
    Here(launch).wait(1)
    launch.send(signal.SIGTERM)
    assert launch.finish(within_s=WITHIN_S) == 0
    assert "waiting for --on-notice to end" in launch.output


def test_a_hook_that_fails_is_said(run: Run) -> None:
    launch = run(STAY, "--on-notice=exit 3")
    Here(launch).wait(1)
    launch.send(signal.SIGTERM)
    assert launch.finish(within_s=WITHIN_S) == 0
    assert "--on-notice ended with exit status 3; the node acts on the notice all the same" in launch.output


def test_a_second_ctrl_c_ends_at_once(run: Run) -> None:
    source = STAY.replace(
        "time.sleep(600)", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); say('deaf'); time.sleep(600)"
    )
    launch = run(source)
    launch.wait_for(lambda: "deaf" in launch.output, "a worker that ignores SIGTERM", within_s=WITHIN_S)
    launch.send(signal.SIGINT)
    launch.wait_for(lambda: "leave" in launch.output, "the notice", within_s=WITHIN_S)
    time.sleep(0.6)  # what tells a second wish from an echo is half a second; no event marks it
    launch.send(signal.SIGINT)
    assert launch.finish(within_s=WITHIN_S) == 130
    assert "interrupted twice" in launch.output
