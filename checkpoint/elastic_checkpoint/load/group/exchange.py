"""Each rank reads its share of what is wanted, and passes on what others want too, from one rank to another.

    round after round: one run read by each rank  ->  has any failed?  ->  sent to those who want it, who verify it
    then: what nobody else wants, each rank for itself

A rank that failed takes part until the others learn of it, before the next run is sent: nobody waits for bytes that do
not come. What it failed of, the agreement that follows tells everybody.

The manifest itself goes from rank 0, which alone reads and judges it, to the others: a length, then JSON of what is no
number of a piece, then the pieces' columns as 64-bit integers.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch

from elastic_checkpoint.errors import CheckpointError, CorruptCheckpoint
from elastic_checkpoint.format.draft import StoredObject
from elastic_checkpoint.format.dtypes import STORED
from elastic_checkpoint.format.hashing import to_json
from elastic_checkpoint.format.manifest import Manifest
from elastic_checkpoint.format.names import CommitId
from elastic_checkpoint.format.pieces import Table
from elastic_checkpoint.load.group.ranges import TensorBuffers
from elastic_checkpoint.load.objects import Run, check_run, read_run, run_range
from elastic_checkpoint.net.codec import Message
from elastic_checkpoint.net.rank_bytes import Sent
from elastic_checkpoint.net.rank_channel import RankChannel
from elastic_checkpoint.storage import Buffer, Storage

_AHEAD = 2  # runs that a rank reads before they are needed
_RECEIVED_AT_ONCE = 2  # memory for so many is had beside those that are read


@dataclass
class ReadPlan:
    """The plan of what one rank reads, sends and gets.

    sends   in each round, the run that it reads, and the ranks that get it
    gets    (round, rank that reads, run), in order of the rounds
    alone   runs that only this rank wants
    rounds  of all ranks
    """

    sends: list[tuple[Run, list[int]]]
    gets: list[tuple[int, int, Run]]
    alone: list[Run]
    rounds: int

    @classmethod
    def of(cls, message: Message) -> ReadPlan:
        """Return the plan that rank 0's message holds."""
        return cls(
            [(_run(run), ranks) for run, ranks in message["sends"]],
            [(round_, reader, _run(run)) for round_, reader, run in message["gets"]],
            [_run(run) for run in message["alone"]],
            message["rounds"],
        )


def _run(numbers: Any) -> Run:
    object, first, count = numbers
    return object, first, count


def exchange(
    channel: RankChannel, storage: Storage, manifest: Manifest, wanted: TensorBuffers, share: ReadPlan
) -> None:
    """Fill `wanted`. Collective.

    Raises what this rank failed of. When another one did, returns early: what that one says comes next.
    """
    round_ = _Round(channel, manifest, wanted)
    gets = deque(sorted(share.gets))
    with ThreadPoolExecutor(_AHEAD, thread_name_prefix="checkpoint-read") as pool:
        reads = _ahead(pool, storage, manifest, [*(run for run, _ in share.sends), *share.alone])
        for number in range(share.rounds):
            sends = share.sends[number : number + 1]
            data = round_.read(reads) if sends else None
            if any(channel.bytes.all_gather(int(round_.failure is not None))):
                break
            coming = []
            while gets and gets[0][0] == number:
                coming.append(gets.popleft()[1:])
            round_.pass_on(number, sends, data, coming)
        else:
            for run in share.alone:
                if (data := round_.read(reads)) is None:
                    break
                round_.fill(run, data)
        pool.shutdown(cancel_futures=True)
    if round_.failure is not None:
        raise round_.failure


def _ahead(pool: ThreadPoolExecutor, storage: Storage, manifest: Manifest, runs: list[Run]) -> Iterator[Future[bytes]]:
    """Yield the reads of these runs, in their order, of which a few are under way."""
    begun: deque[Future[bytes]] = deque()
    coming = iter(runs)
    for _ in runs:
        begun.extend(
            pool.submit(read_run, storage, manifest, run) for run in islice(coming, max(0, 1 + _AHEAD - len(begun)))
        )
        yield begun.popleft()


