"""Reads a run's record: each step once, whatever became of the workers that wrote it.

Lines may come more than once: of a coordinator that was lost and of the one after it, of steps that were done over
under a newer claim, of a host that the run had moved on from. The newest claim's count from its first step on; what an
older one says of the same step is compared, and a difference is a finding.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from elastic.errors import WrittenByNewer
from elastic.record.step_record import FORMAT, VERSION, Part, StepRecord
from elastic_checkpoint.storage import Missing, Storage, TooLarge, get_bounded, open_storage

FOLDER = "record"
_LARGEST = 64 << 20
_ANSWER_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Record:
    """The record of a run.

    Attributes:
        steps: Each step that is on record, by its index, in order.
        missing: [first, end) of steps before the last one that are not.
        twice: Steps that were computed more than once and came to something else: (step, older claim, newer claim, what
            differs, in words).
        mode: "exact", or "fast": then equal bits are promised at one world size alone; "" where there is no record.
        shares: The run's virtual workers.
    """

    steps: dict[int, StepRecord] = field(default_factory=dict)
    missing: list[tuple[int, int]] = field(default_factory=list)
    twice: list[tuple[int, int, int, list[tuple[Part, str]]]] = field(default_factory=list)
    mode: str = ""
    shares: int = 0


def read_record(url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> Record:
    """Read what each step of a run came to.

    Args:
        url: The run's folder or URL.
        storage_options: For its storage, as in `elastic.Saving`.

    Raises:
        elastic_checkpoint.StorageError: The storage does not answer.
        WrittenByNewer: A later version of the record lies there.
    """
    options = dict(storage_options or {})
    with contextlib.closing(open_storage(os.fspath(url), options, retry_s=_ANSWER_S, answer_s=_ANSWER_S)) as storage:
        return of_lines(_lines(storage))


def of_lines(lines: Iterable[Mapping[str, Any]]) -> Record:
    """Return the record that these lines make. Pure; raises WrittenByNewer for a later version's."""
    by_claim: dict[int, dict[int, StepRecord]] = {}
    mode, shares = "", 0
    parameters: tuple[str, ...] = ()
    for line in lines:
        if line.get("format") == FORMAT:
            if (head := _Head.of(line)) is not None:
                mode, shares, parameters = head.mode, head.virtual_workers, head.parameters
        elif (one := StepRecord.of(line, parameters)) is not None:
            of_claim = by_claim.setdefault(one.claim, {})
            of_claim[one.step] = of_claim[one.step].merged(one) if one.step in of_claim else one
    steps: dict[int, StepRecord] = {}
    twice = []
    for _, newer in sorted(by_claim.items()):
        begins = min(newer)
        for step in [step for step in steps if step >= begins]:
            older = steps.pop(step)
            if step in newer and (apart := older.differs(newer[step])):
                twice.append((step, older.claim, newer[step].claim, apart))
        steps.update(newer)
    steps = dict(sorted(steps.items()))
    return Record(steps=steps, missing=list(_missing(steps)), twice=twice, mode=mode, shares=shares)


class _Head(msgspec.Struct):
    """The line with which a segment begins, as far as a reader needs it."""

    version: int
    mode: str = ""
    virtual_workers: int = 0
    parameters: tuple[str, ...] = ()

    @classmethod
    def of(cls, line: Mapping[str, Any]) -> _Head | None:
        """Return what a line says; None: it is damaged. Raises WrittenByNewer."""
        try:
            head = msgspec.convert(line, cls)
        except msgspec.ValidationError:
            return None
        if head.version > VERSION:
            raise WrittenByNewer("the record", head.version, VERSION)
        return head


def _missing(steps: Iterable[int]) -> Iterator[tuple[int, int]]:
    due = 0
    for step in steps:
        if step > due:
            yield due, step
        due = step + 1


def _lines(storage: Storage) -> Iterator[dict[str, Any]]:
    """Yield the lines of all segments. Raises what the storage raises."""
    for key in storage.list(FOLDER):
        with contextlib.suppress(Missing, TooLarge):
            for data in bytes(get_bounded(storage, key, _LARGEST)).splitlines():
                with contextlib.suppress(ValueError, RecursionError):
                    if isinstance(line := json.loads(data), dict):
                        yield line
