"""What a rank is about to do travels ahead of it, so that ranks whose scripts went different ways find out at once.

    before a step's shares, an evaluation, a save, ...: every rank sends one small row of the same shape
      ->  all are about to do the same: nothing more to it
      ->  they are not: CollectiveMismatch on every rank, with the place in the script that each one came from

The row leaves before anything else does, gradients too, and is looked at before anything is waited for: collectives of
different kinds, which would wait for each other until their deadline, or be taken for one another, never meet.
It costs one more small all-gather, which runs while the step computes.
"""

from __future__ import annotations

import enum
import os
import struct
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from types import FrameType

import torch

from elastic.errors import CollectiveMismatch, PeerLost
from elastic.group.form import Group, Work, all_know

_LAYOUT = struct.Struct("<qqqqq160s")
_COMPARED = struct.calcsize("<qqqq")  # bytes: all but what is trained, and the site
_TRAINED = struct.Struct("<q")
_BREAKS_ALONE = """\
  found   `break`, `return` or a trainer's own stop ends a run where all workers come to it after one step, and a loss
          is each worker's own
  next    run.stop(reason), and no `break` behind it, ends it for all, whoever calls it, after the next step; or decide
          by run.sums, which `run.add` adds up over the whole batch"""
_DIFFER = """\
  next    run.evaluate and every step of the loop are for all workers alike: `if run.is_coordinator:` is for what one
          does alone (printing, writing files); what decides anything else must be the same on all, as step.sums is"""
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class Kind(enum.IntEnum):
    """Things that ranks do together. The script brings them there, or their own agreement of the step before.

    BREAK          one that does so alone leaves the run, and the others go on
    BREAK_FOR_ALL  of a loop over batches, whose body has a loss of this worker's own to decide by: all do, or it is a
                   bug
    """

    STEP, EVALUATION, STOP, SAVE, REGROUP, FINISH, PART, BREAK, LEAVE, ON_COORDINATOR, BREAK_FOR_ALL = range(11)


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """What one rank is about to do, as it is told to all others.

    step     how many are applied
    ordinal  of an evaluation, since the last update; else 0
    batches  of an evaluation: the examples, and how many of them in a batch; else (0, 0)
    trained  of a step: what it trains, in 63 bits; else 0. Whether ranks agree in it, the exchange looks after
    site     "train.py:12": where the script called
    """

    kind: Kind
    step: int
    ordinal: int = 0
    batches: tuple[int, int] = (0, 0)
    trained: int = 0
    site: str = ""

    def meets(self, other: Fingerprint) -> bool:
        """Return whether both can be carried out together. Where they were called from may differ."""
        return self.packed()[:_COMPARED] == other.packed()[:_COMPARED]

    def packed(self) -> bytes:
        length, size = self.batches
        packed = (self.kind + (self.ordinal << 8), self.step, length, size, self.trained)
        return _LAYOUT.pack(*packed, self.site.encode("utf-8", "replace")[-160:])

    @classmethod
    def unpacked(cls, data: bytes) -> Fingerprint:
        kind, step, length, size, trained, site = _LAYOUT.unpack(data)
        where = site.rstrip(b"\0").decode("utf-8", "replace")
        known = Kind(kind & 0xFF)
        return cls(kind=known, step=step, ordinal=kind >> 8, batches=(length, size), trained=trained, site=where)

    def __str__(self) -> str:
        """Return it in words that fit one rank and many."""
        after = "before the first step" if self.step == 0 else f"after step {self.step - 1}"
        what = {
            Kind.STEP: f"step {self.step}",
            Kind.EVALUATION: f"run.evaluate {after} (the {_ordinal(self.ordinal)} there, of {self.batches[0]:,} "
            f"examples in batches of {self.batches[1]:,})",
            Kind.STOP: f"the run's stop {after}",
            Kind.SAVE: f"a save {after}",
            Kind.REGROUP: f"the next view {after}",
            Kind.FINISH: f"the end of the loop, {after}",
            Kind.PART: f"the end of the with-block, {after}",
            Kind.BREAK: f"out of the loop by `break` {after}",
            Kind.BREAK_FOR_ALL: f"out of the training loop {after}, by `break`, `return` or a trainer's own stop",
            Kind.LEAVE: f"leaving {after}",
            Kind.ON_COORDINATOR: f"run.on_coordinator {after}",
        }[self.kind]
        return f"{what}, at {self.site}" if self.site else what