class _Round:
    """One rank's part in the rounds. Whatever fails is kept, and the rank goes on as the others expect.

    failure  the first one
    """

    def __init__(self, channel: RankChannel, manifest: Manifest, wanted: TensorBuffers) -> None:
        self._channel, self._manifest, self._wanted = channel, manifest, wanted
        self.failure: BaseException | None = None

    def read(self, reads: Iterator[Future[bytes]]) -> bytes | None:
        """Return the next run's bytes; None where that failed, in whatever way: clients of storages raise all kinds."""
        data: bytes | None = self._guarded(lambda: next(reads).result())
        return data

    def fill(self, run: Run, data: bytes) -> None:
        """Fill in what this rank wants of a run that it has read."""
        self._guarded(lambda: self._wanted.fill(run, data))

    def pass_on(
        self, number: int, sends: list[tuple[Run, list[int]]], data: bytes | None, coming: list[tuple[int, Run]]
    ) -> None:
        """Send this rank's run, and fill in those that come."""
        # All sends begin at once, so what is received is always on its way, in whatever order ranks look for it.
        under_way: list[Sent] = []
        for run, ranks in sends:
            assert data is not None, "all ranks would have stopped"
            flat = torch.from_numpy(np.frombuffer(data, np.uint8).copy())
            under_way += [self._channel.bytes.send(flat, rank, number) for rank in ranks]
            self.fill(run, data)
        arriving: deque[tuple[int, Run, Sent]] = deque()
        for reader, run in coming:
            memory = torch.empty(run_range(self._manifest, run)[1], dtype=torch.uint8)
            arriving.append((reader, run, self._channel.bytes.receive(memory, reader, number)))
            if len(arriving) >= _RECEIVED_AT_ONCE:
                self._take(*arriving.popleft())
        while arriving:
            self._take(*arriving.popleft())
        for sent in under_way:
            sent.wait()

    def _take(self, reader: int, run: Run, sent: Sent) -> None:
        """Wait for a run from another rank, verify it, and fill it in."""
        data = sent.wait().numpy().data

        def verified() -> None:
            try:
                check_run(self._manifest, run, data)
            except CorruptCheckpoint as error:
                raise CheckpointError(
                    f"on the way from rank {reader} to rank {self._channel.rank} bytes were changed: {error}"
                ) from error
            self._wanted.fill(run, data)

        self._guarded(verified)

    def _guarded(self, act: Callable[[], Any]) -> Any:
        """Return what `act` returns; None where it raises, which is kept if it is the first failure."""
        try:
            return act()
        except BaseException as error:
            self.failure = self.failure or error
            return None


_COLUMNS = ("counts", "objects", "starts", "offsets", "sizes")


def packed(manifest: Manifest) -> bytes:
    """Return a manifest as it goes to the other ranks, without what only people read."""
    table = manifest.table
    columns = [getattr(table, name) for name in _COLUMNS]
    head = to_json(
        {
            "tree": manifest.tree,
            "names": table.names,
            "dtypes": [dtype.name for dtype in table.dtypes],
            "shapes": table.shapes,
            "objects": [{**one.document(), "helper": one.helper} for one in manifest.objects],
            "lengths": [len(column) for column in columns],
        }
    )
    return b"".join([len(head).to_bytes(8, "little"), head, *(column.astype("<i8").tobytes() for column in columns)])


def unpacked(data: Buffer, id: CommitId) -> Manifest:
    """Return the manifest that `packed` has packed."""
    view = memoryview(data)
    at = 8 + int.from_bytes(view[:8], "little")
    head = json.loads(bytes(view[8:at]))
    columns = []
    for length in head["lengths"]:
        columns.append(np.frombuffer(view[at : at + 8 * length], "<i8").astype(np.int64))
        at += 8 * length
    shapes = [tuple(shape) for shape in head["shapes"]]
    table = Table(head["names"], [STORED[name] for name in head["dtypes"]], shapes, *columns)
    objects = tuple(map(StoredObject.of, head["objects"]))
    return Manifest(id, 0.0, None, {}, objects, table.tensors(), head["tree"], table)
