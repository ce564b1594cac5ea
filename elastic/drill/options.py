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
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from elastic.drill import disk
from elastic.drill.draw import MAKES, drawn
from elastic.drill.faults import Disk, Fault, KillTogether, Slow
from elastic.drill.moments import BEFORE_STEPS, OF_A_SHARE, PHASES, At, place_of
from elastic.drill.plan import DrillPlan, StorageFaults
from elastic.errors import ConfigError

DEFAULT_FAULTS, DEFAULT_RATE = "kill,stop,leave,lose-all", 0.05
_WORDS = {"forming a view": "form", "forming": "form", "transferring": "transfer"}
_EXTRA = {"slow": ("seconds", "shares"), "disk-full": ("seconds",), "read-only": ("seconds",)}
_NO_WORKER = ("join", "lose-all", "kill-writer", "flip-bytes", "disk-full", "read-only")
_DESCRIPTION = (
    "Runs a training script twice, without faults and with faults, each in fresh storage of its own whatever URL the "
    "script names, and judges: the same weights, every example applied exactly once, nothing done twice, nothing left "
    "behind. The script is not changed. Arguments of the script that begin with a dash follow after --."
)
_EPILOG = """\
A moment is WORKER@step=N, or WORKER@step=N,phase=PHASE[,share=K]: the worker that has this rank when it passes that
phase of that step, or of the first step after it in which it can. PHASE is one of
  {phases}
(in_… is in the midst of it). Without a phase it is the beginning of a backward pass.

  elastic drill train.py --workers 4 --kill 2@step=30 --lose-all @step=70 --resume-workers 2
  elastic drill train.py --workers 4 --nodes 2 --seed 41 --faults kill,stop,leave,join,lose-all --rate 0.05
  elastic drill train.py --kill 1@step=30,phase=in_update --storage-errors 0.05 -- --epochs 3
  elastic drill -m package.train --plan plan.json

exit status  0 every invariant holds   1 one is broken   2 the drill could not be run as asked   130 interrupted
"""
_MOMENTS = {
    "kill": ("W@…", "SIGKILL to a worker; W,W@… kills several at once"),
    "stop": ("W@…", "SIGSTOP to a worker, which nobody wakes"),
    "leave": ("W@…", "SIGTERM to a worker: a notice to leave, and SIGKILL after --grace"),
    "join": ("@…", "another node arrives, with one worker"),
    "lose-all": ("@…", "SIGKILL to everything at once, agents included; the run is then started again"),
    "exception": ("W@…", "an exception in the script's code"),
    "oom": ("W@…", "no more memory, by a limit of the kernel's"),
    "slow": ("W@…", "a worker that lags: 0.1 s in each of 30 shares; W@…,seconds=S,shares=N for others"),
    "stick-loader": ("W@…", "a read that does not come back, until --hang-limit"),
    "kill-loader": ("W@…", "SIGKILL to one of a worker's loader processes"),
    "kill-warm": ("W@…", "SIGKILL to the warm process that its agent forks workers from"),
    "kill-writer": ("@…", "SIGKILL to the process that writes checkpoints"),
    "flip-bytes": ("@…", "a byte of the newest checkpoint is changed: it matters where --lose-all follows"),
    "disk-full": ("@…", "the run's disk is full for a second; @…,seconds=S for longer. Root only"),
    "read-only": ("@…", "the run's disk is read-only for a second; @…,seconds=S for longer. Root only"),
    "kill-agent": ("W@…", "SIGKILL to the agent of a worker's node"),
    "leave-node": ("W@…", "SIGTERM to the agent of a worker's node: all its workers leave"),
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """
    asked    the plan as far as it is known: all of it, unless faults are to be drawn
    kinds    what to draw, at `rate` faults per step; empty: nothing
    folder   where both runs go; None: a temporary one
    within_s how long each run may take
    hang_s   --hang-limit of `elastic run`; None: its own default
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

    def plan(self, steps: int) -> DrillPlan:
        """The plan for a run of so many steps."""
        asked = self.asked
        if not self.kinds:
            return asked
        assert asked.seed is not None
        sizes = {"workers": asked.workers, "nodes": asked.nodes, "resume_workers": asked.resume_workers}
        found = drawn(asked.seed, kinds=self.kinds, rate=self.rate, steps=steps, **sizes)
        return replace(asked, faults=_in_order((*asked.faults, *found)))

    def replay(self, plan: Path) -> str:
        """The command that strikes the same faults again."""
        script = ["-m"] * self.module + [self.script]
        rest = ["--", *self.args] if self.args else []
        undisturbed = [] if self.undisturbed_workers == 1 else [f"--undisturbed-workers={self.undisturbed_workers}"]
        hang = [] if self.hang_s is None else [f"--hang-limit={self.hang_s:g}"]
        return shlex.join(["elastic", "drill", *script, "--plan", str(plan), *undisturbed, *hang, *rest])


def parser() -> argparse.ArgumentParser:
    phases = ", ".join(PHASES)
    made = argparse.ArgumentParser(
        prog="elastic drill",
        usage="elastic drill [options] SCRIPT [-- arguments of the script]\n       elastic drill [options] -m MODULE …",
        description=_DESCRIPTION,
        epilog=_EPILOG.format(phases=phases.replace("loaded, ", "loaded,\n  ")),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("script", metavar="SCRIPT", help="a training script, or with -m a module")
    made.add_argument("args", nargs="*", metavar="ARG", help=argparse.SUPPRESS)
    made.add_argument("-m", "--module", action="store_true", help="SCRIPT is a module, as for python -m")
    who = made.add_argument_group("on how many workers")
    who.add_argument("--workers", type=int, metavar="N", help="in the run with faults (default 4)")
    who.add_argument("--nodes", type=int, metavar="N", help="agents, all on this machine (default 1)")
    who.add_argument("--resume-workers", type=int, metavar="N", help="after everything was lost (default: --workers)")
    who.add_argument(
        "--undisturbed-workers", type=int, default=1, metavar="N", help="in the run without faults (default 1)"
    )
    drawing = made.add_argument_group("faults drawn from a seed")
    drawing.add_argument("--seed", type=int, metavar="S", help="(default: one that is drawn, and printed)")
    drawing.add_argument(
        "--faults",
        metavar="KINDS",
        help=f"of {', '.join(MAKES)}, with commas between (default, where no fault is named: {DEFAULT_FAULTS})",
    )
    drawing.add_argument("--rate", type=float, metavar="R", help=f"faults per step (default {DEFAULT_RATE})")
    named = made.add_argument_group("faults at moments that you name (each may be given several times)")
    for name, (shape, what) in _MOMENTS.items():
        named.add_argument(f"--{name}", action="append", default=[], metavar=shape, help=what)
    named.add_argument("--grace", type=float, metavar="SECONDS", help="for --leave (default 30)")
    storage = made.add_argument_group("storage on a bad day: probabilities, per operation")
    storage.add_argument("--storage-errors", type=float, metavar="P", help="it fails, and may work when tried again")
    storage.add_argument("--storage-stalls", type=float, metavar="P", help="it takes 2 s longer")
    storage.add_argument("--torn-writes", type=float, metavar="P", help="a write leaves half of the object")
    storage.add_argument("--stale-listings", type=float, metavar="P", help="a listing shows what the last one showed")
    how = made.add_argument_group("the drill")
    how.add_argument("--plan", type=Path, metavar="FILE", help="replay a plan: it says workers, nodes and all faults")
    how.add_argument("--folder", type=Path, help="where both runs go: absent or empty (default: a temporary folder)")
    how.add_argument("--keep", action="store_true", help="keep both runs; those of a failed drill are kept anyway")
    how.add_argument("--within", type=float, default=900.0, metavar="SECONDS", help="for each run (default 900)")
    how.add_argument("--hang-limit", type=float, metavar="SECONDS", help="as for elastic run (default 30)")
    return made


def parse(argv: Sequence[str]) -> Options:
    """Raises ConfigError; prints and raises SystemExit for --help and what argparse refuses."""
    argv = list(argv)
    cut = argv.index("--") if "--" in argv else len(argv)
    made = parser()
    given, unknown = made.parse_known_intermixed_args(argv[:cut])
    if unknown:
        known = [text for action in made._actions for text in action.option_strings]
        near = difflib.get_close_matches(unknown[0].partition("=")[0], known, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(f"unknown option {unknown[0]}\n  next  {hint}The script's own options follow after --")
    if not given.module and not os.path.isfile(given.script):
        raise ConfigError(f"there is no script {given.script} (from {os.getcwd()}); for a module, use -m")
    for name in ("within", "hang_limit", "undisturbed_workers"):
        value = getattr(given, name)
        if value is not None and not value > 0:
            raise ConfigError(f"--{name.replace('_', '-')} must be above 0; found {value}")
    if given.folder is not None and given.folder.exists() and any(given.folder.iterdir()):
        raise ConfigError(f"--folder {given.folder}: it is not empty, and a drill wants fresh storage")
    kinds, rate = _kinds(given), given.rate if given.rate is not None else DEFAULT_RATE
    if not 0 < rate <= 1:
        raise ConfigError(f"--rate is faults per step, above 0 and up to 1; found {rate}")
    plan = _replayed(given) if given.plan is not None else _asked(given, drawing=bool(kinds))
    if disk.needed(plan.faults) or {"disk-full", "read-only"} & set(kinds):
        disk.check()
    return Options(
        script=given.script,
        module=given.module,
        args=(*given.args, *argv[cut + 1 :]),
        asked=plan,
        kinds=kinds,
        rate=rate,
        undisturbed_workers=given.undisturbed_workers,
        folder=given.folder,
        keep=given.keep,
        within_s=given.within,
        hang_s=given.hang_limit,
    )


def _kinds(given: argparse.Namespace) -> tuple[str, ...]:
    named = any(getattr(given, name.replace("-", "_")) for name in _MOMENTS) or _storage(given).any
    text = given.faults
    if text is None:
        if given.plan is not None or (named and given.rate is None):
            return ()
        text = DEFAULT_FAULTS
    kinds = tuple(kind.strip() for kind in text.split(",") if kind.strip())
    for kind in kinds:
        if kind not in MAKES:
            near = difflib.get_close_matches(kind, MAKES, n=1)
            raise ConfigError(
                f"--faults: unknown {kind!r}; "
                + (f"did you mean {near[0]!r}?" if near else f"known: {', '.join(MAKES)}")
            )
    if not kinds:
        raise ConfigError(f"--faults names none; known: {', '.join(MAKES)}")
    return kinds


def _replayed(given: argparse.Namespace) -> DrillPlan:
    of_the_plan = ["workers", "nodes", "resume_workers", "seed", "faults", "rate", "grace"]
    of_the_plan += ["storage_errors", "storage_stalls", "torn_writes", "stale_listings"]
    both = [name for name in of_the_plan if getattr(given, name) is not None]
    both += [name for name in map(_attribute, _MOMENTS) if getattr(given, name)]
    if both:
        raise ConfigError(f"--plan says all that goes wrong and on how many workers; leave out --{_flag(both[0])}")
    try:
        return DrillPlan.from_json(given.plan.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--plan {given.plan}: {error}") from error
    except ConfigError as error:
        raise ConfigError(f"--plan {given.plan}: {error}") from error


def _asked(given: argparse.Namespace, *, drawing: bool) -> DrillPlan:
    workers = given.workers if given.workers is not None else 4
    storage = _storage(given)
    seed = given.seed
    if seed is None and (drawing or storage.any):
        seed = secrets.randbelow(1_000_000)
    faults = [_named(name, text) for name in _MOMENTS for text in getattr(given, _attribute(name))]
    return DrillPlan(
        workers=workers,
        nodes=given.nodes if given.nodes is not None else 1,
        resume_workers=given.resume_workers if given.resume_workers is not None else workers,
        seed=seed,
        grace_s=given.grace if given.grace is not None else 30.0,
        storage=storage,
        faults=_in_order(faults),
    )


def _storage(given: argparse.Namespace) -> StorageFaults:
    return StorageFaults(
        errors=given.storage_errors or 0.0,
        stalls=given.storage_stalls or 0.0,
        torn=given.torn_writes or 0.0,
        stale=given.stale_listings or 0.0,
    )


def _named(name: str, text: str) -> Fault:
    """The fault that `--name text` asks for."""
    try:
        return _fault(name, text)
    except ConfigError as wrong:
        raise ConfigError(f"--{name} {text}: {wrong}") from wrong


def _fault(name: str, text: str) -> Fault:
    who, at, moment = text.partition("@")
    shape = "@step=N" if name in _NO_WORKER else "WORKER@step=N"
    if not at or not moment:
        raise ConfigError(f"expected {shape}[,phase=PHASE], such as {shape.replace('WORKER', '2').replace('N', '30')}")
    facts = _facts(moment, extra=_EXTRA.get(name, ()))
    if name in _NO_WORKER:
        if who:
            raise ConfigError(f"it strikes no single worker, so nothing stands before the @; found {who!r}")
        ranks = [0]
    else:
        ranks = [_whole(one, "a worker is a rank, counted from 0") for one in who.split(",")]
    if len(ranks) > 1 and name != "kill":
        raise ConfigError("only --kill takes several workers at once")
    phase = facts.get("phase", "forward" if name == "join" else "backward")
    phase = _WORDS.get(phase, phase)
    if "step" not in facts:
        raise ConfigError("no step; expected " + shape)
    if phase in ("save", "saved") and ranks[0] != 0:
        raise ConfigError(f"only worker 0, the coordinator, saves, so no other one passes {phase!r}")
    share = _whole(facts["share"], "a share is a number, counted from 0") if "share" in facts else None
    when = At(_whole(facts["step"], "a step is a number, counted from 0"), phase, share=share, later=True)
    if len(ranks) > 1:
        return KillTogether(tuple(ranks), when)
    fault = MAKES[name](ranks[0], when)
    if isinstance(fault, Disk):
        return replace(fault, seconds=_number(facts["seconds"])) if "seconds" in facts else fault
    if isinstance(fault, Slow):
        seconds = _number(facts["seconds"]) if "seconds" in facts else fault.seconds
        shares = _whole(facts["shares"], "shares are a number") if "shares" in facts else fault.shares
        return replace(fault, seconds=seconds, shares=shares)
    return replace(fault, when=replace(fault.when, phase=phase, share=share))


def _facts(moment: str, extra: Sequence[str]) -> dict[str, str]:
    known = ("step", "phase", "share", *extra)
    facts: dict[str, str] = {}
    for part in moment.split(","):
        name, equals, value = part.partition("=")
        name = name.strip()
        if name not in known or not equals or name in facts:
            raise ConfigError(f"{part!r} is not one of {', '.join(f'{one}=…' for one in known)}, each once")
        facts[name] = value.strip()
    if "share" in facts and facts.get("phase", "backward") not in OF_A_SHARE:
        raise ConfigError(f"only {', '.join(OF_A_SHARE)} have a share")
    return facts


def _whole(text: str, what: str) -> int:
    if not text.strip().isdecimal():
        raise ConfigError(f"{what}; found {text!r}")
    return int(text)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"expected a number of seconds; found {text!r}") from None


def _in_order(faults: Sequence[Fault]) -> tuple[Fault, ...]:
    """By step, and of one step in the order in which a step passes its phases. A view that is formed at a step follows
    a fault in it."""

    def order(fault: Fault) -> tuple[int, bool, float]:
        when = fault.when
        return when.step or 0, when.phase in BEFORE_STEPS, place_of(when.phase)

    return tuple(sorted(faults, key=order))


def _attribute(name: str) -> str:
    return name.replace("-", "_")


def _flag(name: str) -> str:
    return name.replace("_", "-")
