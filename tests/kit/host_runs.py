"""A training run on hosts: `elastic run` as each host's command, watched through its events, judged as a drill is.

Faults are the test's: it waits for an event, and does to a host or a cable what it likes. The run's folder is storage
that every host reaches, whatever becomes of its cable. Steps go slowly until `finish`, so that a run of some hundred
has room for all that is to happen in it.
"""

from __future__ import annotations

import heapq
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from elastic.drill.faults.plan import Plan
from elastic.drill.folder import DrillFolder
from elastic.drill.hosts.hosts import Outcome
from elastic.drill.hosts.network import host_of, name
from elastic.drill.hosts.on_hosts import PORT, left_behind_on
from elastic.drill.judge.review import review
from elastic.drill.judge.verdict import Verdict
from elastic.drill.machine.processes import pid_in
from elastic.events.event import Event
from elastic.events.reading import record_in
from elastic_checkpoint.net.secret import VARIABLE, generated_secret
from tests.kit.hosts import Hosts

SCRIPT = Path(__file__).parent / "programs" / "small.py"
ROOT = Path(__file__).parents[2]
WITHIN_S = 240.0
POLL_S = 0.1
OUTPUT_SHOWN = 1500  # characters of each host's, in an error


@dataclass(frozen=True)
class HostsEnd:
    """
    outcomes  of the machines that ended by themselves, by host
    events    of all workers
    """

    outcomes: dict[int, Outcome]
    events: Sequence[Event]
    verdict: Verdict


