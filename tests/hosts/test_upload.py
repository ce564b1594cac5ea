"""A host crashes while the coordinator's save is on its way to the storage."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from elastic.drill.end import End
from elastic.drill.hosts.network import host_of
from elastic_checkpoint.save.writer import WRITER_MODULE
from tests.kit.host_runs import HostRun

STEPS = 240
EVERY = 60  # steps: before the next of these saves is due there is time enough


@pytest.mark.nightly(sample=1, of="hosts in rarer trouble")
def test_survivors_go_on_before_an_upload_s_end_and_save_under_their_own_claim(
    host_run: Callable[..., HostRun], elastic_undisturbed: Callable[..., End]
) -> None:
    """The upload takes for ever: its process stands still. Whoever was asked for the claim waited for it, so that a
    crash cost an upload's time; and where it was the coordinator that waited, fewer ones could take the run from more.
    """
    run = host_run(3, nodes="1:3", steps=STEPS, script=[f"--save-every={EVERY}"])
    run.join(1, 2, 3)
    run.wait_for_steps(1, 2, 3)
    coordinator = run.workers()[0]
    first, victim = host_of(coordinator), max({1, 2, 3} - {host_of(coordinator)})
    run.wait_for("a save beside training", lambda _: steps_of(run, "saved") & steps_of(run, "staged"))
    (writer,) = writers(run, first)
    os.kill(writer, signal.SIGSTOP)
    begun = steps_of(run, "staged")
    run.wait_for("a save under way", lambda _: steps_of(run, "staged") - begun)
    step = min(steps_of(run, "staged") - begun)
    run.hosts.crash(victim)
    run.wait_for_steps(*sorted({1, 2, 3} - {victim}))
    assert step not in steps_of(run, "saved")
    os.kill(writer, signal.SIGCONT)
    run.wait_for("a save under the new claim", lambda _: steps_of(run, "saved", claim=2))
    assert min(steps_of(run, "saved", claim=2)) < step + EVERY, "what came to nothing was not made anew at once"
    end = run.finish(reference=elastic_undisturbed(steps=STEPS, seed=7).events, lost=1)

    run.assert_kept(end, ended=sorted({1, 2, 3} - {victim}))
    run.assert_only_the_step_in_flight_was_redone(end)
    assert coordinator in {event["worker"] for event in end.events if event["event"] == "finished"}, "it was evicted"


def steps_of(run: HostRun, what: str, **facts: object) -> set[int]:
    """Of the saves that are so far: "staged" beside training, "saved"."""
    events = [event for event in run.events() if event["event"] == what and facts.items() <= event.items()]
    return {event["step"] for event in events}


def writers(run: HostRun, host: int) -> list[int]:
    name = WRITER_MODULE.encode()
    return [pid for pid in run.hosts.pids(host) if name in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")]
