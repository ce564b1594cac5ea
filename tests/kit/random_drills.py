"""Draws a whole drill from a seed: the script, how many workers on how many nodes or hosts, and all that goes wrong.

A pure function: the same seed is the same drill on every machine, whatever was drawn before. There are SCRIPTS sets of
options, so that drills share undisturbed runs. Running them is run_drills.py's.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from elastic.data.data_plan import DataPlan, LastBatch
from elastic.drill.faults import (
    IN_TRANSFER,
    NAMED,
    At,
    Cut,
    Fault,
    Kill,
    KillAgent,
    KillAll,
    KillTogether,
    LeaveNode,
    OutOfStep,
    Partition,
    Raise,
    Stop,
    Terminate,
)
from elastic.drill.plan.draw import draw_faults
from elastic.drill.plan.drill_plan import DrillPlan, StorageFaults

VARIED = "varied.py"
SCRIPTS = 60
HABITS = (
    *("unfreezing", "freezing", "later-group", "langevin", "teacher"),
    *("observer", "reassigned", "hooked", "annealing", "compiled"),
)
FAULTS_MAX = 6
HOST_PAUSE_S = 0.2
HOST_SCRIPTS = (2, 4, 11, 12, 15, 16, 21, 22, 42, 43, 48)  # of 30 steps or more, for 6 workers
OF_HOSTS = [name for name, one in NAMED.items() if one.kind.needs_hosts and name != "heal"]
OUT_OF_STEP_S = 12  # --timeout where a worker is to leave out a collective, for which the others wait so long
STUCK_S = 6.0  # --hang-limit where data is to hang; elsewhere nobody waits for it
OF_A_RECOVERY = ("form", "formed", "transfer", IN_TRANSFER)
OF_THE_COORDINATOR = ("save", "saved")
_TAKES_A_WHILE_S = 4.0  # until a coordinator has a writer process for sure


@dataclass(frozen=True, kw_only=True)
class Script:
    """Options of a program of tests/kit/programs.

    steps          that it applies
    pause          after each step, seconds
    takes_timeout  it has an option for how long a collective may take
    streams        its data is a stream, which nobody can read once more
    sharded        its model is, so nobody passes a share once more
    """

    args: tuple[str, ...]
    steps: int
    pause: float
    num_workers: int
    save_every: str
    evaluates: bool
    habit: str | None
    exact: bool = True
    takes_timeout: bool = False
    streams: bool = False
    sharded: bool = False


@dataclass(frozen=True, kw_only=True)
class RandomDrill:
    """
    seed     that drew it
    args     of the script, after the run's URL
    hang_s   --hang-limit; None: its default
    program  the script, of tests/kit/programs
    """

    seed: int
    args: tuple[str, ...]
    plan: DrillPlan
    hang_s: float | None
    program: str = VARIED

    def to_json(self) -> str:
        document = {"seed": self.seed, "program": self.program, "args": self.args, "hang_s": self.hang_s}
        return json.dumps({**document, "plan": json.loads(self.plan.to_json())}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> RandomDrill:
        """The drill that to_json wrote, whatever its seed would draw today."""
        said = json.loads(text)
        plan = DrillPlan.from_json(json.dumps(said["plan"]))
        program = said.get("program", VARIED)
        return cls(seed=said["seed"], args=tuple(said["args"]), plan=plan, hang_s=said["hang_s"], program=program)


def script(number: int) -> Script:
    """The options that have this number."""
    draw = random.Random(f"the script of random drills {number}")
    batch_size = draw.choice((12, 17, 24, 25, 30, 33))
    virtual_workers = draw.choice((4, 5, 6, 8, 8))
    last_batch: LastBatch = draw.choice(("short", "short", "drop", "carry"))
    length = batch_size * draw.randrange(3, 14) + draw.choice((0, draw.randrange(1, batch_size)))
    micro_batch_size = draw.choice((None, None, draw.randrange(1, 4)))
    ends = {"epochs": draw.randrange(1, 4)} if draw.random() < 0.3 else {"steps": draw.randrange(12, 41)}
    sizes = DataPlan(
        dataset_length=length, batch_size=batch_size, virtual_workers=virtual_workers, seed=0, last_batch=last_batch,
        epochs=ends.get("epochs"), steps=ends.get("steps"),
    )  # fmt: skip
    steps = min(40, sizes.total_steps)
    if sizes.total_steps < 12:
        steps, ends = 12, {"steps": 12}
    stop_after = draw.randrange(steps // 2, steps) if steps < sizes.total_steps or draw.random() < 0.15 else None
    whole = last_batch == "drop" or length % batch_size == 0 or (last_batch == "carry" and "steps" in ends)
    even = whole and micro_batch_size is None and batch_size >= 2 * virtual_workers  # no share of one example
    pause = draw.choice((0.0, 0.03, 0.15))
    num_workers = draw.choice((0, 0, 1, 2))
    save_every = draw.choice(("1", "2", "3", "5", "10", "0.2s", "1s", "auto"))
    evaluate_every = draw.choice((None, None, draw.randrange(2, 8)))
    habit = draw.choice((None,) * len(HABITS) + HABITS)
    if habit == "teacher" and not even:  # its teacher has BatchNorm
        habit = "freezing"
    said = {
        **ends,
        "length": length,
        "batch-size": batch_size,
        "virtual-workers": virtual_workers,
        "micro-batch-size": micro_batch_size,
        "last-batch": last_batch,
        "num-workers": num_workers,
        "save-every": save_every,
        "mode": draw.choice(("exact",) * 9 + ("fast",)),
        "norm": "batch" if even and draw.random() < 0.7 else "layer",
        "optimizer": draw.choice(("adamw", "sgd")),
        "evaluate-every": evaluate_every,
        "stop-after": stop_after,
        "pause": pause,
        "habit": habit,
    }
    flags = [f"--{name}" for name in ("scheduler", "average") if draw.random() < 0.5]
    if habit == "later-group" and "--scheduler" in flags:  # torch's schedulers know the groups of their beginning
        flags.remove("--scheduler")
    return Script(
        args=(*(f"--{name}={value}" for name, value in said.items() if value is not None), *flags),
        steps=stop_after or steps,
        pause=pause,
        num_workers=num_workers,
        save_every=save_every,
        evaluates=evaluate_every is not None,
        habit=habit,
        exact=said["mode"] == "exact",
        takes_timeout=True,
    )


def random_drill(seed: int) -> RandomDrill:
    """The drill of this seed."""
    draw = random.Random(f"random drill {seed}")
    options = script(draw.randrange(SCRIPTS))
    workers = draw.choice((1, 2, 3, 3, 4, 4))
    nodes = 2 if workers % 2 == 0 and draw.random() < 0.5 else 1
    resume_workers = draw.choice((workers, workers, 1, 2, 3, 4))
    possible = fitting(options)
    kinds = draw.sample(possible, min(len(possible), draw.randrange(1, 7)))
    rate = min(draw.choice((0.05, 0.1, 0.2, 0.3, 0.4)), FAULTS_MAX / options.steps)
    faults = draw_faults(
        seed, kinds=kinds, rate=rate, steps=options.steps, workers=workers, nodes=nodes, resume_workers=resume_workers
    )
    plan = DrillPlan(
        workers=workers,
        nodes=nodes,
        resume_workers=resume_workers,
        seed=seed,
        grace_s=draw.choice((3.0, 30.0)),
        storage=storage_faults(draw),
        faults=sharpened(draw, faults, options, workers=workers, nodes=nodes, resume_workers=resume_workers),
    )
    hang_s = STUCK_S if "stick-loader" in kinds else None
    timeout = [f"--timeout={OUT_OF_STEP_S}"] * any(isinstance(fault, OutOfStep) for fault in plan.faults)
    return RandomDrill(seed=seed, args=(*options.args, *timeout), plan=plan, hang_s=hang_s)


def random_host_drill(seed: int) -> RandomDrill:
    """The drill of hosts of this seed: most are struck as hosts, the first one with them, and some workers are killed.

    Its script is one of a few, slow enough for who was cut off to come back.
    """
    draw = random.Random(f"random drill of hosts {seed}")
    options = script(draw.choice(HOST_SCRIPTS))
    hosts = draw.choice((3, 4, 4, 5))
    of_a_node = draw.choice((1, 1, 1, 2)) if hosts == 3 else 1
    kinds = draw.sample(OF_HOSTS, draw.randrange(2, 5)) + ["kill"] * (draw.random() < 0.5)
    kinds += ["join"] * (of_a_node == 1 and draw.random() < 0.4)
    faults = draw_faults(
        seed,
        kinds=kinds,
        rate=draw.randrange(2, 5) / options.steps,
        steps=options.steps,
        workers=hosts * of_a_node,
        nodes=hosts,
        resume_workers=hosts * of_a_node,
    )
    plan = DrillPlan(
        workers=hosts * of_a_node,
        nodes=hosts,
        hosts=True,
        resume_workers=hosts * of_a_node,
        seed=seed,
        faults=tuple(_of_a_side(draw, fault, hosts) for fault in faults),
    )
    return RandomDrill(seed=seed, args=(*options.args, f"--pause={HOST_PAUSE_S}"), plan=plan, hang_s=None)


def _of_a_side(draw: random.Random, fault: Fault, hosts: int) -> Fault:
    """Sides of one host and more, and cuts of all lengths: shorter than the lease, and longer."""
    if isinstance(fault, Partition):
        others = draw.sample(range(1, hosts), draw.randrange(hosts // 2))
        return replace(fault, workers=(fault.worker, *(one for one in others if one != fault.worker)))
    if isinstance(fault, Cut):
        return replace(fault, seconds=draw.choice((1.0, 4.0, 6.0, 6.0, 9.0)))
    return fault


def fitting(options: Script) -> list[str]:
    """Kinds of faults whose moment comes for sure."""
    without = set()
    if options.num_workers == 0:
        without.add("kill-loader")
    if options.save_every not in ("1", "2", "3", "0.2s"):
        without.update(("flip-bytes", "lose-checkpoint"))
    if options.pause * options.steps < _TAKES_A_WHILE_S:
        without.add("kill-writer")
    if options.habit == "compiled":  # its first step takes longer than STUCK_S
        without.add("stick-loader")
    if not options.takes_timeout:
        without.update(("skip-exchange", "repeat-exchange"))
    if not options.exact or options.sharded:
        without.update(name for name, one in NAMED.items() if one.kind.misleads)
    if options.streams:  # what is passed twice is a copy of what was read, which nobody has read beside it
        without.add("corrupt-batch")
    if options.save_every not in ("1", "2", "3"):  # what is wrong in a state is found behind a save
        without.update(("corrupt-weight", "corrupt-moment", "stale-state"))
    return [name for name, one in NAMED.items() if not one.kind.needs_hosts and name not in without]


def storage_faults(draw: random.Random) -> StorageFaults:
    if draw.random() < 0.6:
        return StorageFaults()
    return StorageFaults(
        errors=draw.choice((0.0, 0.02, 0.05)),
        stalls=draw.choice((0.0, 0.0, 0.02)),
        torn=draw.choice((0.0, 0.0, 0.03)),
        stale=draw.choice((0.0, 0.1, 0.3)),
    )


def sharpened(
    draw: random.Random,
    faults: Sequence[Fault],
    options: Script,
    *,
    workers: int,
    nodes: int,
    resume_workers: int,
    replica_size: int = 1,
) -> tuple[Fault, ...]:
    """The same plan with some faults at rarer moments, of several workers at once, or in a recovery from another."""
    found: list[Fault] = []
    there = workers  # for sure
    for fault in faults:
        step = fault.when.step
        if isinstance(fault, Kill) and there > 2 and draw.random() < 0.3:
            among = draw.sample(range(there), draw.randrange(2, there + 1) if draw.random() < 0.3 else 2)
            found.append(KillTogether(tuple(among), fault.when))
            if len({rank // replica_size for rank in among}) * replica_size == there:
                there = replica_size
        elif isinstance(fault, Kill) and fault.worker == 0 and options.save_every in ("1", "2") and draw.random() < 0.5:
            found.append(replace(fault, when=replace(fault.when, phase=draw.choice(OF_THE_COORDINATOR))))
        elif isinstance(fault, Kill | Stop | Raise) and options.evaluates and draw.random() < 0.2:
            found.append(replace(fault, when=replace(fault.when, phase="evaluate")))
        else:
            found.append(fault)
        if isinstance(fault, Kill | Stop | Raise) and there > 2 and draw.random() < 0.35:
            of_recovery = Kill(draw.randrange(2), At(step, draw.choice(OF_A_RECOVERY), later=True))
            lost = replica_size * len(found[-1].ranks)
            if there - lost > of_recovery.worker:  # a newcomer has applied nothing, so it is not struck
                found.append(of_recovery)
        if isinstance(fault, KillAll):
            there = resume_workers
        elif isinstance(fault, KillAgent | LeaveNode):
            there = max(1, there - workers // nodes)
        elif isinstance(fault, Terminate):
            there -= replica_size
    return tuple(found)
