"""The same share, passed by two workers, must give the same bits: asked before an update, of its outcome.

A script may keep state in more places than any look at it finds (a hidden state, a count of bodies, a buffer of what
came by, an attribute of a module), and a machine may compute wrongly: both show in the gradients of a share that two
workers pass. In a step that is checked each worker passes, ahead of its own shares and for nothing, the last share of
the worker before it; one that is alone, its own. What was read and what it gave are digested on both sides, travel
with the step's row, and are compared before anything is applied.

    checked      the first step of a launch, and the step before a save, as far as `Budget` lets the coordinator ask
                 with `cross_check=0.01`, beside these, so large a part of all shares
    in fast mode  where a worker's shares are one batch, its own is passed alone for nothing, too
    not checked  where kernels by themselves may give other bits, and alone with one share a step
    sharded      a share's gradients are whole in the worker that passes it, before members exchange them, and digested
                 there; the members of a replica make equally many passes, whoever has fewer to check
    of streams   nobody can read another's share once more: each worker passes a copy of its own first one

Only the first micro-batch of a share is passed. A check changes no result: what the pass gives is let go, buffers are
put back, and the share's random stream begins anew.

Where all workers leave, nobody computes the step behind the last save. The coordinator passes that step's first share
for nothing then, and leaves its digests beside the commit (storage/step_digest.py); whoever resumes passes it as its
own.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum
from typing import Any

import torch

from elastic.config import Config
from elastic.data.example_digest import digest_at, digests_of_rows
from elastic.group.form import Group, all_know, gather_bytes
from elastic.loop.disagreement import Disagreement, Rows, ShareDiffers
from elastic.loop.script_variables import values, variables
from elastic.loop.verdict import ENOUGH, wrong
from elastic.state.bits import digest_of, sum_of_bits
from elastic.state.randomness import derive

_FREE = 3  # checks, before their part of a run's time counts
_PART = 0.005
_ITEMS = 64  # of a list
_PARTS = 1 << 20


class First(Enum):
    """How this worker passes a step's first share for the comparison with what a launch before has left."""

    NOT, AS_OWN, FOR_NOTHING = range(3)


def _nothing(_: int) -> Sequence[int]:
    """Return no examples: nobody knows which they are."""
    return ()


class Budget:
    """Says how often a worker, as coordinator, asks for a check.

    A few times at first, then for so small a part of its run's shares that nobody notices.

    shares  in a step
    cost    of a share that is passed for nothing, in shares: it is read by no loader
    """

    def __init__(self, shares: int, *, cost: int = 1) -> None:
        self._shares, self._cost = shares, cost
        self._asked = 0
        self._since: int | None = None

    def asks(self, step: int, *, world_size: int) -> bool:
        """Return whether one more is affordable at this step; it is counted then."""
        self._since = step if self._since is None else self._since
        passed = (step - self._since) * self._shares
        if self._asked >= _FREE and (self._asked - _FREE + 1) * self._cost * world_size > _PART * passed:
            return False
        self._asked += 1
        return True


