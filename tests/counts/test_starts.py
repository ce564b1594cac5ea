"""Starts and ends of `elastic run`, one after the other, whenever and however each is ended: what do they leave?

No process, and with it no port; no temporary file; nothing in /dev/shm. When each is ended, and how, is drawn from a
seed, which is printed. How many: `make counts STARTS=200 COUNTS_SEED=7`.
"""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from elastic.drill.machine import processes
from elastic.drill.machine.leftovers import Snapshot
from tests.kit.launch import POLL_S, Launch
from tests.kit.sampling import NIGHTLY

pytestmark = pytest.mark.nightly(sample=3, of="counts")

SEED = int(os.environ.get("COUNTS_SEED") or 41)
STARTS = int(os.environ.get("STARTS") or (12 if NIGHTLY else 6))
PROGRAM = Path(__file__).parents[1] / "kit" / "programs" / "small.py"
STEPS = 8
WITHIN_S = 240.0
GONE_S = 30.0  # what an agent that was killed has started ends by itself
HOW = {None: 3, signal.SIGTERM: 3, signal.SIGINT: 2, signal.SIGKILL: 3}
ENDS_WITH = {None: {0}, signal.SIGTERM: {0, -signal.SIGTERM}, signal.SIGINT: {130, -signal.SIGINT}}
"""Before anything is there to be ended in order, a signal does what it does to any process."""


def test_nothing_is_left_however_a_run_is_ended(tmp_path: Path) -> None:
    print(f"make counts STARTS={STARTS} COUNTS_SEED={SEED}", flush=True)
    draw, ended, seen = random.Random(SEED), Counter[str](), set[int]()
    (tmp_path / "tmp").mkdir()
    before = Snapshot.take(tmp_path)
    for number in range(STARTS):
        last = number == STARTS - 1
        how = None if last else draw.choices([*HOW], [*HOW.values()])[0]
        said = f"seed {SEED}, start {number}, ended by {how.name if how else 'itself'}"
        status = started(tmp_path, number, how, draw, seen, said)
        ended[f"{how.name if how else 'by itself'}: {status}"] += 1
        # What a worker that was killed has left, the next one removes; so after the last one nothing is there.
        assert before.new(tmp_path, seen, killed=not last) == [], said
    print(f"{STARTS} starts, nothing left: {dict(ended)}", flush=True)


def started(
    folder: Path, number: int, how: signal.Signals | None, draw: random.Random, seen: set[int], said: str
) -> int:
    """Its exit status, once none of its processes is there. seen: gets their ids"""
    script = [PROGRAM, folder / f"run-{number}", f"--steps={STEPS}", "--num-workers=1"]
    script += [f"--slow-until={folder / 'never'}"] * (how is not None)
    with Launch(
        "elastic", ["run", "--standalone", "--nproc-per-node=2", *script], env={"TMPDIR": str(folder / "tmp")}
    ) as launch:
        if how is not None:
            early, step = draw.random() < 0.3, draw.randrange(STEPS // 2)
            if not early:
                launch.wait_for(lambda: f"step {step} loss" in launch.output, f"step {step}", within_s=WITHIN_S)
            time.sleep(draw.uniform(0, 1))
            seen.update(launch.pids)
            launch.send(how)
        deadline = time.monotonic() + WITHIN_S
        while (status := launch.process.poll()) is None:
            seen.update(launch.pids)
            assert time.monotonic() < deadline, f"{said}: not ended\n{launch.output}"
            time.sleep(POLL_S)
        assert status in ENDS_WITH.get(how, {-signal.SIGKILL}), f"{said}: {status}\n{launch.output}"
        assert not re.search(r"^Traceback", launch.output, re.M) or how is signal.SIGKILL, f"{said}\n{launch.output}"
        deadline = time.monotonic() + GONE_S
        while (left := launch.pids) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        assert not left, f"{said}\n" + "\n".join(map(processes.describe, left))
        return status
