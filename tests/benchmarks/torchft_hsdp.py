"""What does the loss of one member of a 2×2 cost, beside torchft's HSDP? python -m tests.benchmarks.torchft_hsdp

[--faults 2] [--steps 500] [--width 1200] [--seed S] Two replicas of two workers share a model each, over gloo. One
worker gets a SIGKILL at a random moment: how long until the other replica has applied its next step, and until both
take part again; how many steps are given up, and how many examples no step counts; and whether the weights in the end
are those of a run that nothing disturbed.

torchft is no dependency of the project. Beside this one's packages it needs none but itself:

    python -m pip install --no-deps --target build/torchft torchft==0.2.0
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from elastic.drill.machine.processes import MARK, kill_marked
from tests.benchmarks import harness
from tests.benchmarks.harness import interruptible, progress
from tests.benchmarks.torchft_hsdp_script import BATCH

ROOT = Path(__file__).resolve().parents[2]
TORCHFT = ROOT / "build" / "torchft"
SCRIPT = "tests.benchmarks.torchft_hsdp_script"
REPLICAS, MEMBERS = 2, 2
SETTLED_STEPS = 20
WITHIN_S, LATE_S = 300.0, 20.0
LIGHTHOUSES = {
    "torchft, as its README starts it": {"quorum_tick_ms": 100, "join_timeout_ms": 10_000},
    "torchft, tuned": {"quorum_tick_ms": 20, "join_timeout_ms": 200, "heartbeat_timeout_ms": 500},
}

LIGHTHOUSE = """
import json, sys
from torchft.coordination import LighthouseServer
server = LighthouseServer(bind="[::]:0", min_replicas=1, **json.loads(sys.argv[1]))
print(server.address(), flush=True)
sys.stdin.read()
server.shutdown()
"""


@dataclass(frozen=True, kw_only=True)
class Found:
    """Of one run. next_s, back_s: from the signal to the survivors' next step, and to the first of all replicas."""

    digests: frozenset[str]
    uncounted: int
    given_up: int
    step_s: float
    next_s: float = 0.0
    back_s: float | None = None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=2, help="runs in which a member is killed, of each")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--width", type=int, default=1200, help="1200: 1.8 M parameters")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    if not (TORCHFT / "torchft").is_dir():
        print(f"skipped: torchft is not in {TORCHFT}; --help says how it comes there")
        return 0
    arguments = [f"--steps={options.steps}", f"--width={options.width}"]
    with interruptible():
        for name in ("elastic run", *LIGHTHOUSES):
            calm = once(name, arguments, None)
            draw = random.Random(options.seed)
            found = [once(name, arguments, draw) for _ in progress(f"members killed, {name}", range(options.faults))]
            tell(name, calm, found)
    return 0


def tell(name: str, calm: Found, found: Sequence[Found]) -> None:
    back = [f"{one.back_s:.1f}" if one.back_s is not None else "never" for one in found]
    same = sum(one.digests == calm.digests and len(one.digests) == 1 for one in found)
    print(
        f"{name}: a step {calm.step_s * 1e3:.0f} ms; from the SIGKILL to the survivors' next step "
        f"{', '.join(f'{one.next_s * 1e3:.0f}' for one in found)} ms, until both replicas take part "
        f"{', '.join(back)} s; steps given up {[one.given_up for one in found]}; examples that no step counts "
        f"{[one.uncounted for one in found]}; weights in the end as undisturbed {same} of {len(found)}",
        flush=True,
    )


def once(name: str, arguments: Sequence[str], draw: random.Random | None) -> Found:
    """Run to the end; with `draw`, one worker is killed on the way."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as ends:
        out = Path(folder)
        (out / "tmp").mkdir()
        ends.callback(kill_marked, out)
        path = os.pathsep.join([str(ROOT), str(TORCHFT)])
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, "TMPDIR": f"{out}/tmp", MARK: folder}
        with (out / "log").open("wb") as log:
            started = [
                subprocess.Popen([sys.executable, *command], cwd=ROOT, env={**env, **more}, stdout=log, stderr=log)
                for command, more in commands(name, out, arguments, ends)
            ]
            try:
                killed = strike(out, started, draw) if draw is not None else None
                wait_for(started)
            except Exception as failed:
                raise RuntimeError((out / "log").read_text(errors="replace")[-6000:]) from failed
        return judged(read(out), killed)


def wait_for(started: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait until one has ended, then a while for the rest: under torchft, who comes too late waits for the others."""
    deadline = time.monotonic() + WITHIN_S
    while all(one.poll() is None for one in started):
        if time.monotonic() > deadline:
            raise RuntimeError(f"no end within {WITHIN_S:.0f} s")
        time.sleep(0.05)
    deadline = time.monotonic() + LATE_S
    while any(one.poll() is None for one in started) and time.monotonic() < deadline:
        time.sleep(0.05)
    if all(one.returncode for one in started):
        raise RuntimeError(f"all failed: {[one.returncode for one in started]}")


