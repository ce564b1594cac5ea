"""Carries out a plan of faults inside the workers, at the exact moment, and notes what was really read.

An observer (elastic/events/observer.py) that the launcher names to each worker. Every fault happens once, however
often the run recovers: whoever sets it off first puts that on record in the drill's folder. What a fault does is its
own; how reads are noted, recording_dataset.py's: they become `reads` events when the batch reaches the user's code.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from elastic.drill.environment import Overrides, drill_node
from elastic.drill.faults.base import Fault
from elastic.drill.faults.moments import BEGINS, IN_BACKWARD, IN_EXCHANGE, IN_TRANSFER, IN_UPDATE
from elastic.drill.faults.plan import Plan, due
from elastic.drill.faults.scene import Scene
from elastic.drill.folder import DrillFolder
from elastic.drill.inject import hooks
from elastic.drill.inject.recording_dataset import RecordingCollate, RecordingDataset, dataset_source
from elastic.drill.machine.holdings import Holdings
from elastic.events import drill_schema
from elastic.events.drill_schema import Changed, Held, Placed, Reads, Weights
from elastic.events.observer import MOMENTS, ObservedRun, Observer
from elastic.events.sinks import local_folder
from elastic.membership import environment
from elastic.plan.save_rules import SaveEvery
from elastic.state.train_state import weights_digest

_APART = 2  # steps
_BEFORE_THE_UPDATE = MOMENTS[: MOMENTS.index("update") + 1]


def observer(folder: str) -> Observer:
    """Return the observer of the drill in `folder`, which the launcher has put a plan into."""
    return Injector(DrillFolder(Path(folder)))


class Injector(Observer):
    """The observer of one worker in a drill.

    drill  where its folder has an `events/`, the worker's events go there as well
    """

    def __init__(self, drill: DrillFolder) -> None:
        self._drill = drill
        self._plan = Plan.from_json(drill.plan.read_text())
        self._overrides = Overrides.read(drill.path)
        self._run: ObservedRun | None = None
        self._step = 0  # as At.step counts
        self._applied_in = (0, 0)  # a generation, and how many steps were applied in it
        self._unhook: list[hooks.Unhook] = []
        self._together = any(len(fault.ranks) > 1 for fault in self._plan.faults)
        self._slow_s = 0.0  # in each of the next shares
        self._slow_shares = 0
        self._reading: RecordingDataset | None = None
        self._batch_changes: list[Callable[[Any], Any]] = []
        self._later: dict[str, list[Callable[[], None]]] = {}  # by the moment at which it is done
        self._holdings = Holdings(in_replica=environment.read().replica_size > 1)
        self._storage: Path | None = None  # the run's, where it is a local folder
        self._applied: str | None = None  # the weights that the last step came to

    def storage(self, url: str, storage_options: Mapping[str, Any] | None) -> tuple[str, Mapping[str, Any] | None]:
        if self._overrides.url is None:
            self._storage = local_folder(url)
            return url, storage_options
        target = self._overrides.url.removeprefix("faulty://")
        self._storage = local_folder(target) if target.startswith("/") else None
        return self._overrides.url, self._overrides.storage_options

    def cadence(self, save_every: SaveEvery) -> SaveEvery:
        instead = self._overrides.save_every
        if instead is None:
            return save_every
        return int(instead) if instead.isdecimal() else instead

    def cross_checks(self, part: float | None) -> float | None:
        asked = self._overrides.cross_check
        return asked if asked is not None else part or 0.0

    def dataset(self, dataset: Any) -> Any:
        if self._run is not None:
            self._run.events.emit(dataset_source(dataset))
        self._reading = RecordingDataset(dataset)
        return self._reading

    def collate(self, collate_fn: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
        return RecordingCollate(collate_fn)

    def batch(self, batch: Any, *, step: int, share: int, attempt: int) -> Any:
        assert self._run is not None
        read = Reads(step=step, share=share, attempt=attempt, indices=batch.indices, contents=batch.contents)
        self._run.events.emit(read)
        given = batch.batch
        while self._batch_changes:
            given = self._batch_changes.pop()(given)
        return given

    def at(self, moment: str, run: ObservedRun, share: int | None = None) -> None:
        """Record what is to be seen at this moment, put on the hooks of faults within it, and strike what is due."""
        self._run = run
        while self._unhook:
            self._unhook.pop()()
        if self._together and moment == "form":
            self._drill.record_rank(run.generation, run.rank)
        if moment == "start" and (self._drill.path / "events").is_dir():
            run.events.tee(self._drill.path)
        if moment == "start":
            agent = drill_node() or os.getppid()
            run.events.emit(Placed(agent=agent))
            self._drill.came(agent).touch()
        self._step = run.step_index if moment in _BEFORE_THE_UPDATE else run.step_index - 1
        if moment == "start":
            run.events.hear(self._holdings.hear)
        view = {"generation": run.generation, "world_size": run.world_size, "rank": run.rank}
        if moment == "applied" and (holds := self._holdings.after_step(**view)) is not None:
            run.events.emit(Held(last=False, **holds))
        if moment == "finish":
            run.events.emit(Held(last=True, **self._holdings.at_the_end(**view)))
        if moment == "applied" and self._overrides.steps is not None and run.step_index >= self._overrides.steps - 1:
            run.stop(f"{self._overrides.steps} steps were asked for")  # with the exchange of the next one
        generation, applied = self._applied_in
        self._applied_in = run.generation, applied * (generation == run.generation) + (moment == "applied")
        for act in self._later.pop(moment, ()):
            act()
        if moment == "applied":
            self._applied = _digest(run)
            run.events.emit(Weights(step=self._step, digest=self._applied))
        if moment == "save" and self._applied is not None and (digest := _digest(run)) != self._applied:
            run.events.emit(Changed(step=self._step, digest=digest))
        for phase, begins in BEGINS.items():
            if moment == begins:
                for fault in self._due(phase, share):
                    self._prepare(phase, run, fault)
        if self._slow_shares and moment == "forward":
            self._slow_shares -= 1
            time.sleep(self._slow_s)
        for fault in self._due(moment, share):
            self._act(fault)

    def _prepare(self, phase: str, run: ObservedRun, fault: int) -> None:
        """Put on the hooks by which a fault strikes in the midst of what begins now."""

        def strike() -> None:
            self._act(fault)

        if phase == IN_BACKWARD:
            unhook = hooks.backward(run.optimizers.values(), strike)
        elif phase == IN_EXCHANGE:
            unhook = hooks.exchange(strike)
        elif phase == IN_UPDATE:
            unhook = hooks.update(run.optimizers.values(), strike)
        else:
            assert phase == IN_TRANSFER, phase
            unhook = hooks.transfer(strike)
        self._unhook.append(unhook)

    def _due(self, phase: str, share: int | None) -> list[int]:
        """Return the indices of the faults that this worker sets off at this moment."""
        if not self._plan.faults:
            return []
        run = self._run
        assert run is not None
        done = self._drill.happened()
        here = [index for index, generation in done.items() if run.generation and generation == str(run.generation)]
        at: dict[str, Any] = {"step": self._step, "share": share, "world_size": run.world_size}
        return due(self._plan, phase, rank=run.rank, done=done, here=here, **at)

    def _act(self, index: int) -> None:
        """Strike, unless the fault has happened already, or cannot happen here and now."""
        assert self._run is not None
        fault, run = self._plan.faults[index], self._run
        scene = self._scene(index)
        if not fault.possible(scene) or self._would_repeat(fault):
            return
        if not self._drill.claim(index, run.generation):
            return
        if (failure := fault.failure()) is not None:
            self._drill.record_failure(failure, run.step_index)
        phase, fatal = fault.when.phase, fault.fatal
        run.events.emit(drill_schema.Fault(index=index, fault=str(fault), step=self._step, phase=phase, fatal=fatal))
        if fault.record_first:
            run.events.flush(wait=True)
        fault.strike(scene)
        self._drill.struck(index).touch()

    def _scene(self, index: int) -> Scene:
        assert self._run is not None
        return Scene(
            run=self._run,
            drill=self._drill,
            index=index,
            storage=self._storage,
            applied=self._applied_in[1],
            joins_await_s=self._overrides.joins_await_s,
            slow_down=self._slow_down,
            hang_reads=self._hang_reads,
            change_batch=self._batch_changes.append,
            at_next=self._at_next,
        )

    def _slow_down(self, seconds: float, shares: int) -> None:
        self._slow_s = seconds
        self._slow_shares += shares

    def _at_next(self, moment: str, act: Callable[[], None]) -> None:
        self._later.setdefault(moment, []).append(act)

    def _hang_reads(self) -> None:
        if self._reading is not None:
            self._reading.stuck = True

    def _would_repeat(self, fault: Fault) -> bool:
        """Return whether the run would take the fault for a bug: the same failure at one step, twice.

        A fault that may come later then does, a few steps on, since a loader's failure shows some steps after it.
        """
        failure = fault.failure()
        if failure is None or not fault.when.later:
            return False
        assert self._run is not None
        return any(abs(step - self._run.step_index) <= _APART for step in self._drill.failures(failure))


def _digest(run: ObservedRun) -> str:
    return weights_digest(run.model if isinstance(run.model, Mapping) else {"model": run.model})
