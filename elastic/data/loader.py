"""Delivers the examples that were asked for: in order, in batches, each read with its own random stream.

Promises  inside `dataset[i]` Python's, NumPy's and torch's generators are seeded from (seed, epoch, i), in this
          process and in loader processes alike, so an augmentation does not depend on who reads or when; so are
          generators of the dataset's own (own_generators.py).
          Loader processes leave this process's generators untouched; reading in this process does not:
          the caller points them at its own stream after `next`, which costs less than saving them.
          Tensors on the CPU begin where torch's own do, whoever has read them and whoever has made them (aligned.py).
          With "skip", an example that raises is left out, and told; else its error comes out of `next`.
          A wait for loader processes has a deadline, and its error names what was waited for; the caller can
          end it earlier, and loses nothing.
          Processes outlive a change of the sequence of requests: forking them is no part of a recovery. Where the
          script changes the dataset's attributes, they are forked anew, and what they have read ahead is read again:
          what comes out is what reading in this process would give (dataset_changes.py says what is noticed).
Leaves    which examples, and what a request means to a step, to its caller; what is read ahead to ahead.py;
          the children's upbringing to loader_process.py.

A dataset's `__getitems__` is not used: it reads many examples in one call, which then share one random stream.
"""

from __future__ import annotations

import errno
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import TensorDataset, default_collate

from elastic.data.ahead import Ahead
from elastic.data.aligned import aligned
from elastic.data.data_plan import Examples
from elastic.data.dataset_changes import DatasetChanges
from elastic.data.example_digest import quick_digest
from elastic.data.loader_process import READ_AHEAD, LoaderProcesses
from elastic.data.own_generators import OwnGenerators
from elastic.data.placement import move, pin
from elastic.errors import ConfigError, ExampleError, LoaderError, LoaderTimeout
from elastic.events.observer import Observer
from elastic.state.randomness import example_seed, seed_streams

OnBadExample = Literal["raise", "skip"]
_ERROR_CHARS = 500  # of what an example raised, where it is left out
Request = Examples  # a request is some examples, read in this order and collated to one batch


@dataclass(frozen=True)
class LeftOut:
    """An example that raised.

    at     its place in the request
    error  its type and message
    """

    at: int
    epoch: int
    index: int
    error: str


@dataclass(eq=False)
class Loaded:
    """A batch, None if all was left out, and the dataset indices that went into it: int64[n], noted as each is read.

    digest  of a batch that has gone to a GPU, as it was before, see quick_digest; 0: it has not, or it is not known
    """

    batch: Any
    indices: NDArray[np.int64]
    left_out: tuple[LeftOut, ...] = ()
    digest: int = 0


