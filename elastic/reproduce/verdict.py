"""Is a run that was made again the same one? Its record beside the first one's, step by step. Pure.

The first step that differs is what is asked about: what comes behind it follows from it. A difference of the manifests
explains it if it decides bits, or may; one in what was read is looked for in the data first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from elastic.manifest.differences import Difference, Effect
from elastic.record import Part, Record

ONLY_READ = "only what was read is compared"
_CAUSES = 5
PART_WORDS = {
    Part.READ: "what was read",
    Part.GAVE: "each share's loss and sums",
    Part.SUMS: "the batch's sums",
    Part.GRADIENTS: "gradients",
    Part.WEIGHTS: "weights",
}


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What came of a comparison.

    compared    how many steps are on both records
    asked       how many were to be compared
    of_parts    how many steps have this part on both records, which may lack what nobody knew
    checkpoint  of which step both runs' checkpoints were compared; None: of none
    missing     [first, end) of steps of the first run that are not on both records
    step        the first that differs; None: none does
    parts       what of it, in words
    tensor      where it is known: the first one that differs, by the records or else by checkpoints
    causes      what of the manifests explains it, the likeliest first
    fast        the run was in fast mode
    """

    compared: int
    asked: int
    of_parts: dict[Part, int] = field(default_factory=dict)
    checkpoint: int | None = None
    missing: list[tuple[int, int]] = field(default_factory=list)
    step: int | None = None
    parts: list[tuple[Part, str]] = field(default_factory=list)
    causes: list[Difference] = field(default_factory=list)
    tensor: str | None = None
    fast: bool = False

    @property
    def equal(self) -> bool:
        """Tell whether all steps that were asked for are on both records, none differs, and not by the data alone."""
        return self._nothing_differs and self.is_computed

    @property
    def is_computed(self) -> bool:
        """Tell whether anything was compared that comes of the model."""
        return self.checkpoint is not None or any(part.is_computed for part in self.of_parts)

    @property
    def _nothing_differs(self) -> bool:
        return self.compared > 0 and not self.missing and self.step is None and self.tensor is None

    def with_checkpoints(self, step: int | None, tensor: str | None) -> Verdict:
        """Return the verdict with what two checkpoints of one step say: the first tensor that differs, if any does."""
        return replace(self, checkpoint=step, tensor=self.tensor or tensor)

    def words(self) -> list[str]:
        """Return the verdict as people read it."""
        steps = f"{self.compared:,} of {self.asked:,} steps"
        if self._nothing_differs:
            if self.is_computed:
                return [f"equal, all {self.asked:,} steps", f"  compared  {self._what()}"]
            return [f"{ONLY_READ}: it is the same in all {self.asked:,} steps"]
        said = []
        if self.step is not None:
            said.append(f"step {self.step} differs, the first of {self.asked:,}: {self.parts[0][1]}")
            said += [f"  and  {words}" for _, words in self.parts[1:]]
            if self.tensor is not None:
                said.append(f"  tensor  {self.tensor}")
            part, decided = self.parts[0][0], any(one.effect is Effect.DECIDES for one in self.causes)
            unknown = [] if decided or (self.causes and part is not Part.READ) else [_unknown(part)]
            if self.fast and part is not Part.READ:
                unknown.append("fast mode, if workers came or went meanwhile: each number of them gives other bits")
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
            "parts": {part.value: count for part, count in self.of_parts.items()},
            "checkpoint": self.checkpoint,
            "missing": self.missing,
            "step": self.step,
            "differs": [{"part": part.value, "words": words} for part, words in self.parts],
            "tensor": self.tensor,
            "causes": [asdict(one) for one in self.causes],
        }

    def _what(self) -> str:
        """Return what was compared, in words."""
        counts = [f"{PART_WORDS[part]} in {self.of_parts[part]:,}" for part in PART_WORDS if part in self.of_parts]
        tensors = [f"all tensors of the checkpoints of step {self.checkpoint}"] if self.checkpoint is not None else []
        return ", ".join([*counts, *tensors])


def compare(
    first: Record,
    again: Record,
    differences: Sequence[Difference],
    *,
    steps: int | None = None,
    only_read: bool = False,
) -> Verdict:
    """Return what came of making a run again.

    differences  of their manifests
    steps        so many were asked for; None: all of the first run's
    only_read    what is computed is bound to differ, and is not compared
    """
    asked = {at: one for at, one in first.steps.items() if steps is None or at < steps}
    end = max(asked, default=-1) + 1 if steps is None else steps
    both = [at for at in asked if at in again.steps]
    of_parts = Counter(part for at in both for part in again.steps[at].compared(asked[at]))
    if only_read:
        of_parts = Counter({Part.READ: of_parts[Part.READ]})
    verdict = Verdict(
        compared=len(both),
        asked=end,
        of_parts=of_parts,
        missing=_ranges(sorted({*range(end)} - {*both})),
        fast=first.mode == "fast",
    )
    for at in both:
        differs = again.steps[at].differs(asked[at])
        if parts := [(part, words) for part, words in differs if part is Part.READ or not only_read]:
            known = (again.steps[later].tensor_apart(asked[later]) for later in both if later >= at)
            tensor = None if only_read else next((found for found in known if found is not None), None)
            return replace(verdict, step=at, parts=parts, causes=_causes(parts[0][0], differences), tensor=tensor)
    return verdict


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