class HostRun:
    """One run on hosts.

    nodes     --nnodes
    endpoint  --rdzv-endpoint, before the run's folder
    steps     of the script
    options   further flags of the launcher
    script    further flags of the script
    shared    False: each host has a folder of its own, which only that host's workers write to
    """

    def __init__(
        self,
        hosts: Hosts,
        folder: Path,
        *,
        nodes: str,
        steps: int,
        seed: int = 7,
        workers: int = 1,
        endpoint: str = f"{name(1)}:{PORT}",
        options: Sequence[str] = (),
        script: Sequence[str] = (),
        shared: bool = True,
    ) -> None:
        self.hosts = hosts
        self.url = folder / "run"
        self._folder = folder
        self._shared = shared
        self._hurry = folder / "hurry"
        self._steps = steps
        meeting = f"{endpoint},{self.url}" if shared else endpoint
        meet = [f"--nnodes={nodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint={meeting}", "--rdzv-id=hosts"]
        launcher = [sys.executable, "-m", "elastic", "run", *meet, f"--nproc-per-node={workers}", *options]
        flags = [f"--steps={steps}", f"--seed={seed}", "--save-every=50", f"--slow-until={self._hurry}", *script]
        self._command = [*launcher, str(SCRIPT), str(self.url), *flags]
        self._events = _Following(folder, "run*/events")
        self._on: list[int] = []  # hosts, in the order in which they came
        drill = DrillFolder(folder / "drill")
        drill.begin_launch()
        drill.plan.write_text(Plan().to_json())
        self._environment = {
            "ELASTIC_OBSERVER": f"elastic.drill.inject.injector:observer:{drill.path}",
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            VARIABLE: generated_secret(),
            "TMPDIR": "/var/tmp",
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
        }

    # acting

    def join(self, *hosts: int, endpoint: str | None = None) -> None:
        """Runs the command on these. endpoint: another --rdzv-endpoint than the run's, as a whole"""
        command = [
            f"--rdzv-endpoint={endpoint}" if endpoint is not None and part.startswith("--rdzv-endpoint=") else part
            for part in self._command
        ]
        for host in hosts:
            self._on.append(host)
            own = [str(self.url_of(host)) if part == str(self.url) else part for part in command]
            self.hosts.start(host, own, env=self._environment, output=self._output(host), cwd=ROOT)

    def url_of(self, host: int) -> Path:
        """Where this host's workers save."""
        return self.url if self._shared else self._folder / f"run-{name(host)}"

    def wait_for(self, what: str, holds: Callable[[list[Event]], object], *, within_s: float = WITHIN_S) -> None:
        """Until that is true of the events so far."""
        deadline = time.monotonic() + within_s
        while not holds(self.events()):
            assert any(map(self.hosts.running, self._on)), f"all hosts ended before: {what}\n{self.state()}"
            assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}\n{self.state()}"
            time.sleep(POLL_S)

    def wait_for_steps(self, *hosts: int, steps: int = 2, within_s: float = WITHIN_S) -> int:
        """Until exactly these are in one view and have applied so many steps more in it. Returns its generation."""
        expected, begun = sorted(hosts), self._steps_in_view()

        def trained() -> bool:
            now = self._steps_in_view()
            together = sorted(host_of(worker) for _, worker in now) == expected == self.hosts_in_view()
            return together and all(count - begun.get(of, 0) >= steps for of, count in now.items())

        names = ", ".join(map(name, expected))
        self.wait_for(f"{steps} steps of {names} in one view", lambda _: trained(), within_s=within_s)
        return self.generation

    def wait_for_end(self, host: int, *, within_s: float = WITHIN_S) -> Outcome:
        """Of this host's command, by itself."""
        self.wait_for(f"the end of {name(host)}", lambda _: not self.hosts.running(host), within_s=within_s)
        outcome = self.hosts.ended(host)
        assert outcome is not None, f"{name(host)} was killed\n{self.state()}"
        return outcome

    def finish(
        self,
        *,
        reference: Sequence[Event] | str | None,
        lost: int | None,
        within_s: float = WITHIN_S,
        saved_by: int | None = None,
        launches: int = 1,
    ) -> HostsEnd:
        """Waits until no host runs it any more, and judges it.

        reference  an undisturbed run's events or final digest
        lost       how many workers were taken from it; None where that is not the test's to decide
        launches   how often the run was started, but for those who joined it
        saved_by   the host whose folder has what was saved, where each has its own
        """
        self._hurry.touch()
        deadline = time.monotonic() + within_s
        while any(map(self.hosts.running, self._on)):
            assert time.monotonic() < deadline, f"not ended within {within_s:g} s\n{self.state()}"
            time.sleep(POLL_S)
        ended = {host: outcome for host in dict.fromkeys(self._on) if (outcome := self.hosts.ended(host)) is not None}
        events, url = self.events(), str(self.url_of(saved_by or 0))
        verdict = review(url, events, steps=self._steps, reference=reference, lost_max=lost, one_launch=launches == 1)
        return HostsEnd(ended, events, verdict)

    def assert_kept(self, end: HostsEnd, *, ended: Iterable[int]) -> None:
        """Every promise; and these hosts' commands, and no others', ended by themselves, with status 0 and in order."""
        assert end.verdict.ok, f"{end.verdict}\n{self.state()}"
        left = [what for host, outcome in end.outcomes.items() for what in left_behind_on(host, outcome)]
        assert left == [], self.state()
        assert {host: outcome.status for host, outcome in end.outcomes.items()} == dict.fromkeys(ended, 0), self.state()

    def assert_only_the_step_in_flight_was_redone(self, end: HostsEnd) -> None:
        """A step that some had applied as they were cut off is one more: they had begun the next one by then, and what
        they applied is discarded."""
        assert end.verdict.redone <= 1 + end.verdict.discarded, f"{end.verdict}\n{self.state()}"

    # looking

    def events(self) -> list[Event]:
        """Merged by time, as far as they are written."""
        return self._events.read()

    @property
    def generation(self) -> int:
        """Of the newest view in which somebody applied a step."""
        applied = (e["generation"] for e in self._events.read() if e["event"] == "step_applied")
        return max(applied, default=0)

    def _steps_in_view(self) -> Counter[tuple[int, str]]:
        """How many steps each (generation, worker) has applied, of the newest generation."""
        applied = [(e["generation"], e["worker"]) for e in self.events() if e["event"] == "step_applied"]
        newest = max((generation for generation, _ in applied), default=0)
        return Counter(of for of in applied if of[0] == newest)

    def workers(self) -> list[str]:
        """Of the newest view in which somebody applied a step."""
        return next((e["workers"] for e in self.views() if e["generation"] == self.generation), [])

    def workers_of(self, *hosts: int) -> list[str]:
        """Those of that view on these hosts: a worker's id holds its process's, and is its own for life."""
        return sorted(worker for worker in self.workers() if host_of(worker) in hosts)

    def hosts_in_view(self) -> list[int]:
        return sorted(map(host_of, self.workers()))

    def applied(self) -> int:
        """Steps."""
        return max((e["step"] + 1 for e in self.events() if e["event"] == "step_applied"), default=0)

    def alive(self, worker: str) -> bool:
        """Whether this worker's process is there; its id tells its pid, as its own host counts."""
        return self.hosts.pid_outside(host_of(worker), pid_in(worker)) is not None

    def views(self) -> list[Event]:
        return [event for event in self._events.read() if event["event"] == "view_formed"]

    def output(self, host: int) -> str:
        path = self._output(host)
        return path.read_text(errors="replace") if path.exists() else ""

    def state(self) -> str:
        """How far everyone got, for an error."""
        last = {event["worker"]: event for event in self._events.read()}
        lines = [f"  {worker}: last event {e['event']}, step {e.get('step')}" for worker, e in last.items()]
        for host in dict.fromkeys(self._on):
            running = "runs" if self.hosts.running(host) else self.hosts.ended(host) or "was killed"
            lines += [f"  {name(host)} {running}:", self.output(host)[-OUTPUT_SHOWN:]]
        return "\n".join(lines)

    def _output(self, host: int) -> Path:
        return self._folder / f"output-{name(host)}.txt"


class _Following:
    """The events of a run under way, as read_events() gives them; each line is read once. From all such folders."""

    def __init__(self, folder: Path, folders: str) -> None:
        self._folder, self._files = folder, f"{folders}/[!.]*.jsonl"
        self._offsets: dict[Path, int] = {}
        self._by_worker: dict[str, list[Event]] = defaultdict(list)
        self._merged: list[Event] = []

    def read(self) -> list[Event]:
        fresh = [event for path in sorted(self._folder.glob(self._files)) for event in self._more(path)]
        for event in fresh:
            self._by_worker[event["worker"]].append(event)
        if fresh:
            self._merged = list(heapq.merge(*self._by_worker.values(), key=lambda event: float(event["t"])))
        return self._merged

    def _more(self, path: Path) -> list[Event]:
        offset = self._offsets.get(path, 0)
        if path.stat().st_size <= offset:
            return []
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offsets[path] = offset + len(whole)
        return [event for line in whole.splitlines() if (event := record_in(line)) is not None]
