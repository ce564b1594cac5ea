"""SIGKILL at random moments, from outside: of trainers, of the process that writes their saves, of the agent, of all.

The victims and moments are drawn from a seed, which is printed with the command that replays it; when exactly the
machine gets to each of them is its own affair. `make test` has a few; `make kills` a hundred, from a new seed.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from elastic.drill.cluster import Cluster
from elastic.drill.end import End
from elastic.drill.judge.review import review
from elastic.drill.machine.processes import kill_marked, marked, wait_until_gone
from elastic_checkpoint import Checkpointer
from elastic_checkpoint.save.writer import WRITER_MODULE
from tests.kit.sampling import NIGHTLY

SEED = int(os.environ.get("KILLS_SEED") or 41)
KILLS = int(os.environ.get("KILLS") or (8 if NIGHTLY else 4))
PROGRAM = Path(__file__).parents[1] / "kit" / "programs" / "soak.py"
WORKERS = 2
WITHIN_S = 240.0
WRITER_WITHIN_S = 4.0  # a coordinator starts one when it has trained for two
VICTIMS = {"trainer": 8, "writer": 7, "agent": 3, "all": 2}


@pytest.mark.nightly(sample=1, of="faults at random")
def test_whatever_is_killed_whenever_no_save_is_torn_and_the_run_is_the_undisturbed_one(
    elastic_cluster: Callable[..., Cluster], elastic_undisturbed: Callable[..., End], tmp_path: Path
) -> None:
    print(f"make kills KILLS={KILLS} KILLS_SEED={SEED}", flush=True)
    draw = random.Random(SEED)
    enough, hit = tmp_path / "enough", Counter[str]()
    run = elastic_cluster(
        script=PROGRAM, workers=WORKERS, launcher="elastic", restarts=10_000, full=99, enough=enough, save_every=4,
    )  # fmt: skip
    run.start()
    newest = 0
    for number in range(KILLS):
        goes_on(run)
        time.sleep(draw.uniform(0, 1.5))
        wanted = draw.choices(list(VICTIMS), list(VICTIMS.values()))[0]
        victim = strike(run, wanted, draw)
        hit[victim] += 1
        said = f"seed {SEED}, kill {number}: {victim}; so far {dict(hit)}"
        reported = max((event["step"] for event in run.events() if event["event"] == "saved"), default=0)
        with Checkpointer(run.url, log=lambda line: None) as runs:
            latest = runs.latest()
        assert (latest.step if latest else 0) >= max(newest, reported), said
        newest = latest.step if latest else 0
        if victim in ("agent", "all"):
            has_ended(run, run.pids()[0])
            run.start()

    goes_on(run)
    enough.touch()
    end = run.finish(within_s=WITHIN_S)
    verdict = review(run.url, end.events, steps=None, reference=None, lost_max=None)
    print(f"{dict(hit)}: {verdict.steps} steps, {verdict.redone} redone", flush=True)
    assert verdict.ok, f"seed {SEED}\n{verdict}\n{end.output}"
    assert (end.exit_code, end.left_behind) == (0, ()), f"seed {SEED}\n{end.output}"
    assert end.weights_sha256 == elastic_undisturbed(script=PROGRAM, stop_after=verdict.steps - 1).weights_sha256, SEED
    with Checkpointer(run.url) as runs:
        assert all(one.ok for one in runs.verify()), SEED


def goes_on(run: Cluster) -> None:
    """Returns once a step was applied after this moment."""
    since_s = time.time()
    run.wait_for(lambda event: event["event"] == "step_applied" and event["t"] > since_s, within_s=WITHIN_S)


def has_ended(run: Cluster, agent: int) -> None:
    """Returns once an agent that was killed is gone."""
    deadline = time.monotonic() + WITHIN_S
    while run.exit_codes()[agent] is None:
        assert time.monotonic() < deadline, f"agent {agent} was killed, and runs"
        time.sleep(0.01)


def strike(run: Cluster, wanted: str, draw: random.Random) -> str:
    """Kills, and returns what. Where there is no writer, a trainer is hit."""
    if wanted == "all":
        kill_marked(run.folder)
        wait_until_gone(run.folder, within_s=WITHIN_S)
        return "all"
    deadline = time.monotonic() + WRITER_WITHIN_S
    found = living(run)
    while wanted == "writer" and not found["writer"] and time.monotonic() < deadline:
        time.sleep(0.1)
        found = living(run)
    victim = wanted if found[wanted] else "trainer" if found["trainer"] else "agent"
    with contextlib.suppress(ProcessLookupError):
        os.kill(draw.choice(found[victim]), signal.SIGKILL)
    return victim


def living(run: Cluster) -> dict[str, list[int]]:
    alive = set(marked(run.folder))
    started = {event["pid"] for event in run.events() if event["event"] == "run_started"}
    return {
        "agent": run.pids(),
        "trainer": sorted(alive & started),
        "writer": sorted(pid for pid in alive if WRITER_MODULE.encode() in command(pid)),
    }


def command(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""
