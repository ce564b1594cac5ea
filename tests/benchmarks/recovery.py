"""What does a fault cost? Real ones, at random moments, timed from the signal to the survivors' next applied step.

    python -m tests.benchmarks.recovery [--quick] [--faults 200] [--only kill stop …] [--breakdown] [--device cuda]
        [--json FILE]

Every time is of the last survivor. A step takes longer with fewer workers (V = 8: the slowest of 4 has 2 shares, of 3
it has 3), so two figures stand beside the whole: beyond the median step before the fault, and beyond that step times
what a step of as many workers as survive takes in comparison, in undisturbed runs that alternate. Plain torchrun loses
workers in the same run of this benchmark, with the same script (TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1: with its defaults
half of the jobs do not come back).

A machine that others use gives larger figures: its load before each part stands beside them.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.benchmarks import harness
from tests.benchmarks import recovery_loopback as loopback
from tests.benchmarks.harness import interruptible, progress
from tests.benchmarks.recovery_events import Cost, During
from tests.benchmarks.recovery_runs import ELASTIC, IMPORTS, SCRIPT, TORCHRUN, Stuck, Watched, kill, running, strike

ONE_NODE = [*ELASTIC, "--standalone"]
SETTLED_STEPS, FEW_STEPS = 8, 5
CALM_STEPS = 40
APART_S = 1.5  # one fault at a time: until then the agent has forked the next spare process
BIG = ["--width=4900", "--batch-size=16"]
AWAY = [*BIG, "--away=0.3"]
PARTS_BESIDE = 3  # in a table of 80 columns


@dataclass
class Part:
    """What one kind of fault cost. slower: how much longer a step takes with as many workers as survive."""

    name: str
    slower: float
    load: float
    costs: list[Cost] = field(default_factory=list)

    def of(self, value: Callable[[Cost], float | None]) -> list[float]:
        return [found for cost in self.costs if (found := value(cost)) is not None]

    @property
    def beyond_after(self) -> list[float]:
        return self.of(lambda cost: cost.total - cost.step * self.slower)

    @property
    def longest_beyond(self) -> list[float]:
        return self.of(lambda cost: cost.longest - cost.step * self.slower if cost.longest else None)

    @property
    def beyond_before(self) -> list[float]:
        return self.of(lambda cost: cost.total - cost.step)


@dataclass(frozen=True, kw_only=True)
class Joined:
    """What one join cost the survivors: seconds until they computed again, and that they waited for the newcomer then
    (recovery_events.py); their step while the state was under way; seconds of the transfer."""

    pause: float
    wait: float
    during: During
    transfer: float


@dataclass(frozen=True)
class Big:
    """Joins with a large model: what they cost where steps take all processors, and where they leave them idle; a
    transfer's bytes; seconds that gloo and TCP alone take for as many bytes between as many processes."""

    workers: int
    size: int
    busy: list[Joined]
    away: list[Joined]
    gloo: list[float]
    tcp: list[float]


