"""Where a run stands on this worker: what it has applied, what the last exchange gave, and what was agreed on since.

What workers agree on between two steps (a stop, an evaluation's sums) is kept until the next update, under a name: a
worker whose collective failed asks those who have the answer, and nobody repeats a collective that others are past.
All of it is plain values, which travel beside the state to a worker that stands behind (`side_state`,
`take_side_state`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import IntFlag
from itertools import islice
from typing import Any

from elastic.group.sums import Agreed
from elastic.loop.storage.under_way import Position
from elastic.state.train_state import Tree

_LOGGED_TOLD = 256  # rows, to those behind: with the others gone, one of them may have to write these


class Request(IntFlag):
    """What a worker asks of all others with a step's exchange; it may ask for several things at once.

    LEAVE    a notice has come to that worker
    STOP     somebody has called run.stop
    SAVE     the cadence of time says so, or a node may be taken soon
    REGROUP  somebody waits to join
    CHECK    a save is due behind the next step, which is cross-checked
    """

    LEAVE, STOP, SAVE, REGROUP, CHECK = 1, 2, 4, 8, 16


@dataclass
class RunState:
    """What one worker knows of the run's course, and changes as it goes on.

    total_steps  where the run ends
    step         how many are applied
    epoch        of the next one
    finished     all steps are applied, or the run was stopped
    stopped      why it was stopped; None: it was not
    stop_request    this worker's, for the next exchange
    agreed       what the last exchange gave; None before the first
    agreed_by    the workers that took part in it, by their ranks then
    agreements   made since the last update
    evaluations  begun since the last update began, or ended, or since the start of the script's loop
    calls        of Run.on_coordinator, likewise
    updating     an update has begun and has not ended: a failure now leaves a torn state
    at_boundary  the script's own code after the last update has run to its end, and a resume from here would do nothing
                 twice
    in_loop      the script is in its outer loop
    looped       it has been
    attempt      how often the current step has come round again
    held         what the exchange gave of the current step, all of which this worker holds: it lacks the word that all
                 others do, too (see GradientSync.all_hold)
    learned      that a peer had that word: the step is completed here; by whom it was exchanged, and the agreements
                 made since
    joined       it has taken the state from others, and no step is applied yet that it has computed a part of
    foreseen     of what the loop has asked how many batches there are: an "epoch", the "run"; None: it has not asked
    logged       the newest rows that the script has logged, by step, in order
    saved        after so many steps all workers have begun a save, or taken the state from one
    """

    total_steps: int
    step: int = 0
    epoch: int = 0
    finished: bool = False
    stopped: str | None = None
    stop_request: str | None = None
    agreed: Agreed | None = None
    agreed_by: tuple[str, ...] = ()
    agreements: dict[str, Any] = field(default_factory=dict)
    evaluations: int = 0
    calls: int = 0
    updating: bool = False
    at_boundary: bool = True
    in_loop: bool = False
    looped: bool = False
    attempt: int = 0
    saved: int | None = None
    held: Agreed | None = None
    learned: tuple[tuple[str, ...], dict[str, Any]] | None = None
    joined: bool = False
    foreseen: str | None = None
    logged: dict[int, dict[str, Any]] = field(default_factory=dict)

    @property
    def position(self) -> Position:
        """Return the position as a checkpoint has it."""
        return Position(epoch=self.epoch, step=self.step, stopping=self.stop_request, stopped=self.stopped)

    @property
    def is_whole(self) -> bool:
        """Return whether it may be saved: not in an update, nor half way through the script's own code after one."""
        return self.at_boundary and not self.updating

    def goes_on_from(self, position: Position) -> None:
        """Take step, epoch and stop from `position`, and note whether the run is finished there."""
        self.step, self.epoch = position.step, position.epoch
        self.stopped, self.stop_request = position.stopped, position.stopping
        self.look_for_end()

    def look_for_end(self) -> None:
        """Note whether the run is finished: stopped, or all steps are applied."""
        self.finished = self.stopped is not None or self.step >= self.total_steps

    def begin_loop(self) -> None:
        """Note that the script is in its outer loop."""
        if not self.looped:
            self.evaluations = self.calls = 0  # a run that is resumed where it ended goes on as if it had just ended
        self.in_loop = self.looped = True

    def begin_update(self) -> None:
        """Note that an update has begun, and the script's own code behind it has not run."""
        self.updating, self.at_boundary = True, False
        self.evaluations = self.calls = 0

    def end_update(self, agreed: Agreed, agreed_by: tuple[str, ...]) -> None:
        """Take what the exchange gave, and forget what was agreed on before the update."""
        self.updating = False
        self.evaluations = self.calls = 0
        self.agreed, self.agreed_by = agreed, agreed_by
        self.agreements = {}  # until here they were kept for those who had missed them
        if self.learned is not None:
            (self.agreed_by, self.agreements), self.learned = self.learned, None

    def summary(self, *, rewinds: bool, steady: bool) -> StateSummary:
        """Return what this worker tells the others of a new view about its state; see StateSummary."""
        return StateSummary(
            step=self.step,
            agreements=len(self.agreements),
            torn=self.updating,
            holds_step=self.held is not None,
            rewinds=rewinds,
            steady=steady and self.at_boundary and self.in_loop and not self.finished,
            joined=self.joined,
        )

    def side_state(self, claim: dict[str, object], losses: dict[str, Any]) -> Tree:
        """Return what a worker must know beside the state to stand where this one stands."""
        return {
            "position": asdict(self.position),
            "claim": claim,
            "losses": losses,
            "agreed": None if self.agreed is None else {**asdict(self.agreed)},
            "agreed_by": list(self.agreed_by),
            "agreements": self.agreements,
            "in_loop": self.in_loop or self.looped,
            "saved": self.saved,
            "logged": [[step, _plain(row)] for step, row in islice(reversed(self.logged.items()), _LOGGED_TOLD)],
        }

    def take_side_state(self, side_state: Tree) -> None:
        """Stand where those ahead stand: take their position, what the last step gave, and what was agreed on since.

        Where this worker holds all of that step itself, it completes it.
        """
        if self.held is not None and side_state["position"]["step"] == self.step + 1:
            self.learned = tuple(side_state["agreed_by"]), dict(side_state["agreements"])
            return
        if side_state["position"]["step"] != self.step:
            self.evaluations = self.calls = 0
        self.updating = False
        own_request = self.stop_request
        self.goes_on_from(Position(**side_state["position"]))
        self.stop_request = own_request or self.stop_request  # what this worker asked for was not exchanged yet
        self.agreed = Agreed(**side_state["agreed"]) if side_state["agreed"] is not None else None
        self.agreed_by = tuple(side_state["agreed_by"])
        self.agreements = dict(side_state["agreements"])
        self.saved = side_state["saved"]
        self.logged = dict(sorted({**dict(side_state["logged"]), **self.logged}.items()))


def _plain(row: dict[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in row.items()}


@dataclass(frozen=True, kw_only=True)
class StateSummary:
    """What a worker tells the others of a new view about its state.

    step        how many are applied; None: no state at all, as at a start
    agreements  how many were made since
    torn        failed inside an update
    holds_step  it holds all of the next step, and completes it once it learns that a peer has applied it
    rewinds     can give the state as the last update left it, to one that still has to run the code after that step
    steady      between two steps the script writes to no weights, as far as is known, and there is a next step
    joined      see RunState
    """

    step: int | None
    agreements: int = 0
    torn: bool = False
    holds_step: bool = False
    rewinds: bool = True
    steady: bool = False
    joined: bool = False

    @property
    def holds_a_state(self) -> bool:
        return self.step is not None and not self.torn
