"""Runs a training script for real, under `elastic run`, torchrun or alone, with faults as planned, to its end.

One cluster is one run: its launches (a second one after everything was killed, at another size) share the run's URL and
the drill's folder. Every wait has a deadline. Everything that a launch starts carries the drill's mark, and nothing
outlives `close`.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from elastic.drill.end import End, LaunchEnd
from elastic.drill.environment import Overrides
from elastic.drill.faults import At, Fault, Kill, KillAll, Plan, Stop, Terminate
from elastic.drill.faults.base import Sizes
from elastic.drill.folder import DrillFolder
from elastic.drill.inject.joining_nodes import JoiningNodes
from elastic.drill.inject.node_starter import Launcher, NodeStarter
from elastic.drill.judge.misled import misled
from elastic.drill.judge.review import review
from elastic.drill.machine import leftovers, processes
from elastic.drill.machine.hosting import Node, NodeHosting, ThisMachine
from elastic.drill.machine.lifeline import Lifeline
from elastic.drill.report.follow import Follow
from elastic.errors import ConfigError, ElasticError
from elastic.events.event import Event
from elastic.events.reading import read_events
from elastic.events.sinks import local_folder
from elastic.membership.worker.live import ORPHAN_S

OUTPUT_SHOWN = 4000  # characters of a launch's output in an error
POLL_S = 0.05
Found = TypeVar("Found")
RELEASED_S = 3.0  # what a process that has ended held is free this soon
ORPHANS_S = 10.0  # what a launch started ends this soon after its launcher, or counts as left behind


class DrillTimeout(ElasticError, TimeoutError):
    """A drill did not get where it should by its deadline; the message shows how far each worker got."""


class Cluster:
    """One run in a drill, as the fixture `elastic_cluster` makes it. A context manager, whose end is `close`.

    Args:
        script: A Python file or, with `module`, a name as for `python -m`.
        args: Its arguments; they must make it use `url`, if that is not overridden.
        url: Where the run lives: a folder, or an fsspec URL.
        folder: The drill's own, empty or of earlier launches of this run: plan, output, temporary files.
        workers: In all, under a launcher; None: a process of its own.
        launcher: "torchrun": a loss restarts all workers; "elastic": `elastic run`, where survivors go on.
        nodes: That the workers are spread over evenly: launchers, where `hosting` has them.
        nodes_max: How many there may be, where it shrinks to one and grows (by the fault Join); None: always `nodes`.
        replica_size: So many workers of a node hold one copy of the state together, under `elastic run`.
        options: Further flags of the launcher.
        restarts: The launcher's --max-restarts.
        steps: That the run is to apply; None: it may end anywhere.
        env: Set for the launch, over this process's environment.
        plan: Faults to begin with; `kill` and its like add to them.
        observed: False: without the observer, so without faults and `reads`, as a user would run it.
        storage_options: To look at the run's checkpoints; the script must be told in its own way.
        module: Whether `script` is a module's name.
        overrides: What the script is made to do instead of what it says; its URL is the same place as `url`.
        ready: Under `elastic run`, the next node to join stands ready, its imports done.
        hosting: Where the nodes are; None: all on this machine.
    """

    def __init__(
        self,
        script: str | os.PathLike[str],
        args: Sequence[str] = (),
        *,
        url: str | os.PathLike[str],
        folder: Path,
        workers: int | None = None,
        launcher: Launcher = "torchrun",
        nodes: int = 1,
        nodes_max: int | None = None,
        replica_size: int = 1,
        options: Sequence[str] = (),
        restarts: int = 3,
        steps: int | None = None,
        env: Mapping[str, str] | None = None,
        plan: Plan | None = None,
        observed: bool = True,
        storage_options: dict[str, Any] | None = None,
        module: bool = False,
        overrides: Overrides | None = None,
        ready: bool = False,
        hosting: NodeHosting | None = None,
    ) -> None:
        self.url = os.fspath(url)
        self.folder = folder.resolve()
        self.drill = DrillFolder(self.folder)
        self.plan = plan or Plan()
        self._steps = steps
        self._hosting = hosting if hosting is not None else ThisMachine()
        self._storage_options = storage_options
        self._starter = NodeStarter(
            script=[*["-m"] * module, os.fspath(script), *map(str, args)],
            folder=self.folder,
            workers=workers,
            launcher=launcher,
            nodes=nodes,
            nodes_max=nodes_max or nodes,
            replica_size=replica_size,
            restarts=restarts,
            options=options,
            env=env or {},
            observed=observed,
            overrides=overrides or Overrides(),
            hosting=self._hosting,
            found_at=self.url if launcher == "elastic" and local_folder(self.url) and "," not in self.url else None,
        )
        self._lifeline = Lifeline(self.folder, at=local_folder(self.url))
        self._joining = JoiningNodes(self.drill, self._start_later, ready=ready and launcher == "elastic")
        self._launchers: list[Node] = []
        self._seen: set[int] = set()  # pids of all launches
        self._of_a_node = 0  # workers, in the launch that had most
        self._before = leftovers.Snapshot()

    # what will go wrong

    def kill(self, worker: int, when: At) -> None:
        """Plan a SIGKILL to the worker with this rank at that moment."""
        self._add(Kill(worker, when))

    def kill_all(self, when: At) -> None:
        """Plan a SIGKILL to everything at once, launcher included; `start` it again to see what survives."""
        self._add(KillAll(when))

    def stop(self, worker: int, when: At) -> None:
        """Plan a SIGSTOP to the worker with this rank at that moment."""
        self._add(Stop(worker, when))

    def terminate(self, worker: int, when: At) -> None:
        """Plan a SIGTERM to the worker with this rank at that moment."""
        self._add(Terminate(worker, when))

    # acting

    def start(self, *, workers: int | None = None, nodes: int | None = None) -> Cluster:
        """Launch, or launch again after the last launch ended.

        Args:
            workers: From now on, in all; None: as before.
            nodes: Likewise.

        Raises:
            ConfigError: The last launch runs yet.
        """
        if self._running():
            raise ConfigError("this cluster is running; wait for its end with finish() before starting it again")
        starter = self._starter
        starter.workers = workers if workers is not None else starter.workers
        starter.nodes = nodes if nodes is not None else starter.nodes
        self.drill.begin_launch()
        self._of_a_node = max(self._of_a_node, (starter.workers or 0) // starter.nodes)
        self._lifeline.hold()
        starter.begin()
        if self._apart:
            (self.folder / "events").mkdir(exist_ok=True)  # evidence that a killed worker does not take with it
        self.drill.plan.write_text(self.plan.to_json())
        self._before = leftovers.Snapshot.take(self.folder)
        self._launchers = []
        for _ in range(starter.nodes if starter.workers is not None else 1):
            self._launchers.append(starter.node(first=not self._launchers))
        self._joining.begin(self.plan.faults, self.drill.happened())
        return self

    def wait_for(self, event: str | Callable[[Event], bool], *, within_s: float) -> Event:
        """Wait for an event, and start the launch if need be.

        Args:
            event: Its name, or a function that is true of it.
            within_s: How long it may take, in seconds.

        Returns:
            The first such one, which may have been recorded before.

        Raises:
            ElasticError: The launch ended before.
            DrillTimeout: It took longer. The launch goes on.
        """
        holds = (lambda e: e["event"] == event) if isinstance(event, str) else event
        follow, events = Follow(self.evidence), list[Event]()

        def seen() -> Event | None:
            events.extend(follow.new())  # each is read once, and asked about again: it may depend on what else there is
            return next(filter(holds, events), None)

        return self._until(seen, str(event), within_s)

    def wait_held(self, *, within_s: float) -> None:
        """Wait until a Hold has happened that has not been let go, and start the launch if need be.

        Args:
            within_s: How long it may take, in seconds.

        Raises:
            ElasticError: The launch ended before.
            DrillTimeout: It took longer. The launch goes on.
        """
        self._until(self._held, "hold", within_s)

    def let_go(self) -> None:
        """Let all workers go on that a Hold has stopped."""
        for index in self._held():
            self.drill.let_go(index).touch()

    def pids(self) -> list[int]:
        """Return the process ids of the launchers, in the order in which they were started."""
        return [launcher.pid for launcher in self._launchers]

    def pid(self, worker: str) -> int:
        """Return the process id of the worker that has this id, if it still runs; else 0."""
        pid = self._hosting.pid(worker)
        return pid if pid and self.drill.alive([pid]) else 0

    def abandon(self, launcher: Node) -> bool:
        """Kill a launcher, which is no part of this launch any more. Return False if it was none of its launchers."""
        if found := launcher in self._launchers:
            launcher.kill()
            self._launchers.remove(launcher)
        return found

    def exit_codes(self) -> dict[int, int | None]:
        """Return the exit codes of this launch's launchers, by pid; None: it runs."""
        return {launcher.pid: launcher.poll() for launcher in self._launchers}

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the launcher (of every node), as a scheduler does."""
        self._start_once()
        for launcher in self._launchers:
            launcher.send_signal(number)

    def finish(self, *, within_s: float = 60, reference: Sequence[Event] | str | None = None) -> End:
        """Wait for the launch to end, and judge the run. Start it if need be.

        Args:
            within_s: How long it may take, in seconds.
            reference: An undisturbed run's events or final digest, which this run's end must equal to the bit; None:
                that is not judged.

        Returns:
            What became of it; `ok` where every promise was kept.

        Raises:
            DrillTimeout: It took longer; all its processes were killed.
        """
        ended = self.wait(within_s=within_s)
        events = self.events()
        return End(
            exit_code=ended.exit_code,
            output=self.output(),
            events=events,
            verdict=review(
                self.url,
                events,
                steps=self._steps,
                reference=reference,
                lost_max=self.lost_max(),
                misled=misled(events, self.plan.faults),
                storage_options=self._storage_options,
            ),
            left_behind=ended.left_behind,
            not_reached=tuple(str(self.plan.faults[index]) for index in self.not_reached()),
        )

    def wait(self, *, within_s: float, watching: Callable[[], None] | None = None) -> LaunchEnd:
        """Wait until the launch has ended, and nothing of it is left. Start it if need be, and judge nothing.

        Args:
            within_s: How long it may take, in seconds.
            watching: Is called every 0.05 s meanwhile.

        Raises:
            DrillTimeout: It took longer; all its processes were killed.
        """
        self._start_once()
        deadline = time.monotonic() + within_s
        seen = self._seen
        while self._running():
            self._look()
            seen.update(processes.marked(self.folder))
            if watching is not None:
                watching()
            if time.monotonic() > deadline:
                state = self._state()
                self.close()
                raise DrillTimeout(f"the run did not end within {within_s} s\n{state}")
            time.sleep(POLL_S)
        self._joining.dismiss()
        orphans = [
            processes.describe(pid) for pid in processes.wait_until_gone(self.folder, within_s=self._orphans_s())
        ]
        processes.kill_marked(self.folder)
        left_behind = (*orphans, *self._left_behind(), *self._hosting.left_behind(killed=bool(self.drill.happened())))
        return LaunchEnd(self._exit_code(), left_behind)

    def _orphans_s(self) -> float:
        """Return for how many seconds what the launch has started may outlive its launchers."""
        # A worker whose agent was killed has its own time to finish its step: it may hang there, and nobody looks.
        return ORPHANS_S + (ORPHAN_S if any(fault.orphans for fault in self._struck()) else 0.0)

    def _left_behind(self) -> list[str]:
        """Return, in words, the shared memory and temporary files that the launch has left behind."""
        killed = bool(self.drill.happened())
        deadline = time.monotonic() + RELEASED_S  # a killed process may hold its files a moment longer than it is seen
        while (found := self._before.new(self.folder, self._seen, killed=killed)) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        return found

    def close(self) -> None:
        """End whatever still runs, and remove what that leaves in shared memory. Harmless when repeated."""
        self._joining.dismiss()
        processes.kill_marked(self.folder)
        for launcher in self._launchers:
            launcher.wait(timeout=ORPHANS_S)
        self._lifeline.let_go()
        self._before.remove(self._seen)
        self._starter.remove_temporary()
        self._hosting.close()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _until(self, seen: Callable[[], Found | None], what: str, within_s: float) -> Found:
        """Wait until `seen` finds something, and return that. Raises as wait_for does."""
        self._start_once()
        deadline = time.monotonic() + within_s
        while True:
            self._look()
            ended = not self._running()  # before the last look
            if found := seen():
                return found
            if ended:
                raise ElasticError(f"the launch ended ({self._exit_code()}) before {what}\n{self._state()}")
            if time.monotonic() > deadline:
                raise DrillTimeout(f"no {what} within {within_s} s\n{self._state()}")
            time.sleep(POLL_S)

    # looking

    def events(self) -> list[Event]:
        """Return the events that all launches have recorded so far."""
        return read_events(self.evidence)

    @property
    def evidence(self) -> Path:
        """Return the folder whose events/ the workers write for sure."""
        return self.folder if self._apart else local_folder(self.url) or self.folder

    def output(self) -> str:
        """Return what the last launch has printed so far."""
        return self.output_file.read_text(errors="replace")

    @property
    def output_file(self) -> Path:
        """Return the file that takes what the last launch prints."""
        return self._starter.output

    def not_reached(self) -> list[int]:
        """Return the indices of the faults that have not happened."""
        return sorted(set(range(len(self.plan.faults))) - self.drill.happened().keys())

    def lost_max(self) -> int | None:
        """Return how many workers the faults took from the run, at most; None: that says nothing about survivors.

        Whoever is lost with all others is missed by no view.
        """
        starter = self._starter
        if starter.launcher != "elastic" or starter.workers is None:
            return None
        sizes = Sizes(starter.nodes, self._of_a_node, starter.workers, starter.replica_size)
        found = [fault.lost_max(sizes) for fault in self._struck()]
        return None if None in found else sum(one or 0 for one in found)

    @property
    def _apart(self) -> bool:
        """Return whether the evidence lies apart from the run."""
        return self._starter.overrides.url is not None or local_folder(self.url) is None

    def _add(self, fault: Fault) -> None:
        self.plan = Plan((*self.plan.faults, fault), self.plan.seed)

    def _struck(self) -> list[Fault]:
        """Return the faults that have happened."""
        return [self.plan.faults[index] for index in self.drill.happened()]

    def _held(self) -> list[int]:
        """Return the indices of the Holds that have happened and have not been let go."""
        held = [index for index in self.drill.happened() if self.plan.faults[index].holds]
        return [index for index in held if not self.drill.let_go(index).exists()]

    def _look(self) -> None:
        """Let those nodes join whose Join has happened; they count as launchers from now on."""
        self._launchers += self._joining.look(self.plan.faults, self.drill.happened())

    def _start_later(self, workers: int | None, called: Path | None) -> Node:
        """Start a node that joins the launch under way; see NodeStarter.node."""
        return self._starter.node(first=False, workers=workers, called=called)

    def _start_once(self) -> None:
        if not self._launchers:
            self.start()

    def _running(self) -> bool:
        return any(launcher.poll() is None for launcher in self._launchers)

    def _exit_code(self) -> int:
        """Return the status of a launcher that failed; 0 if none did."""
        return next((launcher.returncode for launcher in self._launchers if launcher.returncode), 0)

    def _state(self) -> str:
        """Return how far everyone got, for an error."""
        last = {e["worker"]: e for e in self.events()}
        workers = [f"  {worker}: last event {e['event']}, step {e.get('step')}" for worker, e in last.items()]
        running = [f"  running: {processes.describe(pid)}" for pid in processes.marked(self.folder)]
        output = self.output()[-OUTPUT_SHOWN:]
        return "\n".join(
            [f"  plan: {self.plan}", *workers, *running, f"  output of launch {self._starter.launches}:", output]
        )
