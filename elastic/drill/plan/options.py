"""The command line of `elastic drill`, checked before anything starts. Pure but for reading a plan's file.

Everything before `--` is the drill's, and what follows is the script's: a misspelt option is an error, and never an
argument of the script that nobody reads.
"""

from __future__ import annotations

import argparse
import difflib
import os
import secrets
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from elastic.drill.faults.base import Fault
from elastic.drill.faults.host_faults import Heal, NetworkFault
from elastic.drill.faults.registry import NAMED, OF_SCRIPTS
from elastic.drill.hosts.hosts import missing
from elastic.drill.location import StorageRoot
from elastic.drill.plan import saves
from elastic.drill.plan.draw import draw_faults
from elastic.drill.plan.drill_plan import DrillPlan, StorageFaults
from elastic.drill.plan.fault_argument import faults_from, in_order
from elastic.drill.plan.flags import DEFAULT_FAULTS, DEFAULT_HOST_FAULTS, DEFAULT_RATE, WITHIN_S, parsed, parser
from elastic.drill.plan.replay import Replay, from_first
from elastic.errors import ConfigError
from elastic.plan import trace

_OF_THE_PLAN = (
    *("workers", "nodes", "hosts", "replica_size", "resume_workers", "seed", "faults", "rate", "grace", "trace"),
    *("save_every", "storage_errors", "storage_stalls", "torn_writes", "stale_listings"),
)
_NOT_OF_TORCHRUN = (
    *("storage", "storage_option", "storage_errors", "storage_stalls", "torn_writes", "stale_listings", "save_every"),
    *("undisturbed_workers", "grace", "stop_after", "cross_check", "hang_limit"),
)
_BOUNDS: tuple[tuple[tuple[str, ...], Callable[[float], bool], str], ...] = (
    (("within", "hang_limit", "undisturbed_workers", "grace", "speedup"), lambda value: value > 0, "above 0"),
    (("workers", "nodes", "hosts", "replica_size", "resume_workers"), lambda value: value >= 1, "1 or more"),
    (("stop_after",), lambda value: value >= 2, "2 or more"),
    (("cross_check",), lambda value: 0 <= value <= 1, "a part of all shares, from 0 to 1"),
    (("rate",), lambda value: 0 < value <= 1, "faults per step, above 0 and up to 1"),
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a drill, as its command line gives them.

    asked    the plan as far as it is known: all of it, unless faults are to be drawn
    kinds    what to draw, at `rate` faults per step; empty: nothing
    folder   where both runs go; None: a temporary one
    within_s how long each run may take
    hang_s   --hang-limit of `elastic run`; None: its own default
    storage_root  the URL below which both runs live; None: in `folder`
    replay_of  a recorded fleet, whose changes are faults
    torchrun  the script enters no elastic.Run, and is run as torchrun runs it
    steps    both runs are stopped after so many; None: where the script ends
    cross_check  this part of all shares is passed by two workers; None: as the script says
    saves    where all is lost before the script would have saved, the drill may set a cadence of its own
    """

    script: str
    module: bool
    args: tuple[str, ...]
    asked: DrillPlan
    kinds: tuple[str, ...]
    rate: float
    undisturbed_workers: int
    folder: Path | None
    keep: bool
    within_s: float
    hang_s: float | None
    steps: int | None = None
    torchrun: bool = False
    cross_check: float | None = None
    storage_root: StorageRoot | None = None
    saves: bool = True
    replay_of: Replay | None = None

    def plan(self, steps: int, step_s: float = 1.0) -> DrillPlan:
        """Return the plan for a run of so many steps.

        step_s  seconds of one of them without faults, for a replay with a speed-up
        """
        asked = self.asked
        if self.replay_of is not None:
            of_a_node = asked.workers // asked.nodes
            moved = self.replay_of.faults(nodes=asked.nodes, of_a_node=of_a_node, steps=steps, step_s=step_s)
            asked = replace(asked, faults=in_order((*asked.faults, *moved)))
        if not self.kinds:
            return asked
        assert asked.seed is not None
        found = draw_faults(asked.seed, kinds=self.kinds, rate=self.rate, steps=steps, **asked.sizes())
        return replace(asked, faults=in_order((*asked.faults, *found)))

    def replay(self, plan: Path) -> str:
        """Return the command that strikes the same faults again."""
        script = ["-m"] * self.module + [self.script]
        said = {
            "undisturbed-workers": None if self.undisturbed_workers == 1 else self.undisturbed_workers,
            "hang-limit": self.hang_s,
            "within": None if self.within_s == WITHIN_S else self.within_s,
            "stop-after": self.steps,
            "cross-check": self.cross_check,
        }
        options = [] if self.storage_root is None else self.storage_root.replay()
        options += [f"--{name}={value:g}" for name, value in said.items() if value is not None]
        rest = ["--", *self.args] if self.args else []
        return shlex.join(["elastic", "drill", *script, "--plan", str(plan), *options, *rest])


def parse(argv: Sequence[str]) -> Options:
    """Return the options of a command line. Raises ConfigError; SystemExit for --help and what argparse refuses."""
    given = parsed(parser(), [*argv])
    if not given.module and not os.path.isfile(given.script):
        raise ConfigError(f"there is no script {given.script} (from {os.getcwd()}); for a module, use -m")
    for names, holds, bound in _BOUNDS:
        for name in names:
            if (value := getattr(given, name)) is not None and not holds(value):
                raise ConfigError(f"--{_flag(name)} must be {bound}; found {value:g}")
    if given.folder is not None and given.folder.exists() and any(given.folder.iterdir()):
        raise ConfigError(f"--folder {given.folder}: it is not empty, and a drill wants fresh storage")
    kinds = _kinds(given)
    plan = _replayed(given) if given.plan is not None else _asked(given, drawing=bool(kinds))
    if given.torchrun:
        _check_torchrun(given, plan, kinds)
    elif found := [fault for fault in plan.faults if fault.when.output is not None]:
        raise ConfigError(f"{found[0]}: a line of output is a moment with --torchrun alone; name a step instead")
    if given.storage_option and given.storage is None:
        raise ConfigError("--storage-option is one of --storage URL, which is not given")
    storage_root = StorageRoot.asked(given.storage, given.storage_option) if given.storage is not None else None
    _check_kinds(
        {**{fault.name: type(fault) for fault in plan.faults}, **{name: NAMED[name].kind for name in kinds}},
        hosts=plan.hosts,
        in_replicas=plan.replica_size > 1,
        elsewhere=storage_root is not None,
    )
    return Options(
        script=given.script,
        module=given.module,
        args=tuple(given.args),
        asked=plan,
        kinds=kinds,
        rate=given.rate if given.rate is not None else DEFAULT_RATE,
        undisturbed_workers=given.undisturbed_workers or 1,
        folder=given.folder,
        keep=given.keep,
        within_s=given.within,
        hang_s=given.hang_limit,
        steps=given.stop_after,
        torchrun=given.torchrun,
        cross_check=given.cross_check,
        storage_root=storage_root,
        saves=given.plan is None and given.save_every is None,
        replay_of=_replay(given, plan),
    )


def _check_torchrun(given: argparse.Namespace, plan: DrillPlan, kinds: Sequence[str]) -> None:
    """Raise ConfigError for an option, or what a plan says, that does nothing to a script that enters no Run.

    kinds  of faults, which are to be drawn
    """
    found = [name for name in _NOT_OF_TORCHRUN if getattr(given, name)]
    found += ["hosts"] * plan.hosts + ["replica_size"] * (plan.replica_size > 1)
    if found:
        raise ConfigError(
            f"--{_flag(found[0])} does nothing beside --torchrun, which runs a script without an elastic.Run"
        )
    unfit = [
        fault.in_words()
        for fault in plan.faults
        if not isinstance(fault, OF_SCRIPTS) or (fault.when.step is None and fault.when.output is None)
    ]
    if given.faults is not None:  # of the usual ones those are drawn that do
        unfit += [f"--faults {name}" for name in kinds if not issubclass(NAMED[name].kind, OF_SCRIPTS)]
    if unfit:
        raise ConfigError(
            f"{unfit[0]}: that strikes a script in an elastic.Run alone; beside --torchrun are --kill, --stop, "
            "--lose-all, --kill-agent, --leave-node and --join, each at a step, or at a line of output"
        )


def _replay(given: argparse.Namespace, plan: DrillPlan) -> Replay | None:
    """Return the recorded fleet that --trace names; None: it is not given. Raises ConfigError."""
    if given.trace is None:
        if given.speedup is not None:
            raise ConfigError("--speedup is that of --trace NAME, which is not given")
        return None
    if plan.hosts:
        raise ConfigError("--trace is of nodes on one machine: use --nodes N instead of --hosts")
    found = Replay(trace.read(given.trace), given.speedup)
    from_first(found.trace, plan.nodes)
    return found


def _check_kinds(kinds: Mapping[str, type[Fault]], *, hosts: bool, in_replicas: bool, elsewhere: bool) -> None:
    """Raise ConfigError if one of these kinds cannot strike on this machine, on hosts, or where the run lives.

    kinds  by the names that the user knows them by
    """
    for kind in set(kinds.values()):
        kind.check_machine()
    if found := [name for name, kind in kinds.items() if kind.misleads and in_replicas]:
        raise ConfigError(
            f"{min(found)} makes something wrong in one worker, which a run of sharded models does not look for; "
            "leave out --replica-size"
        )
    if hosts and (why := missing()) is not None:
        raise ConfigError(f"--hosts {why}")
    if found := [name for name, kind in kinds.items() if kind.needs_hosts and not hosts]:
        raise ConfigError(f"{min(found)} strikes a whole host: it needs --hosts N, and root")
    if found := [name for name, kind in kinds.items() if hosts and not kind.on_hosts]:
        raise ConfigError(
            f"{min(found)} cannot strike hosts, only nodes of one machine: use --nodes N instead of --hosts"
        )
    if hosts and elsewhere:
        raise ConfigError("--hosts have a network of their own, which reaches no object store; leave out --storage")
    if found := [name for name, kind in kinds.items() if kind.in_folder and elsewhere]:
        raise ConfigError(
            f"{min(found)} needs a run in a folder of this machine; leave out --storage, or use --torn-writes"
        )


def _kinds(given: argparse.Namespace) -> tuple[str, ...]:
    """Return the names of the kinds of faults to draw; empty: nothing is drawn. Raises ConfigError."""
    named = any(getattr(given, name.replace("-", "_")) for name in NAMED) or _storage(given).any
    named = named or given.trace is not None
    text = given.faults
    if text is None:
        if given.plan is not None or (named and given.rate is None):
            return ()
        text = DEFAULT_FAULTS if given.hosts is None else DEFAULT_HOST_FAULTS
    kinds = tuple(kind.strip() for kind in text.split(",") if kind.strip())
    for kind in kinds:
        if kind not in NAMED:
            near = difflib.get_close_matches(kind, NAMED, n=1)
            raise ConfigError(
                f"--faults: unknown {kind!r}; "
                + (f"did you mean {near[0]!r}?" if near else f"known: {', '.join(NAMED)}")
            )
    if not kinds:
        raise ConfigError(f"--faults names none; known: {', '.join(NAMED)}")
    return kinds


def _replayed(given: argparse.Namespace) -> DrillPlan:
    """Return the plan in --plan's file. Raises ConfigError, also for a flag that says what the plan says."""
    both = [name for name in _OF_THE_PLAN if getattr(given, name) is not None]
    both += [name for name in map(_attribute, NAMED) if getattr(given, name)]
    if both:
        raise ConfigError(f"--plan says all that goes wrong and on how many workers; leave out --{_flag(both[0])}")
    try:
        return DrillPlan.from_json(given.plan.read_text())
    except (OSError, UnicodeDecodeError, ConfigError) as error:
        raise ConfigError(f"--plan {given.plan}: {error}") from error


def _asked(given: argparse.Namespace, *, drawing: bool) -> DrillPlan:
    """Return the plan that the flags ask for, without the faults that are still to be drawn. Raises ConfigError."""
    if given.hosts is not None and given.nodes is not None:
        raise ConfigError("--hosts says how many nodes there are; leave out --nodes")
    size = given.replica_size or 1
    workers = given.workers if given.workers is not None else size * (given.hosts or max(2, 4 // size))
    storage = _storage(given)
    seed = given.seed
    if seed is None and (drawing or storage.any):
        seed = secrets.randbelow(1_000_000)
    asked = faults_from({name: getattr(given, _attribute(name)) for name in NAMED})
    faults = tuple(fault.in_replicas(size) for fault in asked)
    if not drawing and isinstance(next((one for one in faults if isinstance(one, Heal | NetworkFault)), None), Heal):
        raise ConfigError("--heal: nothing has happened to the network by then")
    return DrillPlan(
        workers=workers,
        nodes=given.hosts or given.nodes or (workers // size if given.trace is not None else 1),
        hosts=given.hosts is not None,
        replica_size=size,
        resume_workers=given.resume_workers if given.resume_workers is not None else workers,
        seed=seed,
        grace_s=given.grace if given.grace is not None else 30.0,
        save_every=saves.asked(given.save_every) if given.save_every is not None else None,
        storage=storage,
        faults=faults,
    )


def _storage(given: argparse.Namespace) -> StorageFaults:
    return StorageFaults(
        errors=given.storage_errors or 0.0,
        stalls=given.storage_stalls or 0.0,
        torn=given.torn_writes or 0.0,
        stale=given.stale_listings or 0.0,
    )


def _attribute(name: str) -> str:
    return name.replace("-", "_")


def _flag(name: str) -> str:
    return name.replace("_", "-")
