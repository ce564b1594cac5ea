"""Many random faults in one run: whatever happens to it, it is the run that nobody touched, and it leaks nothing.

The plan is drawn from a seed, and printed before the run. `make test` runs a short one with a seed of its own; the long
one is `make soak SEED=7 FAULTS=50`; without them, 200 from a seed of its own.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import time
from collections.abc import Callable
from pathlib import Path

from elastic.drill.cluster import Cluster
from elastic.drill.end import End
from elastic.drill.faults import (
    IN_TRANSFER,
    OF_A_STEP,
    OF_THE_SCRIPT,
    At,
    Fault,
    Hold,
    Join,
    Kill,
    KillTogether,
    LeaveNode,
    Plan,
    Raise,
    Stop,
)
from elastic.drill.processes import marked

SEED = int(os.environ.get("SEED") or secrets.randbelow(1_000_000))
FAULTS = int(os.environ.get("FAULTS") or 12)
PROGRAM = Path(__file__).parents[1] / "kit" / "programs" / "soak.py"
WORKERS = 4
# gloo keeps a collective whose message was torn, and the threads, descriptors and sockets of its group, until its own
# deadline.
GIVEN_UP = ("did not end after a peer hung up", "a peer was lost while the group was formed")
OF_A_GROUP = 5
# A coordinator starts the writer process of its saves once it has trained for a while.
WRITER = b"checkpoint.resident"
OF_A_WRITER = {"writers": 1, "processes": 1, "descriptors": 4, "sockets": 1, "threads": 1}
SETTLED_S, CALM_S = 15.0, 2.5  # an agent forks its next spare a second after the last start


def drawn(seed: int, faults: int) -> Plan:
    """Each fault comes when all four are back, or, one in five, while they recover from the one before.

    The run is held after the first third, and at its end. In between the coordinator is spared: it is the survivor of
    all, whose descriptors and threads are counted.
    """
    draw = random.Random(seed)
    plan: list[Fault] = []
    while len(plan) < faults:
        first = len(plan) < faults // 3
        worker = draw.randrange(0 if first else 1, WORKERS)
        kind = draw.choice(["kill"] * 5 + ["together", "together", "stop", "raise", "raise", "leave"])
        when = At(None, draw.choice(OF_A_STEP), world_size=WORKERS)
        if plan and isinstance(plan[-1], Kill | Raise | Stop) and draw.random() < 0.25:
            plan.append(Kill(1, At(None, draw.choice(("form", "formed", "transfer", IN_TRANSFER)))))
        elif kind == "kill":
            plan.append(Kill(worker, when))
        elif kind == "together":
            plan.append(KillTogether((worker, {0: 2, 1: 3, 2: 1, 3: 2}[worker]), when))  # the first node keeps one
        elif kind == "stop":
            plan.append(Stop(worker, when))
        elif kind == "raise":
            here = draw.choice([phase for phase in OF_A_STEP if phase in OF_THE_SCRIPT])
            plan.append(Raise(worker, At(None, here, world_size=WORKERS)))
        else:
            plan += [LeaveNode(WORKERS - 1, when), Join(At(None, "forward", worker=0, world_size=WORKERS // 2))]
    held = Hold(0, At(None, "data", world_size=WORKERS))
    alone = [at for at, fault in enumerate(plan) if at >= faults // 3 and fault.when.world_size == WORKERS]
    third = alone[0] if alone else len(plan)  # not between a fault and the one that strikes its recovery
    return Plan((*plan[:third], held, *plan[third:], held), seed)


def test_a_run_of_random_faults_is_the_undisturbed_run_and_leaks_nothing(
    cluster: Callable[..., Cluster], undisturbed: Callable[..., End], tmp_path: Path
) -> None:
    """Replay with the first line that it prints."""
    plan = drawn(SEED, FAULTS)
    print(f"make soak SEED={SEED} FAULTS={FAULTS}", *plan.faults, sep="\n  ", flush=True)
    enough = tmp_path / "enough"
    run = cluster(
        script=PROGRAM, workers=WORKERS, launcher="elastic", nodes=2, nodes_max=1000, restarts=10_000, plan=plan,
        full=WORKERS, enough=enough,
    )  # fmt: skip
    run.wait_held(within_s=60 + 5 * FAULTS)
    before = settled(run)
    run.let_go()
    run.wait_held(within_s=60 + 5 * FAULTS)
    after = settled(run, at_most=before)
    enough.touch()
    run.let_go()
    end = run.finish(within_s=120)
    print(f"{end.verdict.steps} steps, {len(end.world_sizes)} views, {end.steps_redone} redone\n{before}\n{after}")

    assert end.verdict.ok, f"{plan}\n{end.verdict}\n{end.output}"
    assert (end.exit_code, end.left_behind, end.not_reached) == (0, (), ()), f"{plan}\n{end.output}"
    alone = undisturbed(script=PROGRAM, stop_after=end.verdict.steps - 1)
    assert end.weights_sha256 == alone.weights_sha256, f"{plan}"
    given_up = sum(e["event"] == "peer_lost" and any(of in e["error"] for of in GIVEN_UP) for e in end.events)
    over = beyond(before, after, given_up)
    assert not over, f"{plan}\n{over}\nbefore {before}\nafter  {after}, {given_up} given up"


def beyond(before: dict[str, int], after: dict[str, int], given_up: int = 0) -> list[str]:
    """What the run holds more of than it should."""
    found = []
    for what in before:
        kind, _, who = what.partition(" of the ")
        groups = given_up * OF_A_GROUP if kind in ("threads", "descriptors", "sockets") else 0
        writer = OF_A_WRITER.get(kind, 0) if who != "agent" and after["writers"] > before["writers"] else 0
        if after[what] > before[what] + groups + writer:
            found.append(what)
    return found


def settled(
    run: Cluster, *, at_most: dict[str, int] | None = None, within_s: float = 15, calm_s: float = 2.5
) -> dict[str, int]:
    """What the held run holds of the machine, once that is no more than `at_most`, or has not changed for a while."""
    deadline = time.monotonic() + within_s
    found, since_s = held(run), time.monotonic()
    while time.monotonic() < deadline:
        if at_most is not None and not beyond(at_most, found):
            break
        if at_most is None and time.monotonic() - since_s > CALM_S:
            break
        time.sleep(0.1)
        if (now := held(run)) != found:
            found, since_s = now, time.monotonic()
    return found


def held(run: Cluster) -> dict[str, int]:
    """Of the coordinator, of the first node's agent, and of the whole drill."""
    newest = [event for event in run.events() if event["event"] == "view_formed"][-1]
    pids = {"coordinator": int(newest["workers"][0].rsplit("-", 2)[1]), "agent": run.pids()[0]}
    running = marked(run.folder)
    found = {"processes": len(running), "shared memory": len(os.listdir("/dev/shm"))}
    found["writers"] = 0
    for pid in running:
        with contextlib.suppress(OSError):  # it has ended
            found["writers"] += WRITER in Path(f"/proc/{pid}/cmdline").read_bytes()
    for who, pid in pids.items():
        descriptors = [os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")]
        found[f"descriptors of the {who}"] = len(descriptors)
        found[f"sockets of the {who}"] = sum(link.startswith("socket:") for link in descriptors)
        found[f"threads of the {who}"] = len(os.listdir(f"/proc/{pid}/task"))
    return found
