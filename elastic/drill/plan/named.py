"""A fault as the command line names it: WORKER@step=N,phase=PHASE. Pure; refuses what it does not understand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from elastic.drill.faults import Disk, Fault, KillTogether, Slow
from elastic.drill.moments import BEFORE_STEPS, OF_A_SHARE, At, place_of
from elastic.drill.plan.draw import MAKES
from elastic.errors import ConfigError

_WORDS = {"forming a view": "form", "forming": "form", "transferring": "transfer"}
_EXTRA = {"slow": ("seconds", "shares"), "disk-full": ("seconds",), "read-only": ("seconds",)}
_NO_WORKER = ("join", "lose-all", "kill-writer", "flip-bytes", "disk-full", "read-only")


def named(name: str, text: str) -> Fault:
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


def in_order(faults: Sequence[Fault]) -> tuple[Fault, ...]:
    """By step, and of one step in the order in which a step passes its phases. A view that is formed at a step follows
    a fault in it."""

    def order(fault: Fault) -> tuple[int, bool, float]:
        when = fault.when
        return when.step or 0, when.phase in BEFORE_STEPS, place_of(when.phase)

    return tuple(sorted(faults, key=order))
