"""A fault as the command line names it: WORKER@step=N,phase=PHASE, or WORKER@output=TEXT. Pure.

What it does not understand it refuses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from elastic.drill.faults.base import Fault
from elastic.drill.faults.host_faults import Heal, NetworkFault
from elastic.drill.faults.moments import BEFORE_STEPS, OF_A_SHARE, At, order_in_step
from elastic.drill.faults.registry import NAMED
from elastic.errors import ConfigError

_OUTPUT = "output="
_WORDS = {"forming a view": "form", "forming": "form", "transferring": "transfer"}


def faults_from(asked: Mapping[str, Sequence[str]]) -> tuple[Fault, ...]:
    """Return the faults that the command line asks for by `--name text`, in order.

    What happens to the network lasts until the next --heal, if there is one, unless it says seconds=.
    """
    said = [(fault_from(name, text), "seconds=" in text) for name, texts in asked.items() for text in texts]
    said.sort(key=lambda one: _order(one[0]))
    last_heal = max((at for at, (fault, _) in enumerate(said) if isinstance(fault, Heal)), default=0)
    return tuple(
        fault.until_healed() if isinstance(fault, NetworkFault) and at < last_heal and not timed else fault
        for at, (fault, timed) in enumerate(said)
    )


def fault_from(name: str, text: str) -> Fault:
    """Return the fault that `--name text` asks for. Raises ConfigError, which repeats both."""
    try:
        return _fault(name, text)
    except ConfigError as wrong:
        raise ConfigError(f"--{name} {text}: {wrong}") from wrong


def _fault(name: str, text: str) -> Fault:
    """Return the fault of this name that its text describes. Raises ConfigError, which says what is wrong with it."""
    kind, of_worker = NAMED[name].kind, NAMED[name].flag.of_worker
    who, at, moment = text.partition("@")
    shape = "WORKER@step=N" if of_worker else "@step=N"
    if not at or not moment:
        raise ConfigError(f"expected {shape}[,phase=PHASE], such as {shape.replace('WORKER', '2').replace('N', '30')}")
    if moment.startswith(_OUTPUT):
        if not (said := moment.removeprefix(_OUTPUT)):
            raise ConfigError("output= is a text that a line of the script's output has; found none")
        ranks, when = _ranks(who, of_worker=of_worker), At(None, "backward", output=said)
        return kind.together(ranks, when) if len(ranks) > 1 else NAMED[name].fault(ranks[0], when)
    facts = _facts(moment, extra=kind.facts)
    ranks = _ranks(who, of_worker=of_worker)
    if "step" not in facts:
        raise ConfigError("no step; expected " + shape)
    phase = facts.get("phase", kind.usual_phase or "backward")
    phase = _WORDS.get(phase, phase)
    if phase in ("save", "saved") and ranks[0] != 0:
        raise ConfigError(f"only worker 0, the coordinator, saves, so no other one passes {phase!r}")
    share = _whole(facts["share"], "a share is a number, counted from 0") if "share" in facts else None
    when = At(_whole(facts["step"], "a step is a number, counted from 0"), phase, share=share, later=True)
    own = {fact: _value(facts[fact], like=getattr(kind, fact)) for fact in kind.facts if fact in facts}
    if len(ranks) > 1:
        return kind.together(ranks, when, **own)
    return NAMED[name].fault(ranks[0], when, **own)


def _ranks(who: str, *, of_worker: bool) -> tuple[int, ...]:
    """Return the ranks before the @; rank 0 for a fault that strikes no single worker. Raises ConfigError."""
    if of_worker:
        return tuple(_whole(one, "a worker is a rank, counted from 0") for one in who.split(","))
    if who:
        raise ConfigError(f"it strikes no single worker, so nothing stands before the @; found {who!r}")
    return (0,)


def _facts(moment: str, extra: Sequence[str]) -> dict[str, str]:
    """Return the facts behind the @, by name; `extra` are the names of the kind's own. Raises ConfigError."""
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
    """Return a number that counts. Raises ConfigError, which begins with `what`."""
    if not text.strip().isdecimal():
        raise ConfigError(f"{what}; found {text!r}")
    return int(text)


def _value(text: str, *, like: float) -> float:
    """Return a fact with the type of its field's default, `like`. Raises ConfigError."""
    if isinstance(like, int):
        return _whole(text, "expected a number")
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"expected a number; found {text!r}") from None


def in_order(faults: Sequence[Fault]) -> tuple[Fault, ...]:
    """Sort faults by step, and in one step by phase. A view that is formed at a step follows a fault in it."""
    return tuple(sorted(faults, key=_order))


def _order(fault: Fault) -> tuple[int, bool, float]:
    """Return the key that sorts faults by step and phase, those of a view behind those of the step."""
    when = fault.when
    return when.step or 0, when.phase in BEFORE_STEPS, order_in_step(when.phase)
