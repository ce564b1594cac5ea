"""What one worker does for all between two steps, such as writing a file: by the coordinator, while the others wait.

Where it is lost meanwhile, the coordinator of the next view does it again, from the beginning; once all have met behind
it, it is done, and nobody does it again before the next update. So what it writes is there when any worker goes on.
"""

from __future__ import annotations

from collections.abc import Callable

from elastic.group.fingerprint import Kind
from elastic.loop.recovery import Recovery
from elastic.loop.session import Session


class OnCoordinator:
    """Has functions called on the coordinator, for as long as one worker's session is open.

    all_are_past  this worker joined late, and its script has not come to its loop: the others have done it
    """

    def __init__(self, session: Session, recovery: Recovery) -> None:
        self._session = session
        self._state = session.state
        self._recovery = recovery
        self.all_are_past = False
        self._called_on = range(session.context.config.replica_size)  # those who hold the coordinator's state together

    def call(self, function: Callable[[], object]) -> None:
        """Call `function` if this worker is the coordinator, while the others wait; see Run.on_coordinator."""
        session, state = self._session, self._state

        def done() -> bool:
            if session.view_group.rank in self._called_on:
                with session.phases.long_section():
                    function()
            self._recovery.wait_for_all(Kind.ON_COORDINATOR, None)
            return True

        state.calls += 1
        if self.all_are_past:
            return
        if state.finished:  # no other view will come
            if session.view_group.rank in self._called_on:
                function()
            return
        name = f"on the coordinator {state.calls}{'' if state.looped else ' before the loop'}"
        self._recovery.agree(name, done, f"waiting for the coordinator after step {state.step - 1}")
