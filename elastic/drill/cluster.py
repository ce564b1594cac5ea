"""Runs a training script for real, under `elastic run`, torchrun or alone, hurts it as planned, and waits for its end.

One cluster is one run: its launches (a second one after everything was killed, at another size) share the run's URL and
the drill's folder. Every wait has a deadline. Everything that a launch starts carries the drill's mark, and nothing
outlives `close`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from elastic.drill import leftovers, processes
from elastic.drill.end import End
from elastic.drill.faults import At, Fault, Hold, Join, Kill, KillAgent, KillAll, Plan, Stop, Terminate, lost_to
from elastic.drill.injection import HAPPENED, LET_GO, PLAN_FILE, STORAGE_FILE
from elastic.drill.review import review
from elastic.errors import ConfigError, ElasticError
from elastic.observe.events import Event, local_folder, read_events

OUTPUT_SHOWN = 4000  # characters of a launch's output in an error
POLL_S = 0.05
TEMPORARY_MAX = 64  # characters of a TMPDIR
RELEASED_S = 3.0  # what a process that has ended held is free this soon
ORPHANS_S = 10.0  # what a launch started ends this soon after its launcher, or counts as left behind

Launcher = Literal["elastic", "torchrun"]


@dataclass(frozen=True)
class Imposed:
    """Where the run lives, whatever the script says: as the script would say it."""

    url: str
    storage_options: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Ended:
    """What a launch that ended left.

    exit_code    of the launcher; negative: the signal that ended it
    left_behind  in words; empty where all is well
    """

    exit_code: int
    left_behind: tuple[str, ...]


class DrillTimeout(ElasticError, TimeoutError):
    """A drill did not get where it should by its deadline; the message shows how far each worker got."""


class Cluster:
    """One run under the hands of a drill.

    script    a Python file or, with `module`, a name as for `python -m`
    args      its arguments; they must make it use `url`, if that is not imposed
    url       where the run lives: a folder, or an fsspec URL
    imposed   what the script is made to use instead of what it says; the same place as `url`
    folder    the drill's own, empty or of earlier launches of this run: plan, output, temporary files
    workers   in all, under a launcher; None: a process of its own
    launcher  "torchrun": a loss restarts all workers; "elastic": `elastic run`, where survivors go on
    nodes     that the workers are spread over evenly: launchers, all on this machine
    nodes_max of how many there may be, where it shrinks to one and grows (by the fault Join); None: always `nodes`
    ready     under `elastic run`, the next node to join stands ready, its imports done
    options   further flags of the launcher
    restarts  the launcher's --max-restarts
    steps     that the run is to apply; None: it may end anywhere
    env       set for the launch, over this process's environment
    observed  False: without the observer, so without faults and `reads`, as a user would run it
    storage_options  to look at the run's checkpoints; the script must be told in its own way
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
        options: Sequence[str] = (),
        restarts: int = 3,
        steps: int | None = None,
        env: Mapping[str, str] | None = None,
        plan: Plan | None = None,
        observed: bool = True,
        storage_options: dict[str, Any] | None = None,
        module: bool = False,
        imposed: Imposed | None = None,
        ready: bool = False,
    ) -> None:
        self.url = os.fspath(url)
        self.folder = folder.resolve()
        self.plan = plan or Plan()
        self._script = ["-m"] * module + [os.fspath(script)]
        self._imposed = imposed
        self._ready = ready and launcher == "elastic"
        self._latecomer: tuple[int, subprocess.Popen[bytes]] | None = None  # the fault that calls it
        self._args = [str(argument) for argument in args]
        self._workers = workers
        self._launcher = launcher
        self._nodes = nodes
        self._nodes_max = nodes_max or nodes
        self._options = list(options)
        self._storage_options = storage_options
        self._restarts = restarts
        self._steps = steps
        self._env = dict(env or {})
        self._observed = observed
        self._launches = 0
        self._launchers: list[subprocess.Popen[bytes]] = []
        self._meet_at = 0  # the port of torchrun's rendezvous, where there are nodes
        self._joined: set[int] = set()  # indices of faults
        self._seen: set[int] = set()  # pids of all launches
        self._temporary = self.folder / "tmp"
        self._before = leftovers.Snapshot()

    # what will go wrong

    def kill(self, worker: int, when: At) -> None:
        """SIGKILL to the worker with this rank at that moment."""
        self._add(Kill(worker, when))

    def kill_all(self, when: At) -> None:
        """SIGKILL to everything at once, launcher included; `start` it again to see what survives."""
        self._add(KillAll(when))

    def stop(self, worker: int, when: At) -> None:
        """SIGSTOP to the worker with this rank at that moment."""
        self._add(Stop(worker, when))

    def terminate(self, worker: int, when: At) -> None:
        """SIGTERM to the worker with this rank at that moment."""
        self._add(Terminate(worker, when))

    # acting

    def start(self, *, workers: int | None = None, nodes: int | None = None) -> Cluster:
        """Launches, or launches again after the last launch ended; `workers` on `nodes` from now on, if given."""
        if self._running():
            raise ConfigError("this cluster is running; wait for its end with finish() before starting it again")
        self._workers = workers if workers is not None else self._workers
        self._nodes = nodes if nodes is not None else self._nodes
        self._launches += 1
        for name in (HAPPENED, "logs"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self._make_temporary()
        for index in self._happened():
            (self.folder / HAPPENED / str(index)).write_text("")  # in no view of this launch
        if self._apart:
            (self.folder / "events").mkdir(exist_ok=True)  # evidence that a killed worker does not take with it
        if self._imposed is not None:
            imposed = {"url": self._imposed.url, "storage_options": self._imposed.storage_options}
            (self.folder / STORAGE_FILE).write_text(json.dumps(imposed))
        (self.folder / PLAN_FILE).write_text(self.plan.to_json())
        self._before = leftovers.Snapshot.take(self.folder)
        self._output().write_bytes(b"")
        self._meet_at = _free_port() if self._nodes_max > 1 else 0
        self._launchers = []
        for _ in range(self._nodes if self._workers is not None else 1):
            self._launchers.append(self._launch())
        self._stand_ready()
        return self

    def wait_for(self, event: str | Callable[[Event], bool], *, within_s: float) -> Event:
        """The first event of that name, or of which the function is true. Starts the launch if need be."""
        holds = (lambda e: e["event"] == event) if isinstance(event, str) else event
        self._start_once()
        deadline = time.monotonic() + within_s
        while True:
            self._let_nodes_join()
            ended = not self._running()
            for found in self.events():
                if holds(found):
                    return found
            if ended:
                raise ElasticError(f"the launch ended ({self._exit_code()}) before {event}\n{self._state()}")
            if time.monotonic() > deadline:
                raise DrillTimeout(f"no {event} within {within_s} s\n{self._state()}")
            time.sleep(POLL_S)

    def wait_held(self, *, within_s: float) -> None:
        """Until a Hold has happened that has not been let go. Starts the launch if need be."""
        self._start_once()
        deadline = time.monotonic() + within_s
        while not self._held():
            self._let_nodes_join()
            if not self._running():
                raise ElasticError(f"the launch ended ({self._exit_code()}) before it was held\n{self._state()}")
            if time.monotonic() > deadline:
                raise DrillTimeout(f"not held within {within_s} s\n{self._state()}")
            time.sleep(POLL_S)

    def let_go(self) -> None:
        """Of all that are held."""
        (self.folder / LET_GO).mkdir(exist_ok=True)
        for index in self._held():
            (self.folder / LET_GO / str(index)).touch()

    def pids(self) -> list[int]:
        """The launchers, in the order in which they were started."""
        return [launcher.pid for launcher in self._launchers]

    def send(self, number: signal.Signals) -> None:
        """A signal to the launcher (of every node), as a scheduler gives it."""
        self._start_once()
        for launcher in self._launchers:
            launcher.send_signal(number)

    def finish(self, *, within_s: float = 60, reference: Sequence[Event] | str | None = None) -> End:
        """Waits for the launch to end, and judges the run. Starts it if need be.

        within_s   how long it may take. DrillTimeout: it took longer, and all its processes were killed
        reference  an undisturbed run's events or final digest
        """
        ended = self.wait(within_s=within_s)
        events = self.events()
        happened = self._happened()
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
                storage_options=self._storage_options,
            ),
            left_behind=ended.left_behind,
            not_reached=tuple(str(f) for index, f in enumerate(self.plan.faults) if index not in happened),
        )

    def wait(self, *, within_s: float, watching: Callable[[], None] | None = None) -> Ended:
        """Until the launch has ended, and nothing of it is left. Starts it if need be. See `finish`.

        watching  called now and then meanwhile
        """
        self._start_once()
        deadline = time.monotonic() + within_s
        seen = self._seen
        while self._running():
            self._let_nodes_join()
            seen.update(processes.marked(self.folder))
            if watching is not None:
                watching()
            if time.monotonic() > deadline:
                state = self._state()
                self.close()
                raise DrillTimeout(f"the run did not end within {within_s} s\n{state}")
            time.sleep(POLL_S)
        self._dismiss()
        orphans = [processes.described(pid) for pid in processes.gone(self.folder, within_s=ORPHANS_S)]
        processes.kill_marked(self.folder)
        return Ended(self._exit_code(), (*orphans, *self._left_behind()))

    def _left_behind(self) -> list[str]:
        """In words. A process that was killed may hold its files for a moment longer than it can be seen."""
        killed = bool(self._happened())
        deadline = time.monotonic() + RELEASED_S
        while (left := self._before.new(self.folder, self._seen, killed=killed)) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        return left

    def close(self) -> None:
        """Ends whatever still runs, and removes what that leaves in shared memory. Harmless when repeated."""
        self._dismiss()
        processes.kill_marked(self.folder)
        for launcher in self._launchers:
            launcher.wait(timeout=ORPHANS_S)
        self._before.remove(self._seen)
        if self._temporary.is_symlink():
            shutil.rmtree(self._temporary.resolve(), ignore_errors=True)
            self._temporary.unlink()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # looking

    def events(self) -> list[Event]:
        """Everything that has been recorded so far, of all launches."""
        return read_events(self.evidence)

    @property
    def evidence(self) -> Path:
        """The folder with the events/ that the workers write for sure."""
        return self.folder if self._apart else local_folder(self.url) or self.folder

    def output(self) -> str:
        """What the last launch has printed so far."""
        return self._output().read_text(errors="replace")

    def not_reached(self) -> list[int]:
        """Indices of the faults that have not happened."""
        return sorted(set(range(len(self.plan.faults))) - self._happened())

    def lost_max(self) -> int | None:
        """How many workers the faults took from the run against their will, at most; None where that says nothing about
        survivors. Who is lost with all others is missed by no view."""
        if self._launcher != "elastic" or self._workers is None:
            return None
        of_a_node = self._workers // self._nodes
        happened = [self.plan.faults[index] for index in self._happened()]
        return sum(of_a_node if isinstance(fault, KillAgent) else lost_to(fault) or 0 for fault in happened)

    @property
    def _apart(self) -> bool:
        """Whether the evidence lies apart from the run."""
        return self._imposed is not None or local_folder(self.url) is None

    def _add(self, fault: Fault) -> None:
        self.plan = Plan((*self.plan.faults, fault), self.plan.seed)

    def _happened(self) -> set[int]:
        """Indices of the faults that have happened."""
        return {int(path.name) for path in (self.folder / HAPPENED).glob("[0-9]*")}

    def _held(self) -> list[int]:
        held = [index for index in self._happened() if isinstance(self.plan.faults[index], Hold)]
        return [index for index in held if not (self.folder / LET_GO / str(index)).exists()]

    def _let_nodes_join(self) -> None:
        for index in self._happened() - self._joined:
            fault = self.plan.faults[index]
            if isinstance(fault, Join):
                self._joined.add(index)
                if self._latecomer is not None and self._latecomer[0] == index:
                    self._call(index).touch()
                    self._launchers.append(self._latecomer[1])
                    self._latecomer = None
                else:
                    self._launchers.append(self._launch(fault.workers))
                self._stand_ready()

    def _stand_ready(self) -> None:
        """Starts the node of the next fault that brings one, if it is to stand ready."""
        faults = enumerate(self.plan.faults)
        waiting = [(at, fault) for at, fault in faults if isinstance(fault, Join) and at not in self._happened()]
        if self._ready and self._latecomer is None and waiting:
            index, fault = waiting[0]
            self._latecomer = index, self._launch(fault.workers, called=self._call(index))

    def _dismiss(self) -> None:
        """The node that stands ready is not needed any more."""
        if self._latecomer is not None:
            self._latecomer[1].kill()
            self._latecomer[1].wait(timeout=ORPHANS_S)
            self._latecomer = None

    def _call(self, index: int) -> Path:
        """The file that calls the node of this fault."""
        return self.folder / f"join-{index}"

    def _launch(self, workers: int | None = None, *, called: Path | None = None) -> subprocess.Popen[bytes]:
        """workers  of this node; None: as many as every other has
        called   it waits for this file, its imports done
        """
        command = self._command_of_a_node(workers)
        if called is not None:
            at = command.index("run")
            command = [command[0], "-m", "elastic.drill.latecomer", str(called), *command[at + 1 :]]
        with self._output().open("ab") as output:
            return subprocess.Popen(
                command,
                env={**self._environment(), **self._meeting()},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _meeting(self) -> dict[str, str]:
        """The first node hosts torchrun's rendezvous store. Were it whoever comes first, a node that leaves might take
        it along, and nobody can join any more."""
        return {"PET_RDZV_CONF": f"is_host={int(not self._launchers)}"} if self._nodes_max > 1 else {}

    def _start_once(self) -> None:
        if not self._launchers:
            self.start()

    def _running(self) -> bool:
        return any(launcher.poll() is None for launcher in self._launchers)

    def _exit_code(self) -> int:
        """0 if every launcher ended with it."""
        return next((launcher.returncode for launcher in self._launchers if launcher.returncode), 0)

    def _output(self) -> Path:
        return self.folder / f"output-{self._launches}.txt"

    def _command_of_a_node(self, workers: int | None = None) -> list[str]:
        script = [*self._script, *self._args]
        if self._workers is None:
            return [sys.executable, *script]
        per_node, rest = divmod(self._workers, self._nodes)
        if rest:
            raise ConfigError(f"{self._workers} workers cannot be spread evenly over {self._nodes} nodes")
        if self._nodes_max == 1:
            meet = ["--standalone"]
        else:
            nodes = str(self._nodes) if self._nodes == self._nodes_max else f"1:{self._nodes_max}"
            meet = [f"--nnodes={nodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{self._meet_at}"]
            meet += [f"--rdzv-id=launch-{self._launches}"]
        module = ["elastic", "run"] if self._launcher == "elastic" else ["torch.distributed.run"]
        flags = [*meet, f"--nproc-per-node={workers or per_node}", f"--max-restarts={self._restarts}"]
        flags += [f"--log-dir={self.folder / 'logs'}", *self._options]
        return [sys.executable, "-m", *module, *flags, *script]

    def _environment(self) -> dict[str, str]:
        drill = {processes.MARK: str(self.folder), "TMPDIR": str(self._temporary.resolve()), "PYTHONUNBUFFERED": "1"}
        torchrun = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}  # its shared store keeps a dead round's keys
        observer = {"ELASTIC_OBSERVER": f"elastic.drill.injection:observer:{self.folder}"} if self._observed else {}
        return {**os.environ, **drill, **torchrun, **observer, **self._env}

    def _make_temporary(self) -> None:
        """The launch's TMPDIR. multiprocessing's sockets lie there, whose paths the kernel cuts at 108 characters."""
        if self._temporary.exists():
            return
        if len(str(self._temporary)) <= TEMPORARY_MAX:
            self._temporary.mkdir()
        else:
            shortest = min((tempfile.gettempdir(), "/tmp"), key=len)
            self._temporary.symlink_to(tempfile.mkdtemp(prefix="drill-", dir=shortest))

    def _state(self) -> str:
        """How far everyone got, for an error."""
        last = {e["worker"]: e for e in self.events()}
        workers = [f"  {worker}: last event {e['event']}, step {e.get('step')}" for worker, e in last.items()]
        running = [f"  running: {processes.described(pid)}" for pid in processes.marked(self.folder)]
        output = self.output()[-OUTPUT_SHOWN:]
        return "\n".join([f"  plan: {self.plan}", *workers, *running, f"  output of launch {self._launches}:", output])


def _free_port() -> int:
    """A port that was free a moment ago: agents of several nodes must be told one before any of them listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