class Loader:
    """Reads requests, here or in `num_workers` forked processes that read ahead.

    dataset      any object with dataset[int]; a TensorDataset is indexed as a whole, in this process, which
                 gives the bytes of stacking its examples at a fraction of the time
    collate_fn   makes a batch of a list of examples; None is torch's default_collate
    seed         the run's
    device       where batches go; None leaves them where they are
    pin_memory   copy through page-locked memory where `device` is a GPU
    on_bad_example  "skip": an example for which the dataset raises is left out. Lack of memory is none of the example's
    timeout_s    how long `next` waits for loader processes; a read in this process cannot be cut short
    interrupt    called every 0.05 s or more often while `next` waits for loader processes. What it raises ends the
                 wait and comes out of `next`; the request stays the next one, for `next` or for `redirect`
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
        on_bad_example: OnBadExample = "raise",
        timeout_s: float = 120.0,
        interrupt: Callable[[], None] | None = None,
    ) -> None:
        if isinstance(num_workers, bool) or not isinstance(num_workers, int) or num_workers < 0:
            raise ConfigError(f"num_workers = {num_workers!r}; expected 0 (read in this process) or more")
        if not timeout_s > 0:
            raise ConfigError(f"timeout_s = {timeout_s!r}; expected a number of seconds above 0")
        self._scripts = dataset, collate_fn
        dataset = observer.dataset(dataset)
        collate_fn = observer.collate(default_collate if collate_fn is None else collate_fn)
        self._reader: _TensorReader | None = None
        self._look_for_tensors(dataset, collate_fn, device)
        self._slow_reader = _Reader(dataset, collate_fn, seed, on_bad_example)
        self._num_workers = 0 if self._reader else num_workers
        self._device = device
        self._pin = pin_memory and device is not None and device.type == "cuda"
        self._timeout_s = timeout_s
        self._interrupt = interrupt
        self._source: Iterator[Request] = iter(())  # where there are no processes
        self._ahead = Ahead(READ_AHEAD * self._num_workers)
        self._processes: LoaderProcesses | None = None
        self._changes = DatasetChanges()  # since they were started
        self._orderly = True  # False in the middle of something, and so for good when an exception ended it there

    def open(self, requests: Iterable[Request]) -> None:
        """Begin with a new sequence of requests, in new loader processes; what was read ahead is dropped.

        requests  drawn in this thread, ahead of `next` where there are loader processes: it must not depend
                  on what the caller does in between
        """
        self.close()
        if self._num_workers:
            self._ahead.redirect(requests)
            self._start()
        else:
            self._source = iter(requests)

    def redirect(self, requests: Iterable[Request]) -> None:
        """Replace the sequence of requests, as `open` does, and keep the processes, with their copy of the dataset.

        What was read ahead and is asked for again is not read again; the rest is dropped unseen, errors included.
        A child in the middle of dataset[i] for such a request finishes that example first. Processes that died, or
        that an unexpected error or a timeout has left in doubt, are replaced.
        """
        if self._processes is None or not self._orderly or not self._processes.alive():
            self.open(requests)
            return
        self._orderly = False
        self._ahead.redirect(requests)
        self._processes.abandon(self._ahead.abandon())
        self._submit(self._processes)
        self._orderly = True

    def next(self) -> Loaded:
        """Return the batch of the next request.

        raises  StopIteration after the last request, ExampleError, LoaderTimeout, LoaderError, and what `interrupt`
                or drawing a request raises
        After an ExampleError the following request is next. After any other error from loader processes this one
        still is; unless `interrupt` raised it, new processes read it.
        """
        loaded = self._receive() if self._num_workers else self._read()
        batch = loaded.batch
        if self._device is not None and not self._is_there:
            if self._device.type != "cpu":
                loaded.digest = quick_digest(batch, 1)
            batch = move(batch, self._device, non_blocking=self._pin)
        return replace(loaded, batch=aligned(batch))

    def close(self) -> None:
        """End the loader processes and forget all requests. Harmless when repeated; `open` begins anew."""
        processes, self._processes = self._processes, None
        self._source = iter(())
        self._ahead = Ahead(READ_AHEAD * self._num_workers)
        if processes is not None:
            processes.end()

    def _look_for_tensors(
        self, dataset: Any, collate_fn: Callable[[list[Any]], Any], device: torch.device | None
    ) -> None:
        """Read whole tensors where that gives the same bytes; note whether they lie on the device already."""
        self._reader = _TensorReader(dataset) if _is_plain(dataset, collate_fn) else None
        self._is_there = self._reader is not None and all(tensor.device == device for tensor in dataset.tensors)

    def _read(self) -> Loaded:
        """Read the next request in this process."""
        if self._reader is not None and not self._reader.is_current():
            self._look_for_tensors(self._slow_reader.dataset, self._slow_reader.collate_fn, self._device)
        request = next(self._source)
        if self._reader is not None:
            indices, batch, left_out = self._reader[request]
        else:
            indices, batch, left_out = self._slow_reader[request]
        return Loaded(pin(batch) if self._pin else batch, indices, left_out)

    def _receive(self) -> Loaded:
        """Return the next batch from the processes, new ones if these are in doubt or the dataset has changed."""
        request = self._ahead.head()
        if request is None:
            raise StopIteration
        processes = self._processes
        if processes is None or not self._orderly:
            processes = self._start()
        elif self._changes.any():
            self._ahead.outdated()
            processes = self._start()
        self._orderly = False
        self._wait(processes, request)
        result = self._ahead.take()
        self._orderly = True
        if isinstance(result, ExampleError):
            raise result
        indices, batch, left_out = result
        return Loaded(batch, indices, tuple(left_out))  # pinning makes a list of it

    def _wait(self, processes: LoaderProcesses, request: Request) -> None:
        """Wait until the head's result is here. Raises LoaderError, LoaderTimeout, and what `interrupt` raises."""
        deadline = time.monotonic() + self._timeout_s
        self._submit(processes)
        while not self._ahead.ready:
            try:
                answer = processes.poll()
            except ChildProcessError as error:
                raise LoaderError(
                    f"loader processes: {error}, while {_named(request)} were waited for\n"
                    f"  state  the current step is not applied\n"
                    f"  next   see what it said above; if it was killed (dmesg), fewer num_workers need less memory"
                ) from error
            if answer is not None:
                ticket, result = answer
                if result is None:
                    self._ahead.dropped(ticket)
                else:
                    self._ahead.arrived(ticket, result)
                self._submit(processes)
            elif time.monotonic() >= deadline:
                raise LoaderTimeout(
                    f"loader processes: nothing from {self._num_workers} in {self._timeout_s:g} s\n"
                    f"  missing  {_named(request)}\n"
                    f"  state    the processes live, in dataset[i] or collate_fn; the current step is not applied\n"
                    "  next     see whether the dataset's storage hangs, and above whether pickling a batch failed",
                    request=request,
                )
            if self._interrupt is not None and not self._ahead.ready:
                self._orderly = True  # nothing is half done here
                self._interrupt()
                self._orderly = False

    def _submit(self, processes: LoaderProcesses) -> None:
        for ticket, request in self._ahead.submissions():
            processes.submit(ticket, request)

    def _start(self) -> LoaderProcesses:
        """Replace the processes by new ones, which read what is due."""
        self._orderly = False
        processes, self._processes = self._processes, None
        if processes is not None:
            processes.end()
        self._ahead.lost()
        self._changes = DatasetChanges(*self._scripts)
        self._processes = LoaderProcesses(
            _Shipping(self._slow_reader), num_workers=self._num_workers, pin_memory=self._pin
        )
        self._submit(self._processes)
        self._orderly = True
        return self._processes


