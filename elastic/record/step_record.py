"""The record of one step: what is in a line, and what two lines of the same step have otherwise. Pure.

A line may lack what nobody knew when it was written; what only one of two lines has is no difference.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

from elastic.record import share_digests

FORMAT, VERSION = "elastic-record", 1
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_NAMED = 8  # shares, in words
_PREFIXES = ("gradient_prefixes", "weight_prefixes")
_KEPT = ("step", "epoch", "norm", "first")  # also where they are 0


class Part(str, Enum):
    """What of a step differs, in the order in which a step comes to it."""

    READ, GAVE, SUMS, GRADIENTS, WEIGHTS, END = "read", "gave", "sums", "gradients", "weights", "passed over"

    __str__ = str.__str__

    @property
    def is_computed(self) -> bool:
        """Tell whether it comes of the model: what is read, and whether a step was passed over, is alike in others."""
        return self in (Part.GAVE, Part.SUMS, Part.GRADIENTS, Part.WEIGHTS)


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """What a step came to. Absent is what was not known, or not computed.

    Attributes:
        step: Its index, from 0.
        claim: Under which it was applied: it rises with each launch.
        t: Unix seconds, when the coordinator had applied it.
        epoch: Of its first example.
        count: What its loss is of: examples, or tokens.
        sums: What the script added up, over the whole batch: numbers, lists of 16 numbers at most, or "xxh3:…" of more.
        shares: Of each share a digest of what it read, and of what it gave: its loss and sums; 0: not known.
        norm: Of the exact gradients.
        gradients: Digest of all of them, behind a save.
        weights: Digest of all weights after the step's update, behind a save.
        gradient_prefixes: Of each parameter 24 bits of a digest of its gradient and those before it, behind a save.
        weight_prefixes: Likewise of the weights.
        parameters: The parameters' names; no part of a line: a segment names them once.
        left_out: How many of its examples raised, and were left out.
        passed_over: Why it was passed over; from step `first` on the run went back. None: it was applied.
        first: See passed_over.
    """

    step: int
    claim: int = 0
    t: float | None = None
    epoch: int | None = None
    count: float | None = None
    sums: Mapping[str, Any] = field(default_factory=dict)
    shares: tuple[tuple[int, int], ...] = ()
    norm: float | None = None
    gradients: str | None = None
    weights: str | None = None
    gradient_prefixes: tuple[int, ...] = ()
    weight_prefixes: tuple[int, ...] = ()
    parameters: tuple[str, ...] = ()
    left_out: int | None = None
    passed_over: str | None = None
    first: int | None = None

    @classmethod
    def of(cls, line: object, parameters: tuple[str, ...] = ()) -> StepRecord | None:
        """Return the step that a line is of, in which parameters have these names; None: it is of none."""
        if not isinstance(line, dict) or type(line.get("step")) is not int or type(line.get("claim")) is not int:
            return None
        known = {one.name for one in fields(cls)}
        given = {name: value for name, value in line.items() if name in known}
        try:
            return cls(
                **{
                    **given,
                    "sums": {name: _number(value) for name, value in given.get("sums", {}).items()},
                    "shares": share_digests.from_text(given.get("shares", "")),
                    "norm": _number(given.get("norm")),
                    **{name: share_digests.prefixes_from(given.get(name, "")) for name in _PREFIXES},
                    "parameters": parameters,
                }
            )
        except (ValueError, TypeError, AttributeError):
            return None

    def merged(self, newer: StepRecord) -> StepRecord:
        """Return this record with what a newer line of the same step knows."""
        known = {name: value for name, value in vars(newer).items() if value not in (None, {}, ())}
        return StepRecord(**{**vars(self), **known})

    def differs(self, other: StepRecord) -> list[tuple[Part, str]]:
        """Return what differs between two records of one step, in the order in which the step came to it, in words."""
        return [(part, words) for part, words in self._comparisons(other) if words is not None]

    def compared(self, other: StepRecord) -> set[Part]:
        """Return the parts that two records of one step both have, so that they can differ."""
        return {part for part, _ in self._comparisons(other)}

    def tensor_apart(self, other: StepRecord) -> str | None:
        """Return the first parameter whose gradient or, if none has, whose value after the update differs, in words.

        None: they do not differ, or one of both records lacks them.
        """
        gradient = self._first_apart(other, "gradient_prefixes", f"{{}}, in its gradient of step {self.step}")
        return gradient or self._first_apart(other, "weight_prefixes", f"{{}}, after step {self.step}") or None

    def _first_apart(self, other: StepRecord, prefixes: str, words: str) -> str:
        """Return `words` with the first parameter whose prefixes differ, or "" where none does."""
        pairs = zip(getattr(self, prefixes), getattr(other, prefixes), strict=False)
        at = next((at for at, (here, there) in enumerate(pairs) if here != there), None)
        names = self.parameters or other.parameters
        return "" if at is None else words.format(names[at] if at < len(names) else f"parameter {at}")

    def _comparisons(self, other: StepRecord) -> Iterator[tuple[Part, str | None]]:
        """Yield what both records know, with how it differs, in words; None: it does not."""
        if len(self.shares) == len(other.shares):
            pairs = list(zip(self.shares, other.shares, strict=True))
            words = ((0, Part.READ, "other values are read by"), (1, Part.GAVE, "another loss or sum comes from"))
            for at, part, said in words:
                known = [(share, one[at], two[at]) for share, (one, two) in enumerate(pairs) if one[at] and two[at]]
                if known:
                    apart = [share for share, here, there in known if here != there]
                    yield part, f"{said} {_shares(apart, len(pairs))}" if apart else None
        elif self.shares and other.shares:
            yield Part.READ, f"{len(self.shares)} shares have examples here, and {len(other.shares)} there"
        if self.count is not None and other.count is not None:
            counts = f"it counts {self.count:g} here, and {other.count:g} there"
            yield Part.READ, counts if self.count != other.count else None
        for name in sorted(self.sums.keys() & other.sums.keys()):
            sums = f"sum {name!r} is {_short(self.sums[name])} here, and {_short(other.sums[name])} there"
            yield Part.SUMS, None if _same(self.sums[name], other.sums[name]) else sums
        if self.sums and other.sums and (apart_names := sorted(self.sums.keys() ^ other.sums.keys())):
            yield Part.SUMS, f"only one of both adds up {', '.join(map(repr, apart_names))}"
        if self.norm is not None and other.norm is not None:
            norms = f"the gradients' norm is {self.norm!r} here, and {other.norm!r} there"
            yield Part.GRADIENTS, None if _same(self.norm, other.norm) else norms
        if self.gradients and other.gradients:
            first = self._first_apart(other, "gradient_prefixes", ", first in {}")
            digests = f"the gradients' digest is {self.gradients} here, and {other.gradients} there{first}"
            yield Part.GRADIENTS, digests if self.gradients != other.gradients else None
        if self.weights and other.weights:
            first = self._first_apart(other, "weight_prefixes", ", first in {}")
            digests = f"the weights' digest after it is {self.weights} here, and {other.weights} there{first}"
            yield Part.WEIGHTS, digests if self.weights != other.weights else None
        if self.count is not None and other.count is not None and self.first != other.first:
            back = f"the run goes back to step {self.first} here, and to step {other.first} there"
            yield Part.END, "only one of both passes over it" if None in (self.first, other.first) else back


def encoded(line: Mapping[str, Any]) -> bytes:
    """Return a line; what of it is None, empty or 0 is left out, and what is not finite is text."""
    kept = {name: value for name, value in line.items() if value or (name in _KEPT and value is not None)}
    if "shares" in kept:
        kept["shares"] = share_digests.as_text(kept["shares"])
    for name in kept.keys() & {"gradients", "weights"}:
        kept[name] = f"{kept[name]:016x}"
    for name in kept.keys() & {*_PREFIXES}:
        kept[name] = share_digests.prefixes_as_text(kept[name])
    try:
        return _encode(kept).encode() + b"\n"
    except ValueError:
        return _encode(_plain(kept)).encode() + b"\n"


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def _number(value: Any) -> Any:
    if isinstance(value, str) and not value.startswith("xxh3:"):
        return float(value)
    return [_number(one) for one in value] if isinstance(value, list) else value


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return one.hex() == other.hex()  # -0.0 is not 0.0, and NaN is NaN
    return type(one) is type(other) and bool(one == other)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _shares(apart: list[int], of: int) -> str:
    if len(apart) == of and of > 1:
        return f"each of its {of} shares"
    more = ", …" if len(apart) > _NAMED else ""
    return f"share {apart[0]}" if len(apart) == 1 else f"shares {', '.join(map(str, apart[:_NAMED]))}{more}"
