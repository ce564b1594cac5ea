"""A host stands still, is given up, and goes on later with its old processes: it changes nothing any more."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from elastic.drill.end import End
from tests.kit.host_runs import HostRun

STEPS = 240


@pytest.mark.nightly(sample=2, of="hosts that come, crash or fall silent")
@pytest.mark.parametrize("host", [3, 1])
@pytest.mark.parametrize("cut", [True, False], ids=["its network, too", "its kernel still answers"])
def test_a_host_that_stood_still_is_told_that_it_was_moved_on_from(
    host_run: Callable[..., HostRun], elastic_undisturbed: Callable[..., End], host: int, cut: bool
) -> None:
    run = host_run(3, nodes="1:3", steps=STEPS)
    run.join(1, 2, 3)
    before = run.wait_for_steps(1, 2, 3)
    old = [worker for worker in run.workers() if worker.startswith(f"h{host}-")]
    run.hosts.freeze(host)
    if cut:
        run.hosts.cut(host)
    others = sorted({1, 2, 3} - {host})
    assert run.wait_for_steps(*others) == before + 1
    seen = len(run.events())
    run.hosts.heal(host)
    run.hosts.thaw(host)
    run.wait_for("the end of the old worker", lambda _: not run.alive(old[0]))
    end = run.finish(reference=elastic_undisturbed(steps=STEPS, seed=7).events, lost=1)

    assert end.verdict.ok, f"{end.verdict}\n{run.state()}"
    late = {e["event"] for e in end.events[seen:] if e["worker"] in old}
    assert not late & {"saved", "claimed"}
    assert [e["worker"] for e in end.events if e["event"] == "moved_on"] == old
    applied = [e for e in end.events[seen:] if e["worker"] in old and e["event"] == "step_applied"]
    assert len(applied) <= 1, applied  # the step in flight: what it takes for it may have come before it stood still
    run.assert_only_the_step_in_flight_was_redone(end)
