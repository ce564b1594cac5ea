"""Delivers the examples that were asked for: in order, in batches, each read with its own random stream.

Promises  inside `dataset[i]` Python's, NumPy's and torch's generators are seeded from (seed, epoch, i), in this
          process and in loader processes alike, so an augmentation does not depend on who reads or when.
          Loader processes leave this process's generators untouched; reading in this process does not:
          the caller points them at its own stream after `next`, which costs less than saving them.
          A wait for loader processes has a deadline, and its error names what was waited for.
Leaves    which examples, and what a request means to a step, to its caller; the children's upbringing
          to loader_process.py.

A dataset's `__getitems__` is not used: it reads many examples in one call, which then share one random stream.
"""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import TensorDataset, default_collate

from elastic.data.loader_process import LoaderProcesses
from elastic.data.placement import move, pin
from elastic.data.plan import Examples
from elastic.errors import ConfigError, ElasticError
from elastic.observe.observer import Observer
from elastic.state.randomness import example_seed, seed_streams

Request = Examples  # a request is some examples, read in this order and collated to one batch


class ExampleError(ElasticError, RuntimeError):
    """The dataset or the collate function raised. Fix it, or the example; the message ends with its traceback.

    epoch, index  the example, or None where the collate function failed
    """

    def __init__(self, message: str, *, epoch: int | None = None, index: int | None = None) -> None:
        super().__init__(message)
        self.epoch = epoch
        self.index = index


class LoaderError(ElasticError, RuntimeError):
    """A loader process died. The worker cannot go on; restart it, and look at the machine's memory."""


class LoaderTimeout(ElasticError, TimeoutError):
    """No batch came from the loader processes by the deadline.

    request  what was waited for
    """

    def __init__(self, message: str, *, request: Request) -> None:
        super().__init__(message)
        self.request = request


@dataclass(frozen=True, eq=False)
class Loaded:
    """A batch, and the dataset indices that went into it: int64[n], noted as each was read."""

    batch: Any
    indices: NDArray[np.int64]


class Loader:
    """Reads requests, here or in `num_workers` forked processes that read ahead.

    dataset      any object with dataset[int]; a TensorDataset is indexed as a whole, in this process, which
                 gives the bytes of stacking its examples at a fraction of the time
    collate_fn   makes a batch of a list of examples; None is torch's default_collate
    seed         the run's
    device       where batches go; None leaves them where they are
    pin_memory   copy through page-locked memory where `device` is a GPU
    timeout_s    how long `next` waits for loader processes; a read in this process cannot be cut short
    """

    def __init__(
        self,
        dataset: Any,
        *,
        seed: int,
        observer: Observer,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
        device: torch.device | None = None,
        pin_memory: bool = False,
        timeout_s: float = 120.0,
    ) -> None:
        if isinstance(num_workers, bool) or not isinstance(num_workers, int) or num_workers < 0:
            raise ConfigError(f"num_workers = {num_workers!r}; expected 0 (read in this process) or more")
        if not timeout_s > 0:
            raise ConfigError(f"timeout_s = {timeout_s!r}; expected a number of seconds above 0")
        dataset = observer.dataset(dataset)
        collate_fn = observer.collate(default_collate if collate_fn is None else collate_fn)
        self._reader = _TensorReader(dataset) if _is_plain(dataset, collate_fn) else None
        self._slow_reader = _Reader(dataset, collate_fn, seed)
        self._num_workers = 0 if self._reader else num_workers
        self._device = device
        self._pin = pin_memory and device is not None and device.type == "cuda"
        self._timeout_s = timeout_s
        self._source: Iterator[Request] = iter(())
        self._processes: LoaderProcesses | None = None
        self._ahead: deque[Request] = deque()

    def open(self, requests: Iterable[Request]) -> None:
        """Begin with a new sequence of requests; what was read ahead for the old one is dropped.

        requests  drawn in this thread, ahead of `next` where there are loader processes: it must not depend
                  on what the caller does in between
        """
        self.close()
        self._source = iter(requests)
        if self._num_workers:
            self._processes = LoaderProcesses(
                _Shipping(self._slow_reader), self._noted(), num_workers=self._num_workers, pin_memory=self._pin
            )

    def next(self) -> Loaded:
        """The batch of the next request.

        raises  StopIteration after the last request, ExampleError, LoaderTimeout, LoaderError
        """
        loaded = self._receive() if self._num_workers else self._read()
        if self._device is None:
            return loaded
        return Loaded(move(loaded.batch, self._device, non_blocking=self._pin), loaded.indices)

    def close(self) -> None:
        """End the loader processes and forget all requests. Harmless when repeated; `open` begins anew."""
        processes, self._processes = self._processes, None
        self._source = iter(())
        self._ahead.clear()
        if processes is not None:
            processes.end()

    def _read(self) -> Loaded:
        indices, batch = (self._reader or self._slow_reader)[next(self._source)]
        return Loaded(pin(batch) if self._pin else batch, indices)

    def _receive(self) -> Loaded:
        if self._processes is None:
            raise StopIteration
        try:
            result = self._processes.receive(self._timeout_s)
        except ChildProcessError as error:
            raise LoaderError(
                f"loader processes: {error}, while {_named(self._ahead[0])} were waited for\n"
                f"  state  the step in hand is not applied\n"
                f"  next   look for the kernel's out-of-memory killer (dmesg); fewer num_workers need less memory"
            ) from error
        except TimeoutError as error:
            raise LoaderTimeout(
                f"loader processes: {error}\n"
                f"  missing  {_named(self._ahead[0])}\n"
                f"  state    the processes live, in dataset[i] or collate_fn; the step in hand is not applied\n"
                f"  next     see whether the dataset's storage hangs, and above whether a batch could not be pickled",
                request=self._ahead[0],
            ) from error
        self._ahead.popleft()
        if isinstance(result, ExampleError):
            raise result
        indices, batch = result
        return Loaded(batch, indices)

    def _noted(self) -> Iterator[Request]:
        """The requests, each noted as it goes to a loader process."""
        for request in self._source:
            self._ahead.append(request)
            yield request