class CrossCheck:
    """The cross-check of one step, as this worker takes part in it.

    passes  the shares that it passes for nothing
    copied  its own share that it passes a copy of, instead
    own     the shares of its own that somebody passes, too
    alone   likewise, in fast mode: it passes them for nothing, one by one
    first   whether it passes the step's first share, to be compared with what a launch before has left
    at_least  so many passes for nothing its replica's workers make together, whoever has fewer to check
    runs    a body that counts for nothing is at work
    theirs, ours, left  what it has passed, by share: of others, of its own, and for `first`
    """

    def __init__(
        self,
        passes: Sequence[int] = (),
        own: Collection[int] = (),
        copied: int | None = None,
        *,
        hold_state: int = 1,
        joined: Collection[int] = (),
        by_all: bool = True,
        alone: Sequence[int] = (),
    ) -> None:
        """Take a part. hold_state: how many workers do; joined: see planned; by_all: these are not alone in it."""
        self.passes = (*passes,)
        self.own = frozenset(own)
        self.alone = (*alone,)
        self.first = First.NOT
        self.copied = copied
        self.at_least = 0
        self.runs = False
        self._current: Pass | None = None
        self._void = False
        self._batch: Any = None
        self.theirs: dict[int, Pass] = {}
        self.ours: dict[int, Pass] = {}
        self.left: dict[int, Pass] = {}
        self._seen: dict[str, Any] = {}
        self._changed: list[str] = []
        self._again: list[dict[str, Any]] = []
        self._hold_state = hold_state
        self._joined = frozenset(joined)
        self._by_all = by_all

    @classmethod
    def planned(
        cls,
        blocks: Sequence[range],
        rank: int,
        *,
        each: int,
        idle: Collection[int],
        streams: bool,
        joined: Collection[int] = (),
        fast: bool = False,
    ) -> CrossCheck:
        """Return what a rank's part in a step's cross-check is.

        blocks  the shares of each rank
        each    how many of a rank's shares are checked, the last ones
        idle    ranks that hold no state yet
        joined  ranks that compute a part of a step for the first time: where `each` is 0 they alone pass a share of
                another one's
        """
        there = [one for one in range(len(blocks)) if one not in idle]
        if rank not in there:
            return cls()
        own = blocks[rank]
        if streams:
            return cls(own=own[:1], copied=own[0]) if own and (each or rank in joined) else cls()
        others = there if each else [one for one in there if one not in joined]
        if not others:  # those that they joined are lost: nobody is left to compare with
            return cls()
        checked: dict[int, int] = {}  # whose shares, by whom
        for checker in there if each else joined:
            before = [one for one in others if one < checker]
            checked[checker] = before[-1] if before else others[-1]  # the worker before it, round in a ring
        last = slice(-max(each, 1), None)
        return cls(
            blocks[checked[rank]][last][::-1] if rank in checked else (),  # in another order than their own worker's
            own[last] if rank in checked.values() and not fast else (),
            hold_state=len(there),
            joined=joined,
            by_all=each > 0,
            alone=own[last] if fast else (),
        )

    @property
    def takes_place(self) -> bool:
        """Return whether workers pass shares for nothing, as far as is known here, and not only those who joined."""
        return self._by_all and bool(self.own or self.alone or self.passes or self.copied is not None)

    @property
    def for_nothing(self) -> int:
        """Return how many passes for nothing it comes to, ahead of this worker's own shares."""
        return len(self.passes) + len(self.alone) + (self.first is First.FOR_NOTHING)

    def begins(self, share: int, batch: Any, kept: dict[int, Pass]) -> None:
        """Begin to pass a share for nothing, and put it into `kept`; batch None: all of its examples were left out."""
        self._seen = values(variables())
        self._batch = batch
        self.runs, self._current = True, Pass(batch, share)
        kept[share] = self._current

    def take(self, number: int, gradient: torch.Tensor) -> None:
        """Take a gradient of a pass for nothing, by its parameter's number."""
        assert self._current is not None
        self._current.take(number, gradient)

    def gives_up(self) -> None:
        """Have nothing compared that this worker passes: what it should pass cannot be had here."""
        self._void = True

    def ends(self) -> None:
        """End the pass, and find which of the script's variables its body has changed."""
        self.runs = False
        handed, self._batch = {*map(id, _parts(self._batch))}, None
        here = {
            name: one
            for name, one in variables().items()
            if id(one) not in handed and getattr(one, "grad_fn", None) is None  # the batch, and what was made of it
        }
        now = values(here)
        changed = [name for name, then in self._seen.items() if name in here and not _same(now.get(name), then)]
        # What is only counted or printed is a number; what may reach gradients is named alone, where there is any.
        self._changed = [name for name in changed if _holds_a_tensor(here.get(name))] or changed
        self._seen = {}

    def takes(self, share: int, batch: Any) -> Callable[[int, torch.Tensor], None] | None:
        """Return what is to get the gradients of the share's own pass, one by one; None: nobody else passes it."""
        is_first = share == 0 and self.first is First.AS_OWN
        if share not in self.own and not is_first:
            return None
        one = Pass(batch, share)
        if is_first:
            self.left[share] = one
        if share in self.own:
            self.ours[share] = one
        return one.take if batch is not None else None

    def digests(self) -> tuple[int, int]:
        """Return the digests for the step's row: of its own, and of what it has passed for nothing; 0: of none."""
        return _digest(self.ours), 0 if self._void else _digest(self.theirs)

    def digests_of_first(self) -> tuple[int, int] | None:
        """Return 40 bits each of its batch and of what that gave; None where this worker has not passed it."""
        one = self.left.get(0)
        if one is None or not one.gradients:
            return None
        return one.batch, _digest(self.left) % (1 << 40) or 1  # 0 says that there is none

    def compare(
        self,
        own: Sequence[int],
        passed: Sequence[int],
        group: Group,
        names: Sequence[str],
        *,
        step: int,
        examples: Callable[[int], Sequence[int]] = _nothing,
    ) -> None:
        """Compare what the rows say; all ranks call it.

        own, passed  of all ranks; each that is passed must be some rank's own
        names        of the parameters
        examples     of a share, by their numbers in the data set

        Raises PeerLost; and where two are not the same, on all, StepError or ShareDiffers.
        """
        if {*passed} <= {*own, 0}:  # 0: that rank has passed none
            return
        mine = {
            "host": socket.gethostname(),
            "own": {share: one.said(names) for share, one in self.ours.items()},
            "passed": {} if self._void else {share: one.said(names) for share, one in self.theirs.items()},
            "changed": self._changed,
        }
        found = Disagreement.of([*map(json.loads, gather_bytes(group, json.dumps(mine).encode()))], step)
        if found.other_batch:
            found = found.with_examples(self._rows(found, examples, group), examples(found.share))
        if found.owner != found.checker and self._hold_state >= ENOUGH:
            raise ShareDiffers(found)
        all_know(group)
        raise found.ends((), self._joined, rank=group.rank)

    def _rows(self, found: Disagreement, examples: Callable[[int], Sequence[int]], group: Group) -> tuple[Rows, Rows]:
        """Return digests of each example, as its own worker has read it and as the other one has. Raises PeerLost."""
        mine = []
        for passes in (self.ours, self.theirs):
            one = passes.get(found.share)
            mine.append(digests_of_rows(one.read, len(examples(found.share))) if one is not None else {})
        every = [json.loads(one) for one in gather_bytes(group, json.dumps(mine).encode())]
        return every[found.owner][0], every[found.checker][1]

    def passed_again(self, names: Sequence[str]) -> None:
        """Keep what this worker's pass of the share that all pass again has given."""
        self._again += [one.said(names) for one in self.theirs.values()]
        self.theirs = {}

    def settles(self, found: Disagreement, group: Group) -> Exception:
        """Return what this rank raises once all have passed the differing share again; all call it. Raises PeerLost."""
        mine = [] if self._void else self._again
        every = [json.loads(one) for one in gather_bytes(group, json.dumps(mine).encode())]
        again = {rank: [*map(_plain, said)] for rank, said in enumerate(every) if said}
        odd = wrong({rank: _plain(said) for rank, said in found.first.items()}, again)
        all_know(group)
        return found.ends(odd, self._joined, rank=group.rank)


