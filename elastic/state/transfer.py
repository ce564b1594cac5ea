"""When a view has formed: who holds the state, who needs it, and how does it get there?

    every rank says where it stands  ->  `roles` decides, the same on every rank  ->  each rank that holds the
    newest state sends a part of it to each that does not

Promises  afterwards all ranks stand at the same step, with the same bytes, and know the same agreements.
          A torn state is never given: a rank that failed inside an update takes the state of one that did not.
          Nothing is applied before all of it has arrived: a fault in the transfer leaves every rank as it was.

A rank that has applied a step stands ahead of one that lost its exchange; of two at one step, the one that knows
more of the agreements made since (a stop, an evaluation's sums) stands ahead, and the other is told them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import torch

import checkpoint
from elastic.group.form import Group, gather_bytes

Tree = dict[str, Any]

_ALIGNED = 64


@dataclass(frozen=True, kw_only=True)
class Standing:
    """step        how many are applied; None: no state at all, as at a start
    agreements  how many were made since
    torn        failed inside an update
    rewinds     can give the state as the last update left it, to one that still has to run the code after that step
    """

    step: int | None
    agreements: int = 0
    torn: bool = False
    rewinds: bool = True

    @property
    def holds_a_state(self) -> bool:
        return self.step is not None and not self.torn


@dataclass(frozen=True, kw_only=True)
class Roles:
    """Ranks: `donors` stand farthest; `need_state` lacks the state; `need_word` only agreements, or both.

    rewound   those who need the state lost the exchange of the step that it comes from, and get it as that step's
              update left it
    stranded  cannot be given that: they end, and come back as newcomers
    """

    donors: tuple[int, ...]
    need_state: tuple[int, ...]
    need_word: tuple[int, ...]
    rewound: bool = False
    stranded: tuple[int, ...] = ()


def roles(standings: Sequence[Standing]) -> Roles | None:
    """None: nobody holds a state, so it comes from storage."""
    holding = [(s.step, s.agreements) if s.holds_a_state else None for s in standings]
    best = max((at for at in holding if at is not None), default=None, key=lambda at: (at[0] or 0, at[1]))
    if best is None:
        return None
    donors = tuple(rank for rank, at in enumerate(holding) if at == best)
    need_state = tuple(rank for rank, at in enumerate(holding) if at is None or at[0] != best[0])
    behind = tuple(rank for rank in need_state if standings[rank].step is not None)
    rewinding = tuple(rank for rank in donors if standings[rank].rewinds)
    return Roles(
        donors=rewinding if behind and rewinding else donors,
        need_state=need_state,
        need_word=tuple(rank for rank, at in enumerate(holding) if at != best),
        rewound=bool(behind),
        stranded=() if rewinding else behind,
    )


def exchange_standings(group: Group, standing: Standing) -> list[Standing]:
    """Every rank's, in rank order. Raises PeerLost."""
    return [Standing(**json.loads(told)) for told in gather_bytes(group, json.dumps(asdict(standing)).encode())]


def pass_on(group: Group, parts: Roles, word: Tree, state: Tree) -> tuple[Tree | None, Tree | None, int]:
    """(word, state, bytes received), each for those who need it, else None. Raises PeerLost.

    word   the first donor's, on every rank what it has itself: small plain values
    state  likewise: large, stateful objects allowed
    """
    if not parts.need_word:  # a peer was lost and nobody is behind: this is in the way of the step that is redone
        return None, None, 0
    tensors: dict[str, torch.Tensor] = {}
    header = b""
    first = parts.donors[0]
    if group.rank in parts.donors:
        told, small = checkpoint.encode(word)
        document, tensors = checkpoint.encode(state)
        if group.rank == first:
            kinds = {name: [str(t.dtype).removeprefix("torch."), list(t.shape)] for name, t in tensors.items()}
            values = {name: [str(t.dtype).removeprefix("torch."), t.tolist()] for name, t in small.items()}
            header = json.dumps({"word": told, "values": values, "document": document, "tensors": kinds}).encode()
    answer = json.loads(gather_bytes(group, header)[first])
    new_word = None
    if group.rank in parts.need_word:
        small = {name: torch.tensor(v, dtype=getattr(torch, kind)) for name, (kind, v) in answer["values"].items()}
        new_word = checkpoint.decode(answer["word"], small)
    if not parts.need_state:
        return new_word, None, 0
    layout, total = _layout(answer["tensors"])
    ranges = dict(zip(parts.donors, _ranges(total, len(parts.donors)), strict=True))
    mine = torch.empty(0, dtype=torch.uint8)
    if group.rank in parts.donors:
        mine = _packed(tensors, layout, *ranges[group.rank])
    receives = group.rank in parts.need_state
    flat = torch.empty(total if receives else 0, dtype=torch.uint8)
    everyone = range(group.world_size)
    group.all_to_all(
        flat,
        mine if len(parts.need_state) == 1 else mine.repeat(len(parts.need_state)),
        [ranges[rank][1] - ranges[rank][0] if receives and rank in ranges else 0 for rank in everyone],
        [mine.numel() if rank in parts.need_state else 0 for rank in everyone],
    ).wait()
    if not receives:
        return new_word, None, 0
    received = {}
    for name, place in layout.items():
        tensor = flat[place.offset : place.offset + place.nbytes].view(place.dtype).view(place.shape)
        # A model's are copied into its own. An optimizer keeps what it is given, which would keep all of `flat`.
        received[name] = tensor if name.startswith("model") else tensor.clone()
    return new_word, dict(checkpoint.decode(answer["document"], received)), total


@dataclass(frozen=True)
class _Place:
    offset: int
    nbytes: int
    dtype: torch.dtype
    shape: tuple[int, ...]


def _layout(kinds: dict[str, list[Any]]) -> tuple[dict[str, _Place], int]:
    """Where each tensor lies in the flat bytes, and how many there are."""
    places, at = {}, 0
    for name, (kind, shape) in kinds.items():
        dtype = getattr(torch, kind)
        nbytes = dtype.itemsize * torch.Size(shape).numel()
        places[name] = _Place(at, nbytes, dtype, tuple(shape))
        at += -(-nbytes // _ALIGNED) * _ALIGNED
    return places, at


def _ranges(total: int, donors: int) -> list[tuple[int, int]]:
    """A contiguous part of the bytes for each donor."""
    edges = [i * (total // _ALIGNED) // donors * _ALIGNED for i in range(donors)] + [total]
    return list(pairwise(edges))


def _packed(tensors: dict[str, torch.Tensor], layout: dict[str, _Place], start: int, stop: int) -> torch.Tensor:
    """Bytes start … stop of the flat state."""
    part = torch.empty(stop - start, dtype=torch.uint8)
    for name, place in layout.items():
        low, high = max(place.offset, start), min(place.offset + place.nbytes, stop)
        if low < high:
            flat = tensors[name].contiguous().reshape(-1).view(torch.uint8)
            part[low - start : high - start] = flat[low - place.offset : high - place.offset]
    return part
