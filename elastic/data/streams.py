"""Examples that can only be read one after another: each virtual worker has a stream of its own.

    elastic.Streams(make)        make(worker, workers) is the stream of one of so many virtual workers
    elastic.Streams.lines(urls)  files of lines, dealt out to them; `tar`, `parquet`, `hugging_face` likewise

Promises  a step's share is what its virtual worker's stream gives next, whoever carries that share. A stream's position
          after each step is known to all workers: it travels with the step's sums, in transfers and in checkpoints. So
          a run goes on by position at another world size, and no example is read to be passed over.
          A stream that does not go on from its own position is found out before the first step, and refused.
          A stream that ends begins again; with `set_epoch`, it is told for which time.
Leaves    the steps to data_plan.py: to it this is a dataset of many examples, read in order.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from elastic.data.file_streams import Lines, Samples, identity_of_files
from elastic.data.hugging_face import check_dataset, identity_of, part_of
from elastic.data.stream_check import check_kind, check_resumes, state_of
from elastic.errors import ConfigError, StepError

LENGTH = 2**48
"""Examples that are as good as endless."""

_PREFIX = "\0stream"  # no name that a script gives
_BYTES, _NUMBERS = 6, 8  # in a number that a float64 holds; numbers at a time
_COMPRESSED = (".gz", ".tgz", ".bz2", ".xz", ".zst", ".lz4")


class Streams:
    """Examples that come in streams, one for each virtual worker: what `Run(dataset=…)` takes, with `steps=`.

    Args:
        make: `make(worker, workers)` returns an iterable of that virtual worker's examples, counted from 0, with
            torchdata's `state_dict()`, JSON values that say where it stands, and `load_state_dict(state)`, after which
            iterating over it goes on there. Together the streams should give each example once.
        identity: Gives something that JSON holds, and that tells what the streams are made of from anything else, such
            as the names of their files: positions mean nothing in others, and a run that finds others is refused. None:
            nothing is known of it.

    Raises:
        ConfigError: Where a stream's state does not bring it back to where it stood; from the loop's beginning.
    """

    def __init__(self, make: Callable[[int, int], Any], identity: Callable[[], Any] | None = None) -> None:
        self._make = make
        self._identity = identity
        self._known: Any = None
        self._edges: list[int] = []
        self._positions: dict[int, tuple[int, dict[str, Any] | None]] = {}
        self._readers: dict[int, _Reader] = {}

    @staticmethod
    def lines(
        urls: Sequence[str],
        decode: Callable[[bytes], Any] = json.loads,
        *,
        storage_options: Mapping[str, Any] | None = None,
    ) -> Streams:
        """Read the lines of files, in order; the files are dealt out to the virtual workers.

        Args:
            urls: Paths or fsspec URLs, as many as there are virtual workers at least.
            decode: Makes an example of a line, without its end.
            storage_options: For fsspec's filesystem.

        Their names, from the folder that they share on, and their sizes are part of the run's identity.

        Raises:
            ConfigError: A file is compressed, or not there, or there are fewer than virtual workers; the two latter
                from the run's beginning.
        """
        return _of_files(urls, lambda files: Lines(files, decode, storage_options), storage_options)

    @staticmethod
    def tar(
        urls: Sequence[str],
        decode: Callable[[dict[str, Any]], Any] = dict,
        *,
        storage_options: Mapping[str, Any] | None = None,
    ) -> Streams:
        """Read the samples of WebDataset's archives, in order; the archives are dealt out to the virtual workers.

        Args:
            urls: Paths or fsspec URLs, as many as there are virtual workers at least.
            decode: Makes an example of a sample, a dict: "__key__" is its name up to the first dot, and what follows
                the dot (`jpg`, `cls`) has each file's bytes. A sample's files lie side by side.
            storage_options: For fsspec's filesystem.

        Their names and sizes are part of the run's identity, as those of `lines`.

        Raises:
            ConfigError: Likewise.
        """
        return _of_files(urls, lambda files: Samples(files, decode, storage_options), storage_options)

    @staticmethod
    def parquet(
        urls: Sequence[str],
        decode: Callable[[dict[str, Any]], Any] = dict,
        *,
        columns: Sequence[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> Streams:
        """Read the rows of Parquet files, in order; the files are dealt out to the virtual workers. Needs pyarrow.

        Args:
            urls: Paths or fsspec URLs, as many as there are virtual workers at least.
            decode: Makes an example of a row: a dict of plain Python values by column, None where there is none.
            columns: Those that are read; None: all.
            storage_options: For fsspec's filesystem.

        Their names and sizes are part of the run's identity, as those of `lines`.

        Raises:
            ConfigError: Likewise; or pyarrow is not there, or a file has no such column.
        """
        try:
            from elastic.data.parquet_rows import Rows
        except ImportError as missing:
            raise ConfigError(f"Streams.parquet needs pyarrow: {missing}\n  next  pip install pyarrow") from missing
        if columns is not None and (isinstance(columns, str) or not columns):
            raise ConfigError(f"columns={columns!r}; expected a list of columns' names, or None for all")
        return _of_files(urls, lambda files: Rows(files, decode, storage_options, columns), storage_options)

    @staticmethod
    def hugging_face(dataset: Any) -> Streams:
        """Read an `IterableDataset` of Hugging Face's; its shards are dealt out to the virtual workers.

        Args:
            dataset: The whole of it, as `load_dataset(…, streaming=True, split=…)` gives it, with as many shards as
                there are virtual workers at least; also mapped, filtered, or interleaved with others. Where its shards
                are shuffled, they are in another order each time a stream begins again.

        Its number of shards, its split and what it is built by are part of the run's identity.

        Raises:
            ConfigError: It shuffles in a buffer, which a resume would lose; it is one node's part, or no
                `IterableDataset`; or, from the run's beginning, it has too few shards.
        """
        check_dataset(dataset)
        return Streams(lambda worker, workers: part_of(dataset, worker, workers), lambda: identity_of(dataset))

    def data_identity(self) -> Any:
        """Return what the streams are made of: a run refuses to go on by its positions in anything else."""
        if self._identity is not None and self._known is None:
            self._known = self._identity()
        return self._known

    def assign(self, sizes: Sequence[int]) -> None:
        """Divide a step's examples among the virtual workers: `sizes` says how many each of them has."""
        self._edges = [0, *accumulate(sizes)]

    def check(self) -> None:
        """Raise ConfigError unless the first stream goes on from its position: before any read, on a few examples."""
        workers = len(self._edges) - 1
        # Of the others only what they are is looked at, as each is begun: to read some of all of them would cost each
        # worker that joins as many requests as there are virtual workers.
        check_resumes(lambda: self._make(0, workers), 0)

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        """Return the next example of the stream that `index` falls to."""
        step, offset = divmod(index, self._edges[-1])
        worker = bisect_right(self._edges, offset) - 1
        first, end = self._edges[worker : worker + 2]
        number = step * (end - first) + offset - first
        reader = self._readers.get(worker)
        if reader is None or reader.number != number:
            reader = self._readers[worker] = self._reader(worker, number)
        return reader.read()

    def carried(self, worker: int) -> dict[str, np.ndarray[Any, np.dtype[np.float64]]]:
        """Return where this worker's stream stands after the last read, as numbers under a name of its own."""
        reader = self._readers[worker]
        position = json.dumps([reader.number, reader.position()]).encode()
        room = -(-(len(position) + 4) // (_BYTES * _NUMBERS))
        packed = (len(position).to_bytes(4, "little") + position).ljust(room * _BYTES * _NUMBERS, b"\0")
        wide = np.zeros((room * _NUMBERS, 8), dtype=np.uint8)
        wide[:, :_BYTES] = np.frombuffer(packed, dtype=np.uint8).reshape(-1, _BYTES)
        return {f"{_PREFIX} {worker} {room}": wide.view(np.uint64)[:, 0].astype(np.float64)}

    def settle(self, sums: dict[str, Any]) -> None:
        """Take what `carried` gave, on all workers, out of the sums of a step that is exchanged."""
        for name in [name for name in sums if name.startswith(_PREFIX)]:
            worker = int(name.split()[1])
            numbers = np.asarray(sums.pop(name), dtype=np.float64).astype(np.uint64)
            packed = numbers[:, None].view(np.uint8)[:, :_BYTES].tobytes()
            end = 4 + int.from_bytes(packed[:4], "little")
            number, position = json.loads(packed[4:end])
            self._positions[worker] = number, position
            if (reader := self._readers.get(worker)) is not None and reader.number < number:
                del self._readers[worker]  # another worker has this stream by now: what is open here is closed

    def state_dict(self) -> dict[str, Any]:
        """Return the positions after the last step that was exchanged, of all virtual workers, as JSON."""
        return {"positions": json.dumps(sorted(self._positions.items()))}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave, at whatever number of workers."""
        positions = json.loads(state["positions"])
        self._positions = {worker: (number, position) for worker, (number, position) in positions}

    def _reader(self, worker: int, number: int) -> _Reader:
        """Open a stream at its known position. Raises StepError where that is not in front of example `number`."""
        workers = len(self._edges) - 1
        known, position = self._positions.get(worker, (0, None))
        if known != number:
            raise StepError(
                f"stream {worker} is to give its example {number}, and its position is known at {known}\n"
                "  state  the current step is not applied\n"
                "  next   this should not be: please report it"
            )
        return _Reader(lambda: self._make(worker, workers), worker, number, position)


class _Reader:
    """A stream that is open. number: of the example that comes next, counted over all times that it has begun."""

    def __init__(self, make: Callable[[], Any], worker: int, number: int, position: Mapping[str, Any] | None) -> None:
        self._make = make
        self._worker = worker
        self.number = number
        self._turn = 0 if position is None else int(position["turn"])
        self._begin()
        if position is not None:
            self._stream.load_state_dict(position["at"])
            self._iterator = iter(self._stream)

    def read(self) -> Any:
        """Return the next example; a stream that ends begins again. Raises StepError where it gives none."""
        for _ in range(2):
            for example in self._iterator:
                self.number += 1
                return example
            self._turn += 1
            self._begin()
        raise StepError(
            f"stream {self._worker} gives no examples\n"
            "  state  the current step is not applied\n"
            "  next   fewer virtual workers than there are files or shards"
        )

    def position(self) -> dict[str, Any]:
        return {"turn": self._turn, "at": state_of(self._stream, self._worker)}

    def _begin(self) -> None:
        """Make the stream, from its beginning, and tell it for which time."""
        self._stream = self._make()
        check_kind(self._stream, self._worker)
        if hasattr(self._stream, "set_epoch"):
            self._stream.set_epoch(self._turn)
        self._iterator = iter(self._stream)


def _of_files(
    urls: Sequence[str], stream: Callable[[list[str]], Any], storage_options: Mapping[str, Any] | None
) -> Streams:
    """Deal the files out to streams, each of which `stream` makes of some, in order. Raises ConfigError."""
    packed = [url for url in urls if url.endswith(_COMPRESSED)]
    if packed:
        raise ConfigError(
            f"{packed[0]} is compressed, and can only be read from its beginning: a run that goes on would have to "
            "read and pass over all that it has trained on\n"
            "  next  unpack it, or keep many small files"
        )
    files = sorted(urls)

    def make(worker: int, workers: int) -> Any:
        if len(files) < workers:
            raise ConfigError(
                f"{len(files)} files for {workers} virtual workers, of which each reads its own\n"
                f"  next  {workers} files or more, of about equal size"
            )
        return stream(files[worker::workers])

    return Streams(make, lambda: identity_of_files(files, storage_options))
