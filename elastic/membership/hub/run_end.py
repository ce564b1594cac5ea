"""When a run ends, and whether it has failed; how long it waits for nodes before it does.

a worker finishes                            the run has come to its end, and those who are left come to theirs
a bug, a standstill, too few nodes too long  it is to end: workers have a while to save what they hold
nobody is left                               it ends as what was lost last has it
"""

from __future__ import annotations

from collections.abc import Collection

from elastic.membership.hub.orders import Outbox
from elastic.membership.hub.workers import Worker, WorkerStatus
from elastic.membership.messages.messages import End, Exited
from elastic.membership.rules.endings import KILLED
from elastic.membership.rules.leaving import SAVED_NOTHING

OVER = "the run is over"
_IN_A_VIEW = (WorkerStatus.MEMBER, WorkerStatus.BETWEEN_VIEWS, WorkerStatus.LEAVING)
_SHORT_S = 1.0  # a node whose workers are being replaced is back by then


class RunEnd:
    """The end of one run, and what speaks for it, as far as the hub has heard.

    ending_s   how long workers may take to come to a clean end
    begun      it has had workers
    finished   a worker has come to the run's end
    saved      the newest step of which a commit was seen
    loss       why the run will have failed if nobody goes on with it
    why        the run is to end, and why; None: it is not
    is_over    all were told, failed or not; last_word is what workers are told
    moved_on   why others have gone on with the run, and nobody here has a part in it
    """

    def __init__(self, ending_s: float) -> None:
        self._ending_s = ending_s
        self.begun = self.finished = False
        self.saved = SAVED_NOTHING
        self.loss: str | None = None
        self.why: str | None = None
        self._remedy: str | None = None
        self._since_s = 0.0
        self._repeated = False  # one failure, which is why the run ends
        self.is_over = self.failed = False
        self.last_word = End(why="")
        self.moved_on: str | None = None

    def is_saved(self, step: int) -> None:
        """Note that the commit of this step was seen."""
        self.saved = max(self.saved, step)

    def finishes(self) -> None:
        """Note that a worker has come to the run's end."""
        if not self.finished:
            self.finished, self.loss = True, None

    def goes_on(self) -> None:
        """Note that the run goes on from what others hold, or have saved: nothing is lost."""
        if not self.finished:
            self.loss = None

    def ended_as_told(self, worker: Worker, exited: Exited, what: str) -> None:
        """Note whether a worker that was told to leave has ended with what nobody has saved."""
        saved = worker.safe or 0 <= worker.step <= self.saved
        in_order = saved or (exited.code == 0 and not worker.failed)
        if worker.status in _IN_A_VIEW and not in_order and not self.finished:
            self.loss = f"{worker.id}, told to leave, ended before what it held was saved: {what}"

    def ended_after(self, worker: Worker, exited: Exited, what: str) -> None:
        """Note whether a worker that had finished has failed. To be killed is no failure of its own."""
        if worker.failed or exited.code or exited.hung or (exited.signal and exited.signal != KILLED):
            self.loss = self.loss or f"{worker.id} failed after the run had finished: {what}"

    def begins(self, now_s: float, why: str, *, remedy: str | None = None, repeated: bool = False) -> None:
        """Have the run end, if it is not to end already.

        remedy    what people may do about it; the text then says what is saved by the time that all go
        repeated  one failure, which is why
        """
        self._repeated |= repeated
        if self.why is None:
            self.why, self._remedy, self._since_s = why, remedy, now_s

    def text(self, farthest: int) -> str:
        """Return why the run ends, once nobody saves. farthest: how many steps are applied; below 0: nobody says."""
        if self.why is None or self._remedy is None:
            return self.why or ""
        if farthest < 0:
            state = "what was committed is whole, and nobody here is known to hold more"
        elif farthest == 0:
            state = "no step is applied yet"
        elif farthest <= self.saved:
            state = f"what was done is saved, {farthest} steps"
        else:
            state = f"of {farthest} steps the newest are not known to be saved; what was committed is whole"
        return f"{self.why}\n  state  {state}\n  next   {self._remedy}"

    def is_due(self, now_s: float) -> bool:
        """Return whether those who train have had time to come to a boundary."""
        return now_s - self._since_s > self._ending_s

    def is_overdue(self, now_s: float) -> bool:
        """Return whether those who save have had time to."""
        return now_s - self._since_s > 2 * self._ending_s

    def comes(self, *, failed: bool, why: str) -> None:
        """Note that the run is over."""
        self.is_over, self.failed, self.last_word = True, failed, End(why=why, repeated=self._repeated)

    def moves_on(self, why: str) -> None:
        """Note that the run is over here, as others have gone on with it."""
        self.is_over, self.moved_on = True, why


class Shortage:
    """The wait of a run for nodes that it needs for a view.

    needed  nodes: below it no view is formed
    wait_s  how long the run waits for them, before it ends
    """

    def __init__(self, end: RunEnd, out: Outbox, *, needed: int, wait_s: float) -> None:
        self._end = end
        self._out = out
        self._needed = needed
        self._wait_s = wait_s
        self._since_s: float | None = None
        self._said = False

    def is_short(self, nodes: Collection[str]) -> bool:
        """Return whether these nodes are fewer than a view needs."""
        return len(nodes) < self._needed

    def enough(self, nodes: Collection[str]) -> bool:
        """Return whether a view can be formed; a run that is finished needs none but those who are left."""
        return self._end.finished or not self.is_short(nodes)

    def waits(self, now_s: float, there: Collection[str]) -> bool:
        """Wait for more nodes, and end the run where that takes too long; return whether people were just told."""
        nodes = sorted(there)
        if self._since_s is None:
            self._since_s, self._said = now_s, False
        elif now_s - self._since_s > _SHORT_S and not self._said:
            self._said = True  # the wait may be long
            have = f"{len(nodes)} of at least {self._needed} nodes are here ({', '.join(nodes)})"
            self._out.tell_people(f"{have}; waiting for the others")
            return True
        elif now_s - self._since_s > self._wait_s:
            self._end.begins(
                now_s,
                f"{len(nodes)} of at least {self._needed} nodes were here for {self._wait_s:.0f} s\n"
                f"  found  {', '.join(nodes)}",
                remedy="start the missing nodes with the same command, allow fewer with --nnodes=MIN:MAX, or wait "
                "longer\n         with --wait-for-nodes=SECONDS",
            )
        return False

    def is_over(self, now_s: float) -> float:
        """End the wait; return for how many seconds the run was short of nodes."""
        short_s = now_s - self._since_s if self._since_s is not None else 0.0
        self._since_s = None
        return short_s