def read_once(
    dataset: Any,
    request: Request,
    *,
    seed: int,
    collate_fn: Callable[[list[Any]], Any] | None,
    to: torch.device,
    on_bad_example: OnBadExample = "raise",
) -> Any:
    """Return the batch of one request, read in this process; None where all of it was left out. Raises ExampleError."""
    reader = _Reader(dataset, collate_fn or default_collate, seed, on_bad_example)
    return aligned(move(reader[request][1], to, non_blocking=False))


_Result = tuple[NDArray[np.int64], Any, tuple[LeftOut, ...]]  # as Loaded; of a type that DataLoader can pin


class _Reader:
    """Reads a request example by example."""

    def __init__(
        self,
        dataset: Any,
        collate_fn: Callable[[list[Any]], Any],
        seed: int,
        on_bad_example: OnBadExample,
    ) -> None:
        self.dataset = dataset
        self.collate_fn = collate_fn
        self.seed = seed
        self._skips = on_bad_example == "skip"
        self._own: OwnGenerators | None = None

    def __getitem__(self, request: Request) -> _Result:
        found = self.read(request, lambda: False)
        assert found is not None
        return found

    def read(self, request: Request, abandoned: Callable[[], bool]) -> _Result | None:
        """Return the request's batch, or None if it is abandoned before its last example is read."""
        if self._own is None:
            self._own = OwnGenerators(self.dataset, self.collate_fn)
        with self._own.put_back():
            return self._read(request, abandoned, self._own)

    def _read(self, request: Request, abandoned: Callable[[], bool], own: OwnGenerators) -> _Result | None:
        """Read the examples one by one and collate them; what raises is left out, or ends it with ExampleError."""
        examples, indices, left_out = [], [], []
        for at, (epoch, index) in enumerate(zip(request.visits.tolist(), request.indices.tolist(), strict=True)):
            if abandoned():
                return None
            try:
                examples.append(self._example(epoch, index, own))
            except Exception as error:
                raised = f"{type(error).__name__}: {error}"
                if self._skips and not _is_the_workers(error):
                    left_out.append(LeftOut(at, epoch, index, raised[:_ERROR_CHARS]))
                    continue
                message = f"dataset[{index}] in epoch {epoch} raised {raised}"
                raise ExampleError(message, epoch=epoch, index=index) from error
            indices.append(index)
        try:  # its random stream, should it want one, goes on from the last example's
            batch = self.collate_fn(examples) if examples else None
        except Exception as error:
            raise ExampleError(f"collate_fn of {_named(request)} raised {type(error).__name__}: {error}") from error
        if examples and batch is None:
            raise ExampleError(
                f"collate_fn of {_named(request)} gave None, and a batch has all of its examples: for those that are "
                'to be\n            left out dataset[i] raises, under data=Data(on_bad_example="skip")'
            )
        return np.array(indices, dtype=np.int64), batch, tuple(left_out)

    def _example(self, epoch: int, index: int, own: OwnGenerators) -> Any:
        # So an augmentation does not depend on who reads, or when.
        value = example_seed(self.seed, epoch, index)
        seed_streams(value, None)
        own.seed(value)
        return self.dataset[index]