class Bench:
    def __init__(self, options: argparse.Namespace) -> None:
        self.draw = random.Random(options.seed)
        self.breakdown: bool = options.breakdown
        self._device = [f"--device={options.device}"] if options.device != "cpu" else []
        self.parts: dict[str, Part] = {}
        self.big: Big | None = None
        self._slower: dict[tuple[int, str], float] = {}

    def _running(
        self, launcher: list[str], arguments: list[str], *, observed: bool = False, script: Path = SCRIPT
    ) -> AbstractContextManager[Watched]:
        return running(launcher, [*arguments, *self._device], observed=observed, script=script)

    def kills(self, key: str, workers: int, count: int, arguments: list[str], script: Path = SCRIPT) -> None:
        more = ", datasets and lightning imported" if script == IMPORTS else "".join(f", {a[2:]}" for a in arguments)
        part = self._part(key, f"SIGKILL, {workers} workers{more}", workers, arguments)
        nodes = [*ONE_NODE, f"--nproc-per-node={workers}"]
        with self._running(nodes, arguments, observed=self.breakdown, script=script) as watched:
            for _ in progress(part.name, range(count)):
                part.costs.append(self._fault(watched, workers, kill))

    def stops(self, count: int) -> None:
        part = self._part("stop", "SIGSTOP, 4 workers", 4, [])
        with self._running([*ONE_NODE, "--nproc-per-node=4"], []) as watched:
            for _ in progress(part.name, range(count)):
                part.costs.append(self._fault(watched, 4, stop))

    def exceptions(self, count: int) -> None:
        """Timed from the moment at which the script raises, which it says in the exception's text."""
        part = self._part("exception", "exception, 4 workers", 4, [])
        with self._running([*ONE_NODE, "--nproc-per-node=4"], []) as watched:

            def act(worker: str) -> tuple[float, None]:
                told = strike(worker, signal.SIGUSR1)
                watched.wait(lambda: watched.events.first("error", told, worker) is not None, "the script had raised")
                error = watched.events.first("error", told, worker)
                assert error is not None
                return float(error["error"].rpartition(" ")[2]), None

            for _ in progress(part.name, range(count)):
                part.costs.append(self._fault(watched, 4, act))

    def leaves_and_joins(self, count: int) -> None:
        """One of four workers is a node of its own: it is told to leave, and another node joins in its place."""
        leaves = self._part("leave", "SIGTERM, 4 workers", 4, [])
        joins = Part("a node joins 3 workers", 1.0, os.getloadavg()[0])
        self.parts["join"] = joins
        nodes = _two_nodes()
        with self._running([*nodes, "--nproc-per-node=3"], []) as watched:
            for _ in progress("a node joins, and is told to leave", range(count)):
                before = watched.settled(3, steps=SETTLED_STEPS)
                step, begun = watched.events.median_step(before), time.time()
                node = watched.start([*nodes, "--nproc-per-node=1"], self._device)
                after = watched.settled(4, steps=SETTLED_STEPS)
                joins.costs.append(watched.events.cost(begun, step, before, before.workers, after))
                (newcomer,) = after.workers - before.workers
                leaves.costs.append(self._fault(watched, 4, tell_to_leave, newcomer, back=False))
                watched.end(node)

    def torchrun(self, count: int) -> None:
        part = Part("plain torchrun, SIGKILL, 4 workers", 1.0, os.getloadavg()[0])  # all four come back
        self.parts["torchrun"] = part
        with self._running([*TORCHRUN, "--nproc-per-node=4"], []) as watched:
            for _ in progress(part.name, range(count)):
                before = watched.settled(4, steps=SETTLED_STEPS)
                step = watched.events.median_step(before)
                time.sleep(self.draw.uniform(0.0, 2 * step))
                at, ended = kill(self.draw.choice(sorted(before.workers)))
                after = watched.settled(4, steps=SETTLED_STEPS, later_than=before)
                part.costs.append(watched.events.cost(at, step, before, after.workers, after, ended=ended))

    def large(self, count: int, workers: int = 3) -> None:
        busy, size = self._joins("a large state", BIG, count, workers)
        away, _ = self._joins("a large state, steps on an accelerator", AWAY, count, workers)
        gloo, tcp = (loopback.seconds(kind, workers, size) for kind in ("gloo", "tcp"))
        self.big = Big(workers, size, busy, away, gloo, tcp)

    def _joins(self, what: str, arguments: list[str], count: int, workers: int) -> tuple[list[Joined], int]:
        """A node of one worker joins one of the others, and leaves again. With it, a transfer's bytes."""
        found, size = list[Joined](), 0
        nodes, before_it = _two_nodes(), workers - 1
        with self._running([*nodes, f"--nproc-per-node={before_it}"], arguments, observed=True) as watched:
            for _ in progress(what, range(count)):
                before = watched.settled(before_it, steps=FEW_STEPS)
                step, begun = watched.events.median_step(before), time.time()
                node = watched.start([*nodes, "--nproc-per-node=1"], [*arguments, *self._device])
                after = watched.settled(workers, steps=2)
                pauses = watched.events.pauses(after, before.workers)
                assert pauses is not None
                took = next(event for event in reversed(watched.events.others) if event.get("role") == "takes")
                during = watched.events.during(begun, step, after, before.workers)
                found.append(Joined(pause=pauses[0], wait=pauses[1], during=during, transfer=took["seconds"]))
                size = took["bytes"]
                (newcomer,) = after.workers - before.workers
                self._fault(watched, workers, tell_to_leave, newcomer, back=False)
                watched.end(node)
        return found, size

    def _fault(
        self,
        watched: Watched,
        workers: int,
        act: Callable[[str], tuple[float, float | None]],
        victim: str | None = None,
        *,
        back: bool = True,
    ) -> Cost:
        """`act` on a worker, at a random moment of a step; it returns the fault's time and how long its end took."""
        apart = time.monotonic() + APART_S
        before = watched.settled(workers, steps=SETTLED_STEPS if workers > 3 else 4)
        time.sleep(max(0.0, apart - time.monotonic()))
        watched.events.read()
        step = watched.events.median_step(before)
        time.sleep(self.draw.uniform(0.0, 2 * step))
        at, ended = act(victim or self.draw.choice(sorted(before.workers)))
        events = watched.events

        def went_on() -> bool:
            return sum(events.went_on(worker, before) is not None for worker in before.workers) >= workers - 1

        watched.wait(went_on, "the survivors had applied a step")
        survivors = frozenset(worker for worker in before.workers if events.went_on(worker, before) is not None)
        after = watched.settled(workers, steps=SETTLED_STEPS if workers > 3 else 4) if back else None
        return events.cost(at, step, before, survivors, after, ended=ended)

    def _part(self, key: str, name: str, workers: int, arguments: list[str]) -> Part:
        load = os.getloadavg()[0]
        part = self.parts[key] = Part(name, self._ratio(workers, arguments), load)
        return part

    def _ratio(self, workers: int, arguments: list[str]) -> float:
        """A step of one worker less, over a step of so many."""
        key = workers, " ".join(arguments)
        if key not in self._slower:
            order = (workers, workers - 1, workers - 1, workers)
            steps = [(size, self._step(size, arguments)) for size in order]
            fewer, all_ = (sum(step for size, step in steps if size == n) for n in (workers - 1, workers))
            self._slower[key] = fewer / all_
        return self._slower[key]

    def _step(self, workers: int, arguments: list[str]) -> float:
        """The median step of an undisturbed run."""
        with self._running([*ONE_NODE, f"--nproc-per-node={workers}"], arguments) as watched:
            return watched.events.median_step(watched.settled(workers, steps=CALM_STEPS))


