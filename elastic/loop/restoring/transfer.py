"""Who holds the state when a view has formed, who needs it, and how it gets there.

    every rank says where it stands  ->  `roles` decides, the same on every rank  ->  each rank that holds the
    newest state sends a part of it to each that does not

To newcomers the weights, which are most of a state, follow while the others compute (background_transfer.py).

Promises  afterwards all ranks stand at the same step, with the same bytes, and know the same agreements.
          A torn state is never given: a rank that failed inside an update takes the state of one that did not.
          Nothing is applied before all of it has arrived: a fault in the transfer leaves every rank as it was.

A rank that has applied a step stands ahead of one that lost its exchange; of two at one step, the one that knows
more of the agreements made since (a stop, an evaluation's sums) stands ahead, and the other is told them.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import torch

import elastic_checkpoint
from elastic.group.form import Group, Work, gather_bytes
from elastic.group.layout import dense
from elastic.loop.restoring.background_transfer import PIECE, BackgroundSend, Piece, pieces, receive
from elastic.loop.run_state import StateSummary
from elastic.state.sharding import Sharding, cut_of, local, whole_of
from elastic.state.train_state import Tree
from elastic.state.weights import Weights
from elastic_checkpoint.format.dtypes import name_of

_ALIGNED = 64
_FOLLOWS_BYTES = 256  # smaller tensors come at once: each that follows is a message


@dataclass(frozen=True, kw_only=True)
class Roles:
    """Which ranks give the state, and which need it.

    donors           stand farthest
    need_state       lack the state
    need_side_state  lack agreements alone, or both
    rewound          those who need the state lost the exchange of the step that it comes from, and get it as that
                     step's update left it
    stranded         cannot be given that: they end, and come back as newcomers
    follows          those who need the state are newcomers, and get the weights while the donors compute
    """

    donors: tuple[int, ...]
    need_state: tuple[int, ...]
    need_side_state: tuple[int, ...]
    rewound: bool = False
    stranded: tuple[int, ...] = ()
    follows: bool = False


def roles(summaries: Sequence[StateSummary]) -> Roles | None:
    """Decide who gives the state and who needs it; None: nobody holds one, so it comes from storage."""
    holding = [(s.step, s.agreements) if s.holds_a_state else None for s in summaries]
    # a worker with a state has a step: `or 0` is for the type checker
    best = max((at for at in holding if at is not None), default=None, key=lambda at: (at[0] or 0, at[1]))
    if best is None:
        return None
    donors = tuple(rank for rank, at in enumerate(holding) if at == best)
    completes = {rank for rank, s in enumerate(summaries) if s.holds_step and s.step == (best[0] or 0) - 1}
    need_state = tuple(
        rank for rank, at in enumerate(holding) if (at is None or at[0] != best[0]) and rank not in completes
    )
    behind = tuple(rank for rank in need_state if summaries[rank].step is not None)
    rewinding = tuple(rank for rank in donors if summaries[rank].rewinds)
    return Roles(
        donors=rewinding if behind and rewinding else donors,  # who is behind has the code after that step to run
        need_state=need_state,
        need_side_state=tuple(rank for rank, at in enumerate(holding) if at != best),
        rewound=bool(behind),
        stranded=() if rewinding else behind,
        follows=bool(need_state) and not behind and all(summaries[rank].steady for rank in donors),
    )


def exchange_summaries(group: Group, summary: StateSummary) -> list[StateSummary]:
    """Return every rank's summary, in rank order. Raises PeerLost."""
    return [StateSummary(**json.loads(packed)) for packed in gather_bytes(group, json.dumps(asdict(summary)).encode())]


@dataclass(frozen=True, kw_only=True)
class Passed:
    """What this rank has got or given in a transfer.

    side_state, state  for those who need them
    nbytes  that went, or go, to each who lacked the state
    background_send  on donors, what is still on its way
    """

    side_state: Tree | None = None
    state: Tree | None = None
    nbytes: int = 0
    background_send: BackgroundSend | None = None


