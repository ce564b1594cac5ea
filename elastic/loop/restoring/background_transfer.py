"""The weights, and what optimizers keep beside them, go to newcomers while those who hold them compute the next step.

    donor     begins to send at the boundary, in a thread of its own, and computes: no update comes before all of it has
              left, since the newcomer takes part in the exchange of that step
    newcomer  receives, and then goes to its script: it has no share of that step

So the others pause for what of the transfer takes longer than they compute. torchft heals a replica in the same way:
it takes part in its first step with gradients of zero (its `start_quorum`).

Between the boundary and the update only the script's own code could write to the weights. Where it did, the donor tells
the newcomer so, with the last byte, and it comes in at a later boundary, with all workers waiting for it.
"""

from __future__ import annotations

import threading
import traceback
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice

import torch

from elastic.errors import CollectiveFailed, PeerLost
from elastic.group.form import Group, Work

PIECE = 4 << 20
_IN_FLIGHT = 2  # pieces: one is being sent while the other end takes the one before
_LOOK_S = 0.02
_WHOLE, _TORN = 0, 1


@dataclass(frozen=True)
class Piece:
    """Bytes start … stop of a tensor."""

    name: str
    start: int
    stop: int


def pieces(sizes: Mapping[str, int], donors: int) -> list[list[Piece]]:
    """Return what each donor sends, near-equal in bytes; sizes: of the tensors."""
    total = sum(sizes.values())
    found: list[list[Piece]] = [[] for _ in range(donors)]
    before = 0
    for name, size in sizes.items():
        for start in range(0, size, PIECE):
            piece = Piece(name, start, min(start + PIECE, size))
            found[min((before + start) * donors // total, donors - 1)].append(piece)
        before += size
    return found


class BackgroundSend:
    """Sends this rank's part to newcomers, from the making of this object on."""

    def __init__(
        self,
        group: Group,
        to: Collection[int],
        own: Sequence[Piece],
        flats: Mapping[str, torch.Tensor],
        written: Callable[[], bool],
    ) -> None:
        """Begin to send.

        own      what this rank sends
        flats    the bytes of each tensor, where they lie
        written  whether weights have been written to since this was made; asked in another thread
        """
        self.on_finish: Callable[[], None] = lambda: None
        self._group = group
        self._written = written
        self._failure: PeerLost | CollectiveFailed | None = None
        self._stopping = threading.Event()
        self._streams = {tensor.device: _beside_training(tensor.device) for tensor in flats.values() if tensor.is_cuda}
        arguments = to, own, flats
        threading.Thread(target=self._give, args=arguments, name="elastic-state-send", daemon=True).start()

    def finish(self) -> None:
        """Return when all of it has left. Raises PeerLost, CollectiveFailed."""
        while not self._stopping.wait(_LOOK_S):
            self._group.check()
        if self._failure is not None:
            self._group.check()  # what fails in a group that was aborted meanwhile is no fault of this rank's
            raise self._failure
        self.on_finish()

    def _give(self, to: Collection[int], own: Sequence[Piece], flats: Mapping[str, torch.Tensor]) -> None:
        """Send all pieces, and behind them whether the weights were written to meanwhile."""
        try:
            for device in self._streams:
                torch.cuda.set_device(device)  # a thread's is the first one else, which would be made ready, too
            _in_order(self._sent(to, own, flats))
            # Weights that the script wrote to meanwhile have come half from before that, and half from after.
            last = torch.tensor([_TORN if self._written() else _WHOLE], dtype=torch.uint8)
            _in_order(self._group.send(last, rank) for rank in to)
        except BaseException as raised:
            self._failure = _failure(raised)
        finally:
            self._stopping.set()

    def _sent(self, to: Collection[int], own: Sequence[Piece], flats: Mapping[str, torch.Tensor]) -> Iterator[Work]:
        """Yield the sending of each piece to each newcomer."""
        for piece in own:
            bytes_of = flats[piece.name]
            stream = self._streams.get(bytes_of.device)
            with torch.cuda.stream(stream) if stream is not None else nullcontext():
                data = bytes_of[piece.start : piece.stop].cpu()
            for rank in to:
                yield self._group.send(data, rank)


def _beside_training(device: torch.device) -> torch.cuda.Stream:
    """Return a stream for copies that wait for what was computed so far, and not for what is queued from here on."""
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    return stream


def receive(group: Group, given: Mapping[int, Sequence[Piece]], into: Mapping[str, torch.Tensor]) -> None:
    """Receive what each donor gives, rank -> pieces. Raises PeerLost, CollectiveFailed: nothing of it can be used."""
    receipt = _Receipt(group, given, into)
    threading.Thread(target=receipt.run, name="elastic-state-receive", daemon=True).start()
    while not receipt.done.wait(_LOOK_S):
        group.check()  # gloo may not come back from a message that was torn in two: then its thread is left to itself
    if receipt.failure is not None:
        group.check()
        raise receipt.failure
    if receipt.torn:
        raise PeerLost("a donor's script has written to the weights meanwhile", step=None, phase="transfer")


class _Receipt:
    """What a newcomer's thread receives, and how that has ended."""

    def __init__(self, group: Group, given: Mapping[int, Sequence[Piece]], into: Mapping[str, torch.Tensor]) -> None:
        self.failure: PeerLost | CollectiveFailed | None = None
        self.torn = False
        self.done = threading.Event()
        self._group = group
        self._given = given
        self._into = into

    def run(self) -> None:
        last = {rank: torch.full((1,), _TORN, dtype=torch.uint8) for rank in self._given}
        try:
            _in_order(self._received(), together=len(self._given))
            _in_order(self._group.receive(one, rank) for rank, one in last.items())
            self.torn = any(int(one) != _WHOLE for one in last.values())
        except BaseException as raised:
            self.failure = _failure(raised)
        finally:
            self.done.set()

    def _received(self) -> Iterator[Work]:
        """Yield the receipt of each piece, from all donors in turn, so that they send at the same time."""
        for number in range(max(map(len, self._given.values()))):
            for rank, own in self._given.items():
                for piece in islice(own, number, number + 1):
                    yield self._group.receive(self._into[piece.name][piece.start : piece.stop], rank)


def _failure(raised: BaseException) -> PeerLost | CollectiveFailed:
    """Return what a thread of a transfer has met, for who waits for it: without frames, which would keep the group."""
    if isinstance(raised, PeerLost | CollectiveFailed):
        return raised.with_traceback(None)
    trace = "".join(traceback.format_exception(raised))
    return CollectiveFailed(
        f"the transfer of the weights to a newcomer failed: {type(raised).__name__}: {raised}\n"
        "  state  the newcomer has a part of them, and does not train with it; this worker ends\n"
        f"  next   it is replaced; if that happens again, it is here that it fails:\n{trace}"
    )


def _in_order(works: Iterator[Work], together: int = 1) -> None:
    """Wait for all works, with few in flight."""
    in_flight: deque[Work] = deque()
    for work in works:
        in_flight.append(work)
        if len(in_flight) > _IN_FLIGHT * together:
            in_flight.popleft().wait()
    for work in in_flight:
        work.wait()