def commands(
    name: str, out: Path, arguments: Sequence[str], ends: ExitStack
) -> Iterator[tuple[Sequence[str], Mapping[str, str]]]:
    """Yield what is started, with what stands in its environment."""
    if name not in LIGHTHOUSES:
        run = ["-m", "elastic", "run", "--standalone", f"--nproc-per-node={REPLICAS * MEMBERS}"]
        yield [*run, f"--replica-size={MEMBERS}", "-m", SCRIPT, str(out), *arguments], {}
        return
    lighthouse = subprocess.Popen(
        [sys.executable, "-c", LIGHTHOUSE, json.dumps(LIGHTHOUSES[name])],
        env={**os.environ, "PYTHONPATH": str(TORCHFT), MARK: str(out)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # a line for each step
        text=True,
    )
    ends.callback(lighthouse.communicate)
    assert lighthouse.stdout is not None
    address = lighthouse.stdout.readline().strip()
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={MEMBERS}", "--max-restarts=9"]
    for replica in range(REPLICAS):
        of = f"--torchft={replica}:{REPLICAS}"
        yield [*torchrun, "-m", SCRIPT, str(out), *arguments, of], {"TORCHFT_LIGHTHOUSE": address}


Lines = dict[str, list[dict[str, Any]]]


def read(out: Path) -> Lines:
    """Return what each worker has written, by the replica and its process."""
    return {
        file.stem: [json.loads(line) for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]
        for file in out.glob("*.jsonl")
    }


def strike(out: Path, started: Sequence[subprocess.Popen[bytes]], draw: random.Random) -> tuple[float, frozenset[str]]:
    """Kill a worker once all are at work; return when, and who all had been."""
    deadline = time.monotonic() + WITHIN_S
    while True:
        lines = read(out)
        if len(lines) == REPLICAS * MEMBERS and all(len(one) >= SETTLED_STEPS for one in lines.values()):
            break
        if time.monotonic() > deadline or any(one.poll() is not None for one in started):
            raise RuntimeError("the workers did not come to work")
        time.sleep(0.05)
    time.sleep(draw.uniform(0, 0.2))
    victim, at = draw.choice(sorted(lines)), time.time()
    os.kill(int(victim.rpartition("-")[2]), signal.SIGKILL)
    return at, frozenset(lines)


def judged(lines: Lines, killed: tuple[float, frozenset[str]] | None) -> Found:
    """Return what a run came to."""
    digests = frozenset(line["digest"] for of in lines.values() for line in of if "digest" in line)
    steps = {name: [line for line in of if "step" in line] for name, of in lines.items()}
    applied = {line["step"]: line["replicas"] for of in steps.values() for line in of if line["applied"]}
    # a Run's replicas pass all of a batch however many they are; torchft's their own part of it
    parts = 0 if any(name.startswith("run") for name in steps) else REPLICAS
    uncounted = sum(BATCH * (parts - replicas) // parts for replicas in applied.values()) if parts else 0
    given_up = max(sum(line["given_up"] for line in of) for of in steps.values())
    some = max(steps.values(), key=len)
    step_s = statistics.median(later["t"] - earlier["t"] for earlier, later in pairwise(some))
    if killed is None:
        return Found(digests=digests, uncounted=uncounted, given_up=given_up, step_s=step_s)
    at, before = killed
    survivors = [name for name in before if any("digest" in line for line in lines[name])]
    after = [[line for line in steps[name] if line["t"] > at and line["applied"]] for name in survivors]
    alone_t = min((line["t"] for of in after for line in of if line["replicas"] < REPLICAS), default=at)
    whole = [line["t"] for of in after for line in of if line["replicas"] == REPLICAS and line["t"] > alone_t]
    return Found(
        digests=digests,
        uncounted=uncounted,
        given_up=given_up,
        step_s=step_s,
        next_s=max(of[0]["t"] for of in after) - at,
        back_s=min(whole) - at if whole else None,
    )


if __name__ == "__main__":
    harness.run(main)