def _two_nodes() -> list[str]:
    """The launcher of each."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    where = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=bench"]
    return [*ELASTIC, "--nnodes=1:2", *where]


def stop(worker: str) -> tuple[float, None]:
    return strike(worker, signal.SIGSTOP), None


def tell_to_leave(worker: str) -> tuple[float, None]:
    return strike(worker, signal.SIGTERM), None


def quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def ms(values: Sequence[float]) -> str:
    """p50 / p99 in milliseconds."""
    return f"{1e3 * quantile(values, 0.5):,.0f} / {1e3 * quantile(values, 0.99):,.0f}" if values else ""


def costs_table(parts: Sequence[Part]) -> Table:
    table = Table(title="milliseconds, p50 / p99")
    table.add_column("", min_width=30)
    for part in parts:
        table.add_column(part.name, justify="right", max_width=15)

    def row(name: str, shown: Callable[[Part], str]) -> None:
        table.add_row(name, *(shown(part) for part in parts))

    def of(value: Callable[[Cost], float | None]) -> Callable[[Part], str]:
        return lambda part: ms(part.of(value))

    row("faults", lambda part: str(len(part.costs)))
    row("load of the machine before", lambda part: f"{part.load:.1f}")
    row("median step before", lambda part: f"{1e3 * statistics.median(cost.step for cost in part.costs):.0f}")
    row("a step of as many as survive, times that", lambda part: f"{part.slower:.2f}")
    row("fault to the next step", of(lambda cost: cost.total))
    row("  beyond the step before", lambda part: ms(part.beyond_before))
    row("  beyond the survivors' step", lambda part: ms(part.beyond_after))
    row("fault to the first who noticed", of(lambda cost: cost.noticed))
    row("longest step, beyond the survivors'", lambda part: ms(part.longest_beyond))
    row("steps begun again, per survivor", lambda part: f"{statistics.mean(cost.redone for cost in part.costs):.2f}")
    row("fault to the new worker's first step", of(lambda cost: cost.back))
    row("its join, beyond a step", of(lambda cost: cost.join))
    return table


def aims_table(parts: dict[str, Part]) -> Table:
    table = Table(title="aims")
    for column in ("aim", "limit", "found", "met"):
        table.add_column(column, justify="left" if column == "aim" else "right")

    def row(aim: str, limit: str, found: float, unit: str, met: bool) -> None:
        table.add_row(
            aim, limit, f"{found:.3f}{unit}" if unit == " s" else f"{found:.1f}{unit}", "yes" if met else "NO"
        )

    def at_most(aim: str, limit_s: float, values: Sequence[float], share: float) -> None:
        if values:
            found = quantile(values, share)
            row(f"{aim}, p{100 * share:.0f}", f"<= {limit_s:g} s", found, " s", found <= limit_s)

    for key in ("kill", "kill-loaders", "kill-batches"):
        if (part := parts.get(key)) is not None:
            for share, limit_s in ((0.5, 0.08), (0.99, 0.3)):
                at_most(f"{part.name}: beyond the survivors' step", limit_s, part.beyond_after, share)
                at_most(f"{part.name}: beyond the step before", limit_s, part.beyond_before, share)
            at_most(f"{part.name}: a worker is back", 1.0, part.of(lambda cost: cost.back), 0.99)
            at_most(f"{part.name}: its join costs survivors", 0.15, part.of(lambda cost: cost.join), 0.99)
    if (part := parts.get("kill-imports")) is not None:
        at_most(f"{part.name}: a worker is back", 0.6, part.of(lambda cost: cost.back), 0.5)
        at_most(f"{part.name}: a worker is back", 0.6, part.of(lambda cost: cost.back), 0.99)
    if (part := parts.get("join")) is not None:
        at_most(f"{part.name}: costs survivors", 0.15, part.of(lambda cost: cost.join), 0.99)
    if (part := parts.get("leave")) is not None:
        again = sum(cost.redone for cost in part.costs)
        row(f"{part.name}: steps redone", "0", again, "", again == 0)
    if (part := parts.get("stop")) is not None:
        at_most(f"{part.name}: resolved", 3.0, part.of(lambda cost: cost.total), 0.99)
    if "torchrun" in parts and "kill" in parts:
        theirs, ours = (parts[key].of(lambda cost: cost.total) for key in ("torchrun", "kill"))
        for share in (0.5, 0.99):
            ratio = quantile(theirs, share) / quantile(ours, share)
            row(
                f"SIGKILL to the next step: torchrun's ÷ ours, p{100 * share:.0f}",
                ">= 40",
                ratio,
                " times",
                ratio >= 40,
            )
        beyond = [quantile(parts["torchrun"].beyond_after, 0.5), quantile(parts["kill"].beyond_after, 0.5)]
        row("the same beyond the step, p50", ">= 40", beyond[0] / beyond[1], " times", beyond[0] / beyond[1] >= 40)
    return table


def big_table(big: Big) -> Table:
    table = Table(
        title=f"a worker joins {big.workers - 1} others, {big.size / 1e6:,.0f} MB of state (about 50 M parameters)"
    )
    for column in ("", "seconds, median (least)", "GB/s", "÷ gloo alone", "÷ TCP alone"):
        table.add_column(column, justify="left" if not column else "right")
    transfers = [one.transfer for one in big.busy]
    rows = {
        "survivors, until they compute again": [one.pause for one in big.busy],
        "then, waiting for the newcomer": [one.wait for one in big.busy],
        "as on an accelerator: until they compute again": [one.pause for one in big.away],
        "then, waiting for it": [one.wait for one in big.away],
        "the transfer, until applied": transfers,
        "as on an accelerator": [one.transfer for one in big.away],
        "gloo send/recv alone": big.gloo,
        "TCP alone": big.tcp,
    }
    gloo, tcp = statistics.median(big.gloo), statistics.median(big.tcp)
    for name, values in rows.items():
        middle = statistics.median(values)
        spread = f"{middle:.2f} ({min(values):.2f})"
        speed = f"{big.size / 1e9 / middle:.2f}" if values in (transfers, big.gloo, big.tcp) else ""
        table.add_row(name, spread, speed, f"{middle / gloo:.2f}", f"{middle / tcp:.2f}")
    return table


def during_table(big: Big) -> Table:
    table = Table(title="the survivors' steps while that state is under way, in steps just before; medians (largest)")
    for column in ("", "a step before, s", "times as long", "its computing alone", "steps it is under way in"):
        table.add_column(column, justify="left" if not column else "right")
    for name, joins in {"steps take all processors": big.busy, "as on an accelerator": big.away}.items():
        during = [one.during for one in joins]

        def spread(values: list[float]) -> str:
            return f"{statistics.median(values):.2f} ({max(values):.2f})"

        step = f"{statistics.median(one.step for one in during):.2f}"
        whole, computing = (spread([getattr(one, which) for one in during]) for which in ("whole", "computing"))
        table.add_row(name, step, whole, computing, f"{max(one.steps for one in during)}")
    return table


_STAGES = {
    "ended": "the kernel ends the victim (seen from outside)",
    "peer_lost": "the last survivor has noticed",
    "form": "the view has come",
    "formed": "the group is formed",
    "transfer": "all know where all stand",
    "data": "exchange and loader are set up; first share",
    "exchange": "shares are computed",
    "update": "the exchange is done",
    "applied": "the step is applied",
}


def breakdown_table(part: Part) -> Table:
    table = Table(title=f"{part.name}: where the time goes, ms, medians of the last survivor's")
    for column in ("until", "since the signal", "since the line above", "p99 of that"):
        table.add_column(column, justify="left" if column == "until" else "right")
    earlier: str | None = None
    for name, text in _STAGES.items():
        if name == "ended":
            ended = part.of(lambda cost: cost.ended)
            table.add_row(text, f"{1e3 * statistics.median(ended):.1f}", "", f"{1e3 * quantile(ended, 0.99):.1f}")
            continue
        whole = [cost for cost in part.costs if name in cost.moments and (earlier is None or earlier in cost.moments)]
        since = [cost.moments[name] for cost in whole]
        steps = [cost.moments[name] - (cost.moments[earlier] if earlier else 0.0) for cost in whole]
        if whole:
            columns = statistics.median(since), statistics.median(steps), quantile(steps, 0.99)
            table.add_row(text, *(f"{1e3 * value:.1f}" for value in columns))
            earlier = name
    return table


def main() -> None:
    options = arguments()
    count = 20 if options.quick else options.faults
    few = max(3, count // 10)
    console = Console()
    console.print(
        f"seed {options.seed}, {os.cpu_count()} processors, load {' '.join(f'{x:.1f}' for x in os.getloadavg())}"
    )
    bench = Bench(options)
    scenarios: dict[str, Callable[[], None]] = {
        "kill": lambda: bench.kills("kill", 4, count, []),
        "kill-loaders": lambda: bench.kills("kill-loaders", 5, count, ["--num-workers=2"]),
        "kill-batches": lambda: bench.kills("kill-batches", 4, count, ["--batches"]),
        "kill-imports": lambda: bench.kills("kill-imports", 4, count, [], IMPORTS),
        "stop": lambda: bench.stops(count),
        "exception": lambda: bench.exceptions(count),
        "leave": lambda: bench.leaves_and_joins(few),
        "large": lambda: bench.large(few if options.quick else 5),
        "torchrun": lambda: bench.torchrun(few),
    }
    failed: list[str] = []
    with interruptible():
        for name, scenario in scenarios.items():
            if not options.only or name in options.only:
                print(f"{name}: undisturbed runs first", file=sys.stderr)
                try:
                    scenario()
                except Stuck as why:
                    failed.append(name)
                    print(f"{name} broke off: {why}", file=sys.stderr)
    parts = [part for part in bench.parts.values() if part.costs]
    for first in range(0, len(parts), PARTS_BESIDE):
        console.print(costs_table(parts[first : first + PARTS_BESIDE]))
    for part in parts:
        if any(cost.moments for cost in part.costs):
            console.print(breakdown_table(part))
    if bench.big is not None:
        console.print(big_table(bench.big))
        console.print(during_table(bench.big))
    console.print(aims_table({key: part for key, part in bench.parts.items() if part.costs}))
    console.print(f"load {' '.join(f'{x:.1f}' for x in os.getloadavg())}")
    if options.json is not None:
        found = {key: asdict(part) for key, part in bench.parts.items()}
        options.json.write_text(json.dumps({"parts": found, "large": bench.big and asdict(bench.big)}, indent=1))
    if failed:
        raise SystemExit(f"broke off: {', '.join(failed)}; see above")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=200, help="of each kind; a tenth where one takes many seconds")
    parser.add_argument("--quick", action="store_true", help="20 faults")
    parser.add_argument(
        "--only",
        nargs="+",
        help="kill, kill-loaders, kill-batches, kill-imports, stop, exception, leave (and join), large, torchrun",
    )
    parser.add_argument("--breakdown", action="store_true", help="where the time goes after SIGKILL")
    parser.add_argument("--device", default="cpu", help="where they train; cuda: on this machine's GPUs, in turn")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--json", type=Path, help="write every fault's cost there")
    return parser.parse_args()


if __name__ == "__main__":
    harness.run(main)