def _is_the_workers(error: Exception) -> bool:
    """Tell whether another worker might have read it: memory or descriptors are short here."""
    short = isinstance(error, OSError) and error.errno in (errno.ENOMEM, errno.EMFILE, errno.ENFILE)
    # torch 2.13 says that its CPU's memory is short as a RuntimeError.
    of_torch = isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
    return short or of_torch or isinstance(error, (MemoryError, torch.OutOfMemoryError))


class _Shipping:
    """A reader whose failures travel from a loader process as results, with the traceback as text."""

    def __init__(self, reader: _Reader) -> None:
        self.reader = reader

    def __call__(self, request: Request, abandoned: Callable[[], bool]) -> _Result | ExampleError | None:
        try:
            return self.reader.read(request, abandoned)
        except ExampleError as error:
            frames = "".join(traceback.format_exception(error.__cause__)) if error.__cause__ else ""
            return type(error)(*error.args, epoch=error.epoch, index=error.index, trace=frames)


class _TensorReader:
    """Reads a request from a TensorDataset by indexing its tensors: no random stream is touched."""

    def __init__(self, dataset: TensorDataset) -> None:
        self._dataset = dataset
        self.tensors = dataset.tensors

    def is_current(self) -> bool:
        """Tell whether the script has given the data set no others."""
        return self._dataset.tensors is self.tensors

    def __getitem__(self, request: Request) -> _Result:
        chosen = torch.from_numpy(request.indices)
        return request.indices, [tensor.index_select(0, chosen) for tensor in self.tensors], ()


def _is_plain(dataset: Any, collate_fn: Callable[[list[Any]], Any]) -> bool:
    """Tell whether indexing the tensors gives what reading and collating examples would, memory layout included."""
    return (
        type(dataset) is TensorDataset
        and collate_fn is default_collate
        and all(type(t) is torch.Tensor and t.layout is torch.strided and t.is_contiguous() for t in dataset.tensors)
    )


def _named(request: Request) -> str:
    pairs = list(zip(request.visits.tolist(), request.indices.tolist(), strict=True))
    shown = ", ".join(f"{index} of epoch {epoch}" for epoch, index in pairs[:4])
    return f"{len(pairs)} examples ({shown}{', …' if len(pairs) > 4 else ''})"