class Pass:
    """One pass of a share: what was read, and what it gave."""

    def __init__(self, batch: Any, share: int) -> None:
        self.batch = digest_at(batch, share, 0) or 0
        self.read = batch  # to say which of its examples differs
        self.gradients: dict[int, torch.Tensor] = {}

    def take(self, number: int, gradient: torch.Tensor) -> None:
        """Keep the sum of a gradient's bits, by its parameter's number."""
        self.gradients[number] = sum_of_bits(gradient)

    def said(self, names: Sequence[str]) -> dict[str, Any]:
        """Return what others compare with their pass, by the parameters' names."""
        return {"batch": self.batch, "gradients": {names[at]: int(one) for at, one in sorted(self.gradients.items())}}


def each(config: Config, step: int, *, world_size: int, asked: bool) -> int:
    """Return how many shares of each worker are checked in a step.

    asked  it is a launch's first one, or the coordinator has asked for it

    Of a run that checks any: see Session.checks.
    """
    shares, part = config.plan.virtual_workers, config.cross_check
    if not part:
        return int(asked)
    if part == 1:
        return -(-shares // world_size)
    wanted = part * shares / world_size
    drawn = derive("cross-check", config.plan.seed, step) % _PARTS / _PARTS  # the same on all workers
    return max(int(asked), int(wanted) + (drawn < wanted % 1))


def _plain(said: Mapping[str, Any]) -> str:
    return json.dumps(said, sort_keys=True)


def _digest(passes: Mapping[int, Pass]) -> int:
    """Return one digest of all these passes; 0: there are none."""
    if not passes:
        return 0
    every: list[torch.Tensor] = []
    for share, one in sorted(passes.items()):
        every.append(torch.tensor([share, one.batch, *sorted(one.gradients)]))
        every += [sums for _, sums in sorted(one.gradients.items())]
    return digest_of(every)


def _parts(batch: Any) -> list[Any]:
    """Return a batch, and what a loop may unpack it into."""
    inside = [*batch.values()] if isinstance(batch, Mapping) else [*batch] if isinstance(batch, (list, tuple)) else []
    return [batch, *inside]


def _holds_a_tensor(value: Any, depth: int = 3) -> bool:
    """Return whether a value is a tensor of floating-point numbers, or holds one that is quickly found."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)) and depth:
        return any(_holds_a_tensor(one, depth - 1) for one in value[:_ITEMS])
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _same(one: Any, other: Any) -> bool:
    """Return whether two values tell of no change; NaN is what it was."""
    return type(one) is type(other) and bool(one == other or one != one)
