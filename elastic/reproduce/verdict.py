"""Is a run that was made again the same one? Its record beside the first one's, step by step. Pure.

The first step that differs is what is asked about: what comes behind it follows from it. A difference of the manifests
explains it if it decides bits, or may; one in what was read is looked for in the data first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from elastic.manifest.differences import Difference, Effect
from elastic.record import Part, Record

_CAUSES = 5


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What came of a comparison.

    equal      all steps that were asked for are on both records, and none differs
    compared   how many steps are on both
    asked      how many were to be compared
    missing    [first, end) of steps of the first run that are not on both records
    step       the first that differs; None: none does
    parts      what of it, in words
    tensor     where it is known: the first tensor of a checkpoint that differs
    causes     what of the manifests explains it, the likeliest first
    """

    equal: bool
    compared: int
    asked: int
    missing: list[tuple[int, int]] = field(default_factory=list)
    step: int | None = None
    parts: list[tuple[Part, str]] = field(default_factory=list)
    causes: list[Difference] = field(default_factory=list)
    tensor: str | None = None

    def with_tensor(self, tensor: str | None) -> Verdict:
        """Return the verdict with what two checkpoints of one step say."""
        return replace(self, equal=self.equal and tensor is None, tensor=tensor)

    def words(self) -> list[str]:
        """Return the verdict as people read it."""
        steps = f"{self.compared:,} of {self.asked:,} steps"
        if self.equal:
            return [f"equal, all {self.asked:,} steps"]
        said = []
        if self.step is not None:
            said.append(f"step {self.step} differs, the first of {self.asked:,}: {self.parts[0][1]}")
            said += [f"  and  {words}" for _, words in self.parts[1:]]
            if self.tensor is not None:
                said.append(f"  tensor  {self.tensor}")
            part, decided = self.parts[0][0], any(one.effect is Effect.DECIDES for one in self.causes)
            unknown = [] if decided or (self.causes and part is not Part.READ) else [_unknown(part)]
            said += [f"  cause  {words}" for words in [*unknown, *map(_cause, self.causes[:_CAUSES])]]
        else:
            said.append(f"nothing differs in {steps}" if self.compared else "no step can be compared")
            if self.tensor is not None:
                said.append(f"the last checkpoints differ, first in {self.tensor}")
        if self.missing:
            ranges = ", ".join(f"{at} to {end - 1}" if end - at > 1 else f"{at}" for at, end in self.missing)
            said.append(f"  not on both records: steps {ranges}")
        return said

    def document(self) -> dict[str, Any]:
        """Return the verdict as JSON has it."""
        return {
            "equal": self.equal,
            "steps": self.asked,
            "compared": self.compared,
            "missing": self.missing,
            "step": self.step,
            "differs": [{"part": part.value, "words": words} for part, words in self.parts],
            "tensor": self.tensor,
            "causes": [asdict(one) for one in self.causes],
        }


def compare(first: Record, again: Record, differences: Sequence[Difference], *, steps: int | None = None) -> Verdict:
    """Return what came of making a run again.

    differences  of their manifests
    steps        so many were asked for; None: all of the first run's
    """
    asked = {at: one for at, one in first.steps.items() if steps is None or at < steps}
    end = max(asked, default=-1) + 1 if steps is None else steps
    both = [at for at in asked if at in again.steps]
    found = next(((at, apart) for at in both if (apart := again.steps[at].differs(asked[at]))), None)
    missing = _ranges(sorted({*range(end)} - {*both}))
    if found is None:
        return Verdict(equal=bool(both) and not missing, compared=len(both), asked=end, missing=missing)
    step, parts = found
    causes = _causes(parts[0][0], differences)
    return Verdict(equal=False, compared=len(both), asked=end, missing=missing, step=step, parts=parts, causes=causes)


def _causes(part: Part, differences: Sequence[Difference]) -> list[Difference]:
    """Return the differences that may explain it, the likeliest first."""
    able = [one for one in differences if one.effect is not Effect.NOT]
    of_data = part is Part.READ

    def rank(one: Difference) -> tuple[bool, bool]:
        return (one.effect is not Effect.DECIDES, _is_of_data(one.path) is not of_data)

    return sorted(able, key=rank)


def _is_of_data(path: str) -> bool:
    return path.startswith(("data.", "identity.dataset", "identity.order", "identity.seed"))


def _unknown(part: Part) -> str:
    """Return what is said where no manifest explains a difference."""
    if part is Part.READ:
        return "the data itself: the same script reads other values at the same numbers"
    return (
        "nothing that the manifests know: a module beside the script, a machine that computes otherwise, or something "
        "that the script keeps outside of the run"
    )


def _cause(one: Difference) -> str:
    return f"{one.path} ({one.effect}): {_short(one.other)} now, {_short(one.one)} then"


def _short(value: Any) -> str:
    text = "absent" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _ranges(numbers: Sequence[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] == number:
            found[-1] = found[-1][0], number + 1
        else:
            found.append((number, number + 1))
    return found
