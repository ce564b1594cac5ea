"""What is to go wrong with a storage: a value that can be printed, kept with a run and replayed.

A plan is a list of rules and a seed. Each rule counts the operations that it is about, from 0; it lets the first
`after` pass, then strikes each with probability `chance`, `times` times at most. An operation suffers one fault: that
of the first rule that strikes it. Whether a rule strikes its n-th operation follows from the seed, the rule's place in
the plan and n alone, whatever other threads do meanwhile.
"""

from __future__ import annotations

import difflib
import errno
import os
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from fnmatch import fnmatchcase
from typing import Any, ClassVar

OPERATIONS = ("write", "read", "list", "look", "delete")
ANY = "any"


def _failure(number: int, server_code: str | None = None, status: int | None = None) -> Callable[[], OSError]:
    """Make an error as the operating system does or, with a code, as s3fs passes on what an S3 server answered."""

    def make() -> OSError:
        error = OSError(number, f"{os.strerror(number)} (on purpose)")
        if server_code is not None:
            answer = {"Error": {"Code": server_code}, "ResponseMetadata": {"HTTPStatusCode": status}}
            error.response = answer  # type: ignore[attr-defined]
        return error

    return make


ERRORS: dict[str, Callable[[], OSError]] = {
    "timeout": _failure(errno.ETIMEDOUT),
    "reset": _failure(errno.ECONNRESET),
    "refused": _failure(errno.ECONNREFUSED),
    "io": _failure(errno.EIO),
    "slow_down": _failure(errno.EBUSY, "SlowDown", 503),
    "server": _failure(errno.EREMOTEIO, "InternalError", 500),
    "forbidden": _failure(errno.EACCES, "AccessDenied", 403),
    "no_bucket": _failure(errno.ENOENT, "NoSuchBucket", 404),
    "full": _failure(errno.ENOSPC),
    "quota": _failure(errno.EDQUOT),
    "read_only": _failure(errno.EROFS),
}


@dataclass(frozen=True, kw_only=True)
class Rule:
    """When a fault strikes: what all faults have in common.

    A fault's `on` says which operations it is about: one of "write", "read", "list", "look" and "delete", a tuple of
    them, or "any".

    Args:
        path: A glob over the object's path in the filesystem, such as "*/commits/*".
        after: How many matching operations pass first.
        times: How often it strikes at most; None: for ever.
        chance: The probability with which it strikes each, 0 to 1.

    Raises:
        ValueError: One of these cannot be.
    """

    path: str = "*"
    after: int = 0
    times: int | None = None
    chance: float = 1.0

    def __post_init__(self) -> None:
        if self.after < 0 or (self.times is not None and self.times < 1) or not 0 <= self.chance <= 1:
            raise ValueError(f"{self}: expected after >= 0, times >= 1 or None, 0 <= chance <= 1")
        unknown = [name for name in self.operations if name not in OPERATIONS]
        if unknown:
            raise ValueError(f"{self}: no operation is called {unknown[0]!r}; there are {ANY}, {', '.join(OPERATIONS)}")

    @property
    def operations(self) -> tuple[str, ...]:
        """Return the operations that it is about."""
        on: str | tuple[str, ...] = getattr(self, "on", ANY)
        return OPERATIONS if on == ANY else (on,) if isinstance(on, str) else tuple(on)

    def about(self, operation: str, path: str) -> bool:
        """Return whether it may strike this operation on the object of this path."""
        return operation in self.operations and fnmatchcase(path, self.path)


@dataclass(frozen=True)
class Error(Rule):
    """The operation fails.

    Args:
        kind: With which error, by its name in `ERRORS`: "timeout", "reset", "refused", "io", "slow_down", "server",
            "forbidden", "no_bucket", "full", "quota" or "read_only".
        on: See Rule.
        late: It is carried out all the same, and only its answer is lost.

    Raises:
        ValueError: No error is called so.
    """

    kind: str
    on: str | tuple[str, ...] = field(default=ANY, kw_only=True)
    late: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind not in ERRORS:
            near = difflib.get_close_matches(self.kind, ERRORS, 1) or list(ERRORS)
            raise ValueError(f"no error is called {self.kind!r}: try {', '.join(near)}")


@dataclass(frozen=True)
class Delay(Rule):
    """The operation takes longer.

    Args:
        seconds: By so much.
        on: See Rule.
    """

    seconds: float
    on: str | tuple[str, ...] = field(default=ANY, kw_only=True)


@dataclass(frozen=True)
class Hang(Rule):
    """The operation gives no answer, then times out.

    Args:
        at_most_s: After so many seconds; `Faults.heal` ends it sooner.
        on: See Rule.
    """

    at_most_s: float
    on: str | tuple[str, ...] = field(default=ANY, kw_only=True)


@dataclass(frozen=True, kw_only=True)
class TornWrite(Rule):
    """Only the first bytes of the object arrive, and it is visible like that.

    Args:
        keep: The share of its bytes that does, 0 to 1.
        silent: The writer is told of success, instead of an I/O error.
    """

    on: ClassVar[str] = "write"
    keep: float = 0.5
    silent: bool = False


@dataclass(frozen=True, kw_only=True)
class ShortRead(Rule):
    """A read returns only the first bytes of what was asked for.

    Args:
        keep: The share of them, 0 to 1.
    """

    on: ClassVar[str] = "read"
    keep: float = 0.5


@dataclass(frozen=True, kw_only=True)
class StaleList(Rule):
    """A listing repeats what the last undisturbed one of the same folder showed: nothing, where there was none."""

    on: ClassVar[str] = "list"


@dataclass(frozen=True, kw_only=True)
class Cut(Rule):
    """The power fails: `PowerCut`, which is no Exception, at this operation and at every one after it.

    Args:
        on: See Rule.
        late: The first of them is carried out, but nobody learns of it.
    """

    on: str | tuple[str, ...] = ANY
    late: bool = False


FAULTS: dict[str, type[Rule]] = {
    kind.__name__: kind for kind in (Error, Delay, Hang, TornWrite, ShortRead, StaleList, Cut)
}


@dataclass(frozen=True, init=False)
class Plan:
    """What goes wrong, as a value that can be printed, kept and replayed.

    Args:
        *rules: In order: an operation suffers one fault, that of the first rule that strikes it.
        seed: Of their chances.
    """

    rules: tuple[Rule, ...]
    seed: int

    def __init__(self, *rules: Rule, seed: int = 0) -> None:
        object.__setattr__(self, "rules", rules)
        object.__setattr__(self, "seed", seed)

    def strikes(self, number: int, count: int) -> bool:
        """Return whether chance lets rule `number` strike its operation `count`, both counted from 0."""
        return random.Random(f"{self.seed}/{number}/{count}").random() < self.rules[number].chance

    def document(self) -> dict[str, Any]:
        """Return the plan as plain JSON; `from_document` is the inverse."""
        return {"seed": self.seed, "rules": [{"fault": type(rule).__name__, **asdict(rule)} for rule in self.rules]}

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> Plan:
        """Return the plan of a `document`.

        Raises:
            ValueError: A fault or a field is unknown.
        """
        rules = []
        for entry in document["rules"]:
            kind = FAULTS.get(entry.get("fault", ""))
            values: dict[str, Any] = {name: value for name, value in entry.items() if name != "fault"}
            if kind is None or not values.keys() <= {one.name for one in fields(kind)}:
                raise ValueError(f"{entry} is no fault of ours: there are {', '.join(FAULTS)}, with the fields of each")
            if isinstance(values.get("on"), list):
                values["on"] = tuple(values["on"])
            rules.append(kind(**values))
        return cls(*rules, seed=document["seed"])
