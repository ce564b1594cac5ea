"""Signals: to workers, to what helps them, to agents, to everything. And an end to what a signal has asked for."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from elastic.drill.faults.base import Aftermath, Fault, Flag, RunFault, SeveralWorkers, Sizes, WorkerFault
from elastic.drill.faults.moments import At
from elastic.drill.faults.scene import RunningDrill, Scene

if TYPE_CHECKING:
    from elastic.events.event import Event


class _Signal(WorkerFault):
    """A signal to the worker that has this rank at that moment, or to the agent of its node."""

    number: ClassVar[signal.Signals]
    to_agent: ClassVar[bool] = False

    def strike(self, scene: Scene) -> None:
        os.kill(os.getppid() if self.to_agent else os.getpid(), self.number)


@dataclass(frozen=True)
class Kill(_Signal):
    """SIGKILL to the worker that has this rank at that moment."""

    kind = "kill"
    sentence = "SIGKILL to worker {worker}"
    flags = (Flag("kill", "SIGKILL to a worker; W,W@… kills several at once"),)
    number = signal.SIGKILL
    fatal = True
    takes = "workers"

    @classmethod
    def together(cls, workers: tuple[int, ...], when: At, **fields: Any) -> Fault:
        return KillTogether(workers, when, **fields)


@dataclass(frozen=True)
class KillTogether(SeveralWorkers):
    """SIGKILL to several workers of a view at once; those of them that have not come to that view are spared."""

    kind = "kill_together"
    name = "kill W,W"
    sentence = "SIGKILL to workers {numbers} at once"
    on_hosts = False
    takes = "workers"

    @property
    def numbers(self) -> str:
        return " and ".join(map(str, self.workers))

    def strike(self, scene: Scene) -> None:
        for pid in scene.drill.alive_with_ranks(scene.run.generation, self.workers[1:]):
            os.kill(pid, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Stop(_Signal):
    """SIGSTOP to the worker that has this rank at that moment; nobody wakes it."""

    kind = "stop"
    sentence = "SIGSTOP to worker {worker}"
    flags = (Flag("stop", "SIGSTOP to a worker, which nobody wakes"),)
    number = signal.SIGSTOP
    takes = "workers"


@dataclass(frozen=True)
class Terminate(_Signal):
    """SIGTERM to the worker that has this rank at that moment: a notice to leave."""

    kind = "terminate"
    sentence = "SIGTERM to worker {worker}: it is to leave"
    flags = (Flag("leave", "SIGTERM to a worker: a notice to leave, and SIGKILL after --grace"),)
    number = signal.SIGTERM
    record_first = False
    leaves = True
    gone = "worker"

    def lasts_s(self, grace_s: float) -> float:
        return grace_s

    def end(self, struck: Event, run: RunningDrill, others: Iterable[Fault]) -> None:
        run.kill_overdue(struck)


@dataclass(frozen=True)
class Hold(WorkerFault):
    """The worker that has this rank at that moment stands still until the cluster lets go, for a look from outside.

    All who wait for it stand still as well, and so do the faults after it in the plan.
    """

    kind = "hold"
    sentence = "worker {worker} is held"
    holds = True
    outcome = Aftermath.NO_LOSS

    def strike(self, scene: Scene) -> None:
        gc.collect()  # what only waits for that is not held for good
        scene.stand_still()
        scene.drill.forget_view(scene.index)


@dataclass(frozen=True)
class KillAll(RunFault):
    """SIGKILL to every process of the drill, launcher and loader processes included, as a power cut would."""

    kind = "kill_all"
    sentence = "SIGKILL to everything, agents included"
    flags = (
        Flag("lose-all", "SIGKILL to everything at once, agents included; the run is then started again",
             of_worker=False),
    )  # fmt: skip
    for_command = True
    on_hosts = False
    fatal = True
    takes = "node"
    restarts = "lost"

    @classmethod
    def remaining(cls, there: int, sizes: Sizes) -> int:
        return sizes.resume_workers

    def strike(self, scene: Scene) -> None:
        from elastic.drill.machine.processes import kill_marked

        kill_marked(scene.drill.path)
        os.kill(os.getpid(), signal.SIGKILL)

    def lost_max(self, sizes: Sizes) -> int:
        return 0


@dataclass(frozen=True)
class LoseNode(WorkerFault):
    """All workers of the node on which this rank runs, and its agent, are lost."""

    takes = "node"
    takes_node = True

    def excuses(self, status: int, *, taken: bool) -> bool:
        return status == -signal.SIGKILL


@dataclass(frozen=True)
class KillAgent(_Signal, LoseNode):
    """SIGKILL to the launcher of the node on which this rank runs, and to nothing else.

    Its workers are not hit: each finishes its step, and ends.
    """

    kind = "kill_agent"
    sentence = "SIGKILL to the agent of worker {worker}"
    flags = (Flag("kill-agent", "SIGKILL to the agent of a worker's node"),)
    number = signal.SIGKILL
    to_agent = True
    restarts = "left"
    orphans = True
    settles = 3  # a worker whose agent is gone trains for a step or two

    @classmethod
    def remaining(cls, there: int, sizes: Sizes) -> int:
        return sizes.resume_workers if sizes.nodes == 1 else max(1, there - sizes.of_a_node)


@dataclass(frozen=True)
class LeaveNode(_Signal):
    """SIGTERM to the launcher of the node on which this rank runs: all its workers are to leave."""

    kind = "leave_node"
    sentence = "SIGTERM to the agent of worker {worker}: its node is to leave"
    flags = (Flag("leave-node", "SIGTERM to the agent of a worker's node: all its workers leave"),)
    number = signal.SIGTERM
    to_agent = True
    takes_node = True
    leaves = True
    gone = "node"

    def excuses(self, status: int, *, taken: bool) -> bool:
        """Return whether the agent may end so: with 1 where another fault took a worker of it before the boundary."""
        return taken and status == 1


@dataclass(frozen=True)
class KillChild(WorkerFault):
    """SIGKILL to a helper of the worker that has this rank at that moment, and to nothing else.

    The fault waits until there is one.

    of  "loader": one of its loader processes; "writer": the process that writes its checkpoints; "fork-server": its
        agent's, that workers are forked from
    """

    of: str

    kind = "kill_child"
    sentence = "SIGKILL to {said} worker {worker}"
    flags = (
        Flag("kill-loader", "SIGKILL to one of a worker's loader processes", {"of": "loader"}, "a loader process of"),
        Flag("kill-fork-server", "SIGKILL to its agent's fork server, that workers are forked from",
             {"of": "fork-server"}, "the fork server beside"),
        Flag("kill-writer", "SIGKILL to the process that writes checkpoints", {"of": "writer"},
             "the checkpoint writer of", of_worker=False),
    )  # fmt: skip

    def possible(self, scene: Scene) -> bool:
        return bool(self._helpers())

    def strike(self, scene: Scene) -> None:
        for pid in self._helpers()[:1]:
            os.kill(pid, signal.SIGKILL)

    def _helpers(self) -> list[int]:
        """Return the pids of such helpers, seen from the worker that it strikes."""
        from elastic.drill.machine import processes

        if self.of == "loader":
            return processes.loader_processes()
        return processes.writer_processes() if self.of == "writer" else processes.fork_servers()

    def aftermath(self) -> Aftermath:
        """Return which change it brings about: a worker may fail with its loader process, or only start another one."""
        return Aftermath.PERHAPS_LOSS if self.of == "loader" else Aftermath.NO_LOSS

    def lost(self) -> int:
        return int(self.of == "loader")

    def failure(self) -> str | None:
        return f"{self.kind}_{self.of}" if self.of == "loader" else None
