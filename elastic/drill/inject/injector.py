"""Carries out a plan of faults inside the workers, at the exact moment, and notes what was really read.

An observer (elastic/events/observer.py) that the launcher names to each worker. Every fault happens once, however
often the run recovers: whoever sets it off first creates a file that only one can create. What a fault does is
acts.py's; how reads are noted, reading.py's: they become `reads` events when the batch reaches the user's code.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from elastic.drill.faults import (
    IN_BACKWARD,
    IN_EXCHANGE,
    IN_TRANSFER,
    IN_UPDATE,
    OF_A_SHARE,
    Disk,
    Fault,
    Flip,
    Hold,
    Join,
    Kill,
    KillAll,
    KillTogether,
    Plan,
    Slow,
    StickLoader,
    Terminate,
    as_failure,
    due,
)
from elastic.drill.inject import hooks
from elastic.drill.inject.acts import OnPurpose, act, alive_among, loader_processes, possible
from elastic.drill.inject.imposed import Imposed
from elastic.drill.inject.reading import Collating, Reading, described
from elastic.drill.machine.holdings import Holdings
from elastic.events import drill_schema
from elastic.events.drill_schema import Awaited, Held, Placed, Reads, Weights
from elastic.events.observer import MOMENTS, ObservedRun, Observer
from elastic.events.sinks import local_folder
from elastic.state.train_state import weights_digest

__all__ = ["CAME", "HAPPENED", "LET_GO", "PLAN_FILE", "STRUCK", "Injector", "OnPurpose", "observer"]

PLAN_FILE = "plan.json"
HAPPENED = "happened"
LET_GO = "let_go"
STRUCK = "struck"
CAME = "came"  # the pids of agents of whom a worker has entered its Run
_LOOK_S = 0.02
_COMING = "coming-"
_FAILED = "failed-"
_APART = 2  # steps
_PLACES = "places"
_BEGINS = {IN_BACKWARD: "backward", IN_EXCHANGE: "exchange", IN_UPDATE: "update", IN_TRANSFER: "transfer"}
_BEFORE_THE_UPDATE = MOMENTS[: MOMENTS.index("update") + 1]


def observer(folder: str) -> Observer:
    """The observer of the drill in `folder`, which the launcher has put a plan into."""
    return Injector(Path(folder))


class Injector(Observer):
    """The observer of one worker in a drill.

    folder  the drill's: holds plan.json, `happened/` with a file for each fault that has happened, and, if workers are
            to be killed together, `places/` with the pid of each rank of a view. Where it has an `events/`, the
            worker's events go there as well
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._plan = Plan.from_json((folder / PLAN_FILE).read_text())
        self._imposed = Imposed.read(folder)
        self._run: ObservedRun | None = None
        self._step = 0  # as At.step counts
        self._forget: list[Callable[[], None]] = []
        self._together = any(isinstance(fault, KillTogether) for fault in self._plan.faults)
        self._slow: list[Slow] = []
        self._slow_shares = 0
        self._reading: Reading | None = None
        self._holdings = Holdings()
        self._storage: Path | None = None  # the run's, where it is a local folder

    def storage(self, url: str, storage_options: Mapping[str, Any] | None) -> tuple[str, Mapping[str, Any] | None]:
        if self._imposed.url is None:
            self._storage = local_folder(url)
            return url, storage_options
        target = self._imposed.url.removeprefix("faulty://")
        self._storage = local_folder(target) if target.startswith("/") else None
        return self._imposed.url, self._imposed.storage_options

    def cadence(self, save_every: int | str) -> int | str:
        imposed = self._imposed.save_every
        if imposed is None:
            return save_every
        return int(imposed) if imposed.isdecimal() else imposed

    def dataset(self, dataset: Any) -> Any:
        if self._run is not None:
            self._run.events.emit(described(dataset))
        self._reading = Reading(dataset)
        return self._reading

    def collate(self, collate_fn: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
        return Collating(collate_fn)

    def batch(self, batch: Any, *, step: int, share: int, attempt: int) -> Any:
        assert self._run is not None
        read = Reads(step=step, share=share, attempt=attempt, indices=batch.indices, contents=batch.contents)
        self._run.events.emit(read)
        return batch.batch

    def at(self, moment: str, run: ObservedRun, share: int | None = None) -> None:
        self._run = run
        while self._forget:
            self._forget.pop()()
        if self._together and moment == "form":
            self._place(run.rank).write_text(str(os.getpid()))
        if moment == "start" and (self._folder / "events").is_dir():
            run.events.tee(self._folder)
        if moment == "start":
            run.events.emit(Placed(agent=os.getppid()))
            (self._folder / CAME / str(os.getppid())).touch()
        self._step = run.step_index if moment in _BEFORE_THE_UPDATE else run.step_index - 1
        if moment == "start":
            run.events.hear(self._holdings.hear)
        view = {"generation": run.generation, "world_size": run.world_size, "rank": run.rank}
        if moment == "applied" and (holds := self._holdings.after_step(**view)) is not None:
            run.events.emit(Held(last=False, **holds))
        if moment == "finish":
            run.events.emit(Held(last=True, **self._holdings.at_the_end(**view)))
        if moment == "applied":
            models = run.model if isinstance(run.model, Mapping) else {"model": run.model}
            run.events.emit(Weights(step=self._step, digest=weights_digest(models)))
        for phase, begins in _BEGINS.items():
            if moment == begins:
                for fault in self._due(phase, share):
                    self._prepare(phase, run, fault)
        if self._slow and moment == "forward":
            self._slow_down()
        for fault in self._due(moment, share):
            self._act(fault)

    def _prepare(self, phase: str, run: ObservedRun, fault: int) -> None:
        def strike() -> None:
            self._act(fault)

        if phase == IN_BACKWARD:
            forget = hooks.backward(run.optimizers.values(), strike)
        elif phase == IN_EXCHANGE:
            forget = hooks.exchange(strike)
        elif phase == IN_UPDATE:
            forget = hooks.update(run.optimizers.values(), strike)
        else:
            forget = hooks.transfer(strike)
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
        run = self._run
        if not possible(fault, self._folder, self._storage) or self._would_repeat(fault) or not self._first_at(index):
            return
        if (kind := as_failure(fault)) is not None:
            (self._folder / HAPPENED / f"{_FAILED}{kind}-{run.step_index}").touch()
        fatal = isinstance(fault, Kill | KillAll)
        event = drill_schema.Fault(index=index, fault=str(fault), step=self._step, phase=fault.when.phase, fatal=fatal)
        run.events.emit(event)
        if not isinstance(fault, Disk | Flip | Terminate):  # this process may not live to do so afterwards
            run.events.flush(wait=True)
        if isinstance(fault, Slow):
            self._slow.append(fault)
            self._slow_shares += fault.shares
        elif isinstance(fault, StickLoader) and self._reading is not None and not loader_processes():
            self._reading.stuck = True
        let_go = self._folder / LET_GO / str(index)
        act(fault, self._folder, storage=self._storage, peers=lambda: self._peers(fault), let_go=let_go)
        (self._folder / STRUCK / str(index)).touch()
        if isinstance(fault, Join) and self._imposed.joins_await_s:
            self._await(index, let_go)
        if isinstance(fault, Hold):
            (self._folder / HAPPENED / str(index)).write_text("")  # the next fault may come in this view

    def _await(self, index: int, let_go: Path) -> None:
        """Stands still until the node that was called is there, as a run that is long enough would meet it. Nobody
        takes this worker for hung meanwhile."""
        assert self._run is not None
        run, begun_s, at_most_s = self._run, time.monotonic(), self._imposed.joins_await_s
        computes = self._plan.faults[index].when.phase in OF_A_SHARE
        with run.long_section(2 * at_most_s) if computes else contextlib.nullcontext():
            while not let_go.exists() and time.monotonic() - begun_s < at_most_s:
                time.sleep(_LOOK_S)
        run.events.emit(Awaited(index=index, seconds=time.monotonic() - begun_s, there=let_go.exists()))

    def _would_repeat(self, fault: Fault) -> bool:
        """Whether the run would take it for a bug: the same failure at one step, twice. One that may come later does,
        a few steps on, since a loader's failure shows some steps after it."""
        kind = as_failure(fault)
        if kind is None or not fault.when.later:
            return False
        assert self._run is not None
        failed = (self._folder / HAPPENED).glob(f"{_FAILED}{kind}-*")
        return any(abs(int(path.name.rpartition("-")[2]) - self._run.step_index) <= _APART for path in failed)

    def _slow_down(self) -> None:
        time.sleep(self._slow[-1].seconds)
        self._slow_shares -= 1
        if self._slow_shares <= 0:
            self._slow.clear()

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

    def _peers(self, fault: Any) -> list[int]:
        """The pids of those whom it hits beside this worker."""
        if not isinstance(fault, KillTogether):
            return []
        places = [place for place in map(self._place, fault.workers[1:]) if place.exists()]
        return alive_among([int(place.read_text() or 0) for place in places], self._folder)
