"""A host's wall clock is wrong, or is set while the run goes on: nothing may depend on it."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest

from elastic.drill.end import End
from tests.kit.host_runs import HostRun

STEPS = 240

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler, for a clock that is wrong")


@pytest.mark.nightly(sample=1, of="hosts in rarer trouble")
@pytest.mark.parametrize("host", [1, 2])
def test_a_clock_that_is_an_hour_off_changes_nothing(
    host_run: Callable[..., HostRun], elastic_undisturbed: Callable[..., End], host: int
) -> None:
    """An hour ahead at first, then behind; and a joiner finds its way in."""
    run = host_run(3, nodes="1:3", steps=STEPS)
    run.hosts.set_clock(host, 3600)
    run.join(1, 2)
    view = run.wait_for_steps(1, 2)
    run.hosts.set_clock(host, -3600)
    assert run.wait_for_steps(1, 2) == view
    run.join(3)
    run.wait_for_steps(1, 2, 3)
    end = run.finish(reference=elastic_undisturbed(steps=STEPS, seed=7).events, lost=0)

    run.assert_kept(end, ended=[1, 2, 3])
    assert end.verdict.redone == 0