class _Reader:
    """Reads a request example by example."""

    def __init__(self, dataset: Any, collate_fn: Callable[[list[Any]], Any], seed: int) -> None:
        self.dataset = dataset
        self.collate_fn = collate_fn
        self.seed = seed

    def __getitem__(self, request: Request) -> tuple[NDArray[np.int64], Any]:
        examples, indices = [], []
        for epoch, index in zip(request.epochs.tolist(), request.indices.tolist(), strict=True):
            seed_streams(example_seed(self.seed, epoch, index), None)
            try:
                examples.append(self.dataset[index])
            except Exception as error:
                message = f"dataset[{index}] in epoch {epoch} raised {type(error).__name__}: {error}"
                raise ExampleError(message, epoch=epoch, index=index) from error
            indices.append(index)
        try:  # its random stream, should it want one, goes on from the last example's
            return np.array(indices, dtype=np.int64), self.collate_fn(examples)
        except Exception as error:
            raise ExampleError(f"collate_fn of {_named(request)} raised {type(error).__name__}: {error}") from error


class _Shipping:
    """A reader whose failures travel from a loader process as results, with the traceback as text."""

    def __init__(self, reader: _Reader) -> None:
        self.reader = reader

    def __getitem__(self, request: Request) -> tuple[NDArray[np.int64], Any] | ExampleError:
        try:
            return self.reader[request]
        except ExampleError as error:
            frames = "".join(traceback.format_exception(error.__cause__)) if error.__cause__ else ""
            return ExampleError(f"{error}\n\nIn a loader process:\n{frames}", epoch=error.epoch, index=error.index)


class _TensorReader:
    """Reads a request from a TensorDataset by indexing its tensors: no random stream is touched."""

    def __init__(self, dataset: TensorDataset) -> None:
        self.tensors = dataset.tensors

    def __getitem__(self, request: Request) -> tuple[NDArray[np.int64], list[torch.Tensor]]:
        chosen = torch.from_numpy(request.indices)
        return request.indices, [tensor.index_select(0, chosen) for tensor in self.tensors]


def _is_plain(dataset: Any, collate_fn: Callable[[list[Any]], Any]) -> bool:
    """Whether indexing the tensors gives what reading and collating examples would, memory layout included."""
    return (
        type(dataset) is TensorDataset
        and collate_fn is default_collate
        and all(type(t) is torch.Tensor and t.layout is torch.strided and t.is_contiguous() for t in dataset.tensors)
    )


def _named(request: Request) -> str:
    pairs = list(zip(request.epochs.tolist(), request.indices.tolist(), strict=True))
    shown = ", ".join(f"{index} of epoch {epoch}" for epoch, index in pairs[:4])
    return f"{len(pairs)} examples ({shown}{', …' if len(pairs) > 4 else ''})"