class Announced:
    """This rank's row, on its way to all others, and theirs to it.

    trained  what each rank trains, once all were seen to meet
    """

    trained: tuple[int, ...] = ()

    def __init__(
        self,
        group: Group,
        mine: Fingerprint,
        pending: Work,
        rows: torch.Tensor,
        waiting: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._group = group
        self._waiting = waiting
        self._mine = mine
        self._pending: Work | None = pending
        self._rows = rows

    @property
    def arrived(self) -> bool:
        """Return whether the rows of all ranks are here."""
        return self._pending is None or self._pending.arrived

    def poll(self) -> None:
        """Check as `check` does if all rows are here already, so as not to wait while there is something to compute."""
        if self._pending is not None and self._pending.arrived:
            self.check()

    def check(self) -> None:
        """Wait until all ranks are known to be about to do the same. Raises PeerLost, CollectiveMismatch."""
        if self._pending is None:
            return
        if self.all_meet():
            self.trained = tuple(_TRAINED.unpack_from(row, _COMPARED)[0] for row in self._packed())
            return
        theirs = self._theirs()
        leave = [rank for rank, other in enumerate(theirs) if other.kind == Kind.BREAK]
        if leave and self._mine.kind != Kind.BREAK:
            said = "; ".join(f"rank {rank}: {theirs[rank]}" for rank in leave)
            raise PeerLost(f"a peer leaves the run ({said})", step=None, phase="what each rank is about to do")
        raise mismatch(theirs)

    def all_meet(self) -> bool:
        """Return whether all ranks are about to do the same; if not, once all know it. Raises PeerLost."""
        if self._pending is not None:
            self._pending.wait()
        mine = self._mine.packed()[:_COMPARED]
        meet = all(row[:_COMPARED] == mine for row in self._packed())
        if self._pending is not None and not meet:
            with self._waiting():
                all_know(self._group)
        self._pending = None
        return meet

    def _theirs(self) -> list[Fingerprint]:
        return [Fingerprint.unpacked(row) for row in self._packed()]

    def _packed(self) -> list[bytes]:
        data = self._rows.numpy().tobytes()
        return [data[at : at + _LAYOUT.size] for at in range(0, len(data), _LAYOUT.size)]


class Alone(Announced):
    """The row of a worker on its own, which nobody has to meet."""

    def __init__(self) -> None:
        self._pending = None

    def all_meet(self) -> bool:
        return True


_ALONE = Alone()


def announce(
    group: Group,
    kind: Kind,
    *,
    step: int,
    ordinal: int = 0,
    batches: tuple[int, int] = (0, 0),
    trained: int = 0,
    site: str | None = None,
    waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Announced:
    """Tell all ranks of `group` what this one is about to do, and where its script called for it, or `site`.

    waiting  a context for waiting until all ranks know that they are about to do different things

    Raises PeerLost.
    """
    if group.world_size == 1:
        return _ALONE
    site = script_site() if site is None else site
    mine = Fingerprint(kind=kind, step=step, ordinal=ordinal, batches=batches, trained=trained, site=site)
    rows = torch.empty(group.world_size * _LAYOUT.size, dtype=torch.uint8)
    row = torch.frombuffer(bytearray(mine.packed()), dtype=torch.uint8)
    return Announced(group, mine, group.all_gather(rows, row), rows, waiting)


def mismatch(fingerprints: Sequence[Fingerprint]) -> CollectiveMismatch:
    """Return the error for ranks that are about to do different things: the same text on all of them."""
    doing: dict[str, list[int]] = {}
    for rank, fingerprint in enumerate(fingerprints):
        doing.setdefault(str(fingerprint), []).append(rank)
    broke = any(fingerprint.kind == Kind.BREAK_FOR_ALL for fingerprint in fingerprints)
    lines = [f"  rank{'s' if len(ranks) > 1 else ''} {_listed(ranks)}: {what}\n" for what, ranks in doing.items()]
    return CollectiveMismatch(
        "the workers are about to do different things, and each would wait for the others\n"
        f"{''.join(lines)}"
        f"  state   {_applied(fingerprints)}; nothing was applied since, and what was saved stays\n"
        f"{_BREAKS_ALONE if broke else _DIFFER}",
        doing={rank: str(fingerprint) for rank, fingerprint in enumerate(fingerprints)},
    )


def _applied(fingerprints: Sequence[Fingerprint]) -> str:
    fewest = min(fingerprint.step for fingerprint in fingerprints)
    return f"{fewest} step{'' if fewest == 1 else 's'} applied"


def _listed(ranks: Sequence[int]) -> str:
    """Write ranks as text, such as "0, 2-4"."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and runs[-1][-1] == rank - 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


def _ordinal(number: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(number, f"{number}th")


def script_site() -> str:
    """Return the innermost place outside this package: the script's, or a library's that it uses."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return _site(frame.f_code.co_filename, frame.f_lineno) if frame is not None else ""


@lru_cache(maxsize=256)
def _site(path: str, line: int) -> str:
    return f"{path if os.path.isabs(path) else os.path.abspath(path)}:{line}"
