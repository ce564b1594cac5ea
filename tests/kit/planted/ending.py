"""Bugs in how a run ends, and in what it leaves on the machine."""

from __future__ import annotations

from typing import Any

from tests.kit.planted.bug import Act, planted


@planted("elastic.loop.run_state:RunState.look_for_end", plan="alone", caught_by={"finished"})
def end_a_step_early(right: Any, act: Act) -> Any:
    """A run ends before its last step, and reports success."""

    def look_for_end(self: Any) -> None:
        right(self)
        if self.step == self.total_steps - 1:
            act()
            self.finished = True

    return look_for_end


@planted("elastic.loop.session:Session.close", plan="alone", caught_by={"left"})
def leave_an_orphan(right: Any, act: Act) -> Any:
    """A process that a worker has started outlives the run."""

    def close(self: Any, **how: Any) -> None:
        import subprocess

        act()
        subprocess.Popen(["sleep", "600"], start_new_session=True)
        right(self, **how)

    return close


@planted("elastic.loop.view_group:ViewGroup._retire", plan="lost", caught_by={"left"})
def keep_every_view_s_connections(right: Any, act: Act) -> Any:
    """The connections and threads of a view that is over are never given back, and grow with each loss."""
    kept = []

    def retire(self: Any, **how: Any) -> None:
        if self._grouped:
            act()
            kept.append(self.group)
            self._grouped = False

    return retire
