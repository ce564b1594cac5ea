"""Carries out a plan of faults inside the workers, at the exact moment, and notes what was really read.

An observer (elastic/observe/observer.py) that the launcher names to each worker. Every fault happens once, however
often the run recovers: whoever sets it off first creates a file that only one can create. The signals are real.

Of the data it believes nothing but the dataset: the wrapped dataset notes an index when it is asked for it, in
loader processes too, the note travels through the collate function with the batch, and becomes a `reads` event when the
batch reaches the user's code. So a drill reads example by example, where an unobserved TensorDataset is sliced.
"""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from elastic.drill import inside
from elastic.drill.faults import (
    IN_BACKWARD,
    IN_EXCHANGE,
    IN_TRANSFER,
    IN_UPDATE,
    Hold,
    Join,
    Kill,
    KillAgent,
    KillAll,
    KillTogether,
    LeaveNode,
    Plan,
    Raise,
    Stop,
    Terminate,
    due,
)
from elastic.drill.processes import kill_marked, marked
from elastic.observe.observer import MOMENTS, ObservedRun, Observer
from elastic.state.survives import weights_digest

PLAN_FILE = "plan.json"
HAPPENED = "happened"
LET_GO = "let_go"
_COMING = "coming-"
_LOOK_S = 0.02
_PLACES = "places"
_BEGINS = {IN_BACKWARD: "backward", IN_EXCHANGE: "exchange", IN_UPDATE: "update", IN_TRANSFER: "transfer"}
_BEFORE_THE_UPDATE = MOMENTS[: MOMENTS.index("update") + 1]


class OnPurpose(Exception):
    """What a plan made the script raise."""


def observer(folder: str) -> Observer:
    """The observer of the drill in `folder`, which the launcher has put a plan into."""
    return Injector(Path(folder))


class Noted(NamedTuple):
    """An example, and the index at which it was read."""

    at: int
    example: Any


class NotedBatch(NamedTuple):
    """A batch, and the indices that were read for it, in order."""

    indices: list[int]
    batch: Any


class Reading:
    """A dataset that says with each example which one it is."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Noted:
        return Noted(int(index), self.dataset[index])


class Collating:
    """A collate function that keeps the notes beside the batch."""

    def __init__(self, collate_fn: Callable[[list[Any]], Any]) -> None:
        self.collate_fn = collate_fn

    def __call__(self, examples: list[Noted]) -> NotedBatch:
        return NotedBatch([noted.at for noted in examples], self.collate_fn([noted.example for noted in examples]))


class Injector(Observer):
    """The observer of one worker in a drill.

    folder  the drill's: holds plan.json, `happened/` with a file for each fault that has happened, and, if workers are
            to be killed together, `places/` with the pid of each rank of a view. Where it has an `events/`, the
            worker's events go there as well
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._plan = Plan.from_json((folder / PLAN_FILE).read_text())
        self._run: ObservedRun | None = None
        self._step = 0  # as At.step counts
        self._forget: list[Callable[[], None]] = []
        self._together = any(isinstance(fault, KillTogether) for fault in self._plan.faults)

    def dataset(self, dataset: Any) -> Any:
        return Reading(dataset)

    def collate(self, collate_fn: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
        return Collating(collate_fn)

    def batch(self, batch: Any, *, step: int, share: int, attempt: int) -> Any:
        assert self._run is not None
        self._run.events.emit("reads", step=step, share=share, attempt=attempt, indices=batch.indices)
        return batch.batch

    def at(self, moment: str, run: ObservedRun, share: int | None = None) -> None:
        self._run = run
        while self._forget:
            self._forget.pop()()
        if self._together and moment == "form":
            self._place(run.rank).write_text(str(os.getpid()))
        if moment == "start" and (self._folder / "events").is_dir():
            run.events.tee(self._folder)
        self._step = run.step_index if moment in _BEFORE_THE_UPDATE else run.step_index - 1
        if moment == "applied":
            models = run.model if isinstance(run.model, Mapping) else {"model": run.model}
            run.events.emit("weights", step=self._step, digest=weights_digest(models))
        for phase, begins in _BEGINS.items():
            if moment == begins:
                for fault in self._due(phase, share):
                    self._prepare(phase, run, fault)
        for fault in self._due(moment, share):
            self._act(fault)

    def _prepare(self, phase: str, run: ObservedRun, fault: int) -> None:
        def act() -> None:
            self._act(fault)

        if phase == IN_BACKWARD:
            forget = inside.backward(run.optimizers.values(), act)
        elif phase == IN_EXCHANGE:
            forget = inside.exchange(act)
        elif phase == IN_UPDATE:
            forget = inside.update(run.optimizers.values(), act)
        else:
            forget = inside.transfer(act)
        self._forget.append(forget)

    def _due(self, phase: str, share: int | None) -> list[int]:
        if not self._plan.faults:
            return []
        run = self._run
        assert run is not None
        done = {int(path.name): path.read_text() for path in (self._folder / HAPPENED).glob("[0-9]*")}
        here = [index for index, generation in done.items() if run.generation and generation == str(run.generation)]
        at: dict[str, Any] = {"step": self._step, "share": share, "world_size": run.world_size}
        return due(self._plan, phase, rank=run.rank, done=done, here=here, **at)

    def _act(self, index: int) -> None:
        """The fault itself, unless it has happened already."""
        assert self._run is not None
        fault = self._plan.faults[index]
        if not self._first_at(index):
            return
        self._run.events.emit("fault", index=index, fault=str(fault))
        self._run.events.flush()
        match fault:
            case Kill():
                os.kill(os.getpid(), signal.SIGKILL)
            case KillTogether():
                self._kill_peers(fault.workers[1:])
                os.kill(os.getpid(), signal.SIGKILL)
            case KillAll():
                kill_marked(self._folder)
                os.kill(os.getpid(), signal.SIGKILL)
            case Stop():
                os.kill(os.getpid(), signal.SIGSTOP)
            case Raise():
                raise OnPurpose(str(fault))
            case Terminate():
                os.kill(os.getpid(), signal.SIGTERM)
            case KillAgent():
                os.kill(os.getppid(), signal.SIGKILL)
            case LeaveNode():
                os.kill(os.getppid(), signal.SIGTERM)
            case Hold():
                gc.collect()  # what only waits for that is not held for good
                while not (self._folder / LET_GO / str(index)).exists():
                    time.sleep(_LOOK_S)
                (self._folder / HAPPENED / str(index)).write_text("")  # the next fault may come in this view
            case Join():
                """The cluster sees that it has happened, and starts the node."""

    def _first_at(self, index: int) -> bool:
        """Makes the fault's file, which tells the view that it happened in; False if it is there already."""
        assert self._run is not None
        folder = self._folder / HAPPENED
        folder.mkdir(exist_ok=True)
        own = folder / f"{_COMING}{index}-{os.getpid()}"
        own.write_text(str(self._run.generation))
        try:
            os.link(own, folder / str(index))
        except FileExistsError:
            return False
        finally:
            own.unlink()
        return True

    def _place(self, rank: int) -> Path:
        """Where the worker that has this rank in the present view leaves its pid."""
        assert self._run is not None
        (self._folder / _PLACES).mkdir(exist_ok=True)
        return self._folder / _PLACES / f"{self._run.generation}-{rank}"

    def _kill_peers(self, ranks: Iterable[int]) -> None:
        places = [place for place in map(self._place, ranks) if place.exists()]
        living = marked(self._folder)
        for pid in [int(place.read_text() or 0) for place in places]:
            if pid in living:
                os.kill(pid, signal.SIGKILL)