def at_one_place(parts: Roles, summaries: Sequence[StateSummary], size: int) -> Roles:
    """Return who gives the state and who needs it, of whole replicas: each of their workers to those at its place."""
    best = max(summaries[rank].step or 0 for rank in parts.donors)
    lacks = {rank // size for rank in parts.need_state}
    holds = [
        number
        for number in range(len(summaries) // size)
        if number not in lacks and all(s.step == best for s in summaries[number * size : (number + 1) * size])
    ]
    need = tuple(sorted(lacks))
    return Roles(donors=tuple(holds), need_state=need, need_side_state=need, follows=parts.follows)


def pass_on(
    group: Group,
    parts: Roles,
    side_state: Tree,
    state: Tree,
    weights: Weights,
    sharding: Sharding | None = None,
) -> Passed:
    """Pass the state to those who need it. Raises PeerLost.

    side_state  the first donor's, on every rank what it has itself: small plain values
    state       likewise: large, stateful objects allowed
    weights     which of its tensors can follow
    sharding    of the run's models: what is sharded goes part by part, to ranks that hold the same parts
    """
    if not parts.need_side_state:  # a peer was lost and nobody is behind: this delays the step that is redone
        return Passed()
    tensors: dict[str, torch.Tensor] = {}
    header = b""
    first = parts.donors[0]
    if group.rank in parts.donors:
        packed, small = elastic_checkpoint.encode(side_state)
        document, whole = elastic_checkpoint.encode(state, sharded=sharding is not None)
        tensors = {name: local(tensor) for name, tensor in whole.items()}
        if group.rank == first:
            held = weights.memory() if parts.follows else frozenset()
            header = json.dumps(
                {
                    "side_state": packed,
                    "values": {name: [_kind(t), t.tolist()] for name, t in small.items()},
                    "document": document,
                    "tensors": {name: _described(tensor) for name, tensor in tensors.items()},
                    "follow": [name for name, tensor in tensors.items() if _can_follow(tensor, held)],
                    "cuts": {name: cut for name, tensor in whole.items() if (cut := cut_of(tensor)) is not None},
                }
            ).encode()
    answer = json.loads(gather_bytes(group, header)[first])
    new_side_state = None
    if group.rank in parts.need_side_state:
        small = {name: torch.tensor(v, dtype=getattr(torch, kind)) for name, (kind, v) in answer["values"].items()}
        new_side_state = elastic_checkpoint.decode(answer["side_state"], small)
    if not parts.need_state:
        return Passed(side_state=new_side_state)
    follow = {name: answer["tensors"].pop(name) for name in answer["follow"]}
    layout, at_once = _layout(answer["tensors"])
    received = _stream(group, parts, tensors, layout, at_once)
    following, later = _layout(follow)
    nbytes = at_once + later
    given = dict(
        zip(parts.donors, pieces({name: one.nbytes for name, one in following.items()}, len(parts.donors)), strict=True)
    )
    background_send = None
    if follow and group.rank in parts.donors:
        flats = {name: _flat(tensors[name]) for name in follow}
        background_send = BackgroundSend(group, parts.need_state, given[group.rank], flats, weights.watched())
    if received is None:
        return Passed(side_state=new_side_state, nbytes=nbytes, background_send=background_send)
    if follow:
        received |= _taken(group, given, following)
    arrived = {name: whole_of(tensor, answer["cuts"].get(name), sharding) for name, tensor in received.items()}
    state = dict(elastic_checkpoint.decode(answer["document"], arrived))
    return Passed(side_state=new_side_state, state=state, nbytes=nbytes)


def _can_follow(tensor: torch.Tensor, held: frozenset[int]) -> bool:
    """Return whether a tensor can follow while the donors compute: it is not small, and `held` has its memory."""
    return tensor.nbytes >= _FOLLOWS_BYTES and tensor.untyped_storage().data_ptr() in held


def _taken(group: Group, given: dict[int, list[Piece]], layout: dict[str, _Span]) -> dict[str, torch.Tensor]:
    """Receive the tensors that come while the donors compute."""
    into = {name: span.empty() for name, span in layout.items()}
    receive(group, given, {name: _flat(tensor) for name, tensor in into.items()})
    return into


def _stream(
    group: Group, parts: Roles, tensors: dict[str, torch.Tensor], layout: dict[str, _Span], total: int
) -> dict[str, torch.Tensor] | None:
    """Send piece by piece: while one is on its way, the donors pack the next, and the others unpack the one before.

    Returns the tensors, for those who need them. Raises PeerLost.
    """
    receives = group.rank in parts.need_state
    ranges = dict(zip(parts.donors, _ranges(total, len(parts.donors)), strict=True))
    flats = {name: _flat(tensor) for name, tensor in tensors.items()}
    into = {name: span.empty() for name, span in layout.items()} if receives else {}
    flats_into = {name: _flat(tensor) for name, tensor in into.items()}
    packed = [torch.empty(PIECE * len(parts.need_state) if tensors else 0, dtype=torch.uint8) for _ in range(2)]
    arrived = [torch.empty(PIECE * len(ranges) if receives else 0, dtype=torch.uint8) for _ in range(2)]
    on_its_way: tuple[Work, torch.Tensor, dict[int, tuple[int, int]]] | None = None
    rounds = -(-max(stop - start for start, stop in ranges.values()) // PIECE)
    for number in range(rounds + 1):  # in the last one nothing is sent any more
        before = on_its_way
        if number < rounds:
            pieces = {rank: _piece(start, stop, number) for rank, (start, stop) in ranges.items()}
            sizes = [pieces[rank][1] - pieces[rank][0] if rank in pieces else 0 for rank in range(group.world_size)]
            size = sizes[group.rank]
            mine = packed[number % 2][: size * len(parts.need_state)]
            for copy in range(len(parts.need_state) if size else 0):
                _pack(mine[copy * size : (copy + 1) * size], flats, layout, *pieces[group.rank])
            out = arrived[number % 2][: sum(sizes) if receives else 0]
            out_sizes = sizes if receives else [0] * group.world_size
            own_sizes = [size if rank in parts.need_state else 0 for rank in range(group.world_size)]
            on_its_way = group.all_to_all(out, mine, out_sizes, own_sizes), out, pieces
        if before is not None:
            pending, out, pieces = before
            pending.wait()
            at = 0
            for low, high in pieces.values() if receives else ():
                _unpack(out[at : at + high - low], flats_into, layout, low, high)
                at += high - low
    return into if receives else None


def _piece(start: int, stop: int, number: int) -> tuple[int, int]:
    """Return where a range's piece of this number begins and ends."""
    return min(start + number * PIECE, stop), min(start + (number + 1) * PIECE, stop)


@dataclass(frozen=True)
class _Span:
    """Where a tensor lies in the flat bytes, and as what."""

    offset: int
    nbytes: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def empty(self) -> torch.Tensor:
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype)


def _kind(tensor: torch.Tensor) -> str:
    return name_of(tensor.dtype)


def _described(tensor: torch.Tensor) -> list[Any]:
    """Return a tensor's kind, shape and strides: as its bytes lie (channels_last needs no copy); in rows if apart."""
    strides = tensor.stride() if dense(tensor) else torch.empty(tensor.shape, device="meta").stride()
    return [_kind(tensor), list(tensor.shape), list(strides)]


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's bytes as they travel."""
    if dense(tensor):
        return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _layout(kinds: dict[str, list[Any]]) -> tuple[dict[str, _Span], int]:
    """Return where each tensor lies in the flat bytes, and how many there are."""
    spans, at = {}, 0
    for name, (kind, shape, strides) in kinds.items():
        dtype = getattr(torch, kind)
        nbytes = dtype.itemsize * torch.Size(shape).numel()
        spans[name] = _Span(at, nbytes, dtype, tuple(shape), tuple(strides))
        at += -(-nbytes // _ALIGNED) * _ALIGNED
    return spans, at


def _ranges(total: int, donors: int) -> list[tuple[int, int]]:
    """Return a contiguous part of the bytes for each donor."""
    edges = [i * (total // _ALIGNED) // donors * _ALIGNED for i in range(donors)] + [total]
    return list(pairwise(edges))


def _pack(out: torch.Tensor, flats: dict[str, torch.Tensor], layout: dict[str, _Span], start: int, stop: int) -> None:
    """Copy bytes start … stop of the flat state into `out`."""
    for name, low, high, offset in _within(layout, start, stop):
        out[low - start : high - start] = flats[name][low - offset : high - offset]


def _unpack(
    data: torch.Tensor, flats: dict[str, torch.Tensor], layout: dict[str, _Span], start: int, stop: int
) -> None:
    """Copy `data`, which is bytes start … stop of the flat state, to where they belong."""
    for name, low, high, offset in _within(layout, start, stop):
        flats[name][low - offset : high - offset] = data[low - start : high - start]


def _within(layout: dict[str, _Span], start: int, stop: int) -> Iterator[tuple[str, int, int, int]]:
    """Yield (name, from, to, its own offset) of every tensor with bytes between start and stop."""
    names = list(layout)
    first = max(0, bisect_right(names, start, key=lambda name: layout[name].offset) - 1)
    for name in names[first:]:
        span = layout[name]
        if span.offset >= stop:
            return
        low, high = max(span.offset, start), min(span.offset + span.nbytes, stop)
        if low < high:
            yield name, low, high, span.offset


def broadcast(group: Group, tree: Tree | None, sharding: Sharding | None = None) -> Tree:
    """Return rank 0's tree on every rank, tensors on the CPU. Raises PeerLost.

    tree      on rank 0; None elsewhere
    sharding  of the run's models: of what is sharded the ranks of the group hold the same parts
    """
    tensors: dict[str, torch.Tensor] = {}
    header = b""
    if group.rank == 0:
        assert tree is not None
        if group.world_size == 1:
            return tree
        document, whole = elastic_checkpoint.encode(tree, sharded=sharding is not None)
        tensors = {name: local(tensor) for name, tensor in whole.items()}
        kinds = {name: [name_of(t.dtype), list(t.shape), cut_of(whole[name])] for name, t in tensors.items()}
        header = json.dumps({"document": document, "tensors": kinds}).encode()
    layout = json.loads(gather_bytes(group, header)[0])
    received: dict[str, torch.Tensor] = {}
    for name, (dtype, shape, cut) in layout["tensors"].items():
        wire = torch.empty(shape, dtype=getattr(torch, dtype))
        if group.rank == 0:
            wire.copy_(tensors[name])
        if wire.numel():
            group.broadcast(wire.reshape(-1).view(torch.uint8)).wait()
        received[name] = whole_of(wire, cut, sharding)
    return dict(elastic_checkpoint.decode(layout["document"], received))
