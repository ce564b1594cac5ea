"""torch's DataLoader, whose waits for its processes end: with a batch, or with an error that says why there is none.

Promises  a process that died, before a wait or during one, ends the wait at once with LoaderError, also where it died
          in the midst of handing a batch over. It is told nowhere else: DataLoader's own way is a RuntimeError in
          whatever line the script is at, an optimizer's step included.
          A process that is stuck ends it at the deadline, with LoaderTimeout.
          Whoever iterates again after that, or after a death that no wait has met, has new processes, which read on.
Leaves    all else to torch. Which examples are read, and what is trained on, to elastic_loader.py.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter, _MultiProcessingDataLoaderIter

from elastic.data.loader_process import (
    DYING_S,
    JOIN_S,
    WorkerInit,
    deaths,
    ended_by_deaths,
    leave_deaths_to_the_waits,
)
from elastic.errors import LoaderError, LoaderTimeout

_POLL_S = 1.0  # how late the death of one that ends with status 0 is noticed: the kernel's signal is no error then
_STATE = "  state  a resume, and the next iteration, go on behind the last batch that was trained on\n"


class TorchLoader(DataLoader[Any]):
    """A DataLoader whose waits for its processes end: with a batch, or with an error that says why there is none.

    awaited  tells the request that is next
    """

    def __init__(self, dataset: Any, awaited: Callable[[], Any], **options: Any) -> None:
        self.awaited = awaited
        super().__init__(dataset, **options)

    def __iter__(self) -> _BaseDataLoaderIter:
        persisting = self._iterator
        if isinstance(persisting, _Processes) and not persisting.live():
            persisting.end()
            self._iterator = None
        return super().__iter__()

    def _get_iterator(self) -> _BaseDataLoaderIter:
        return _Processes(self) if self.num_workers else super()._get_iterator()


class _Processes(_MultiProcessingDataLoaderIter):
    def __init__(self, loader: TorchLoader) -> None:
        own, loader.worker_init_fn = loader.worker_init_fn, WorkerInit(loader.worker_init_fn)
        try:
            super().__init__(loader)
        finally:
            loader.worker_init_fn = own
        self._awaited = loader.awaited
        leave_deaths_to_the_waits(self)

    def live(self) -> bool:
        return not deaths(self._workers)

    def end(self) -> None:
        """Kill the processes at once, not in torch's way, which passes through locks that a dead one may have held."""
        self._shutdown = True
        if self._pin_memory:
            self._pin_memory_thread_done_event.set()
        for process in self._workers:
            process.kill()
        for process, requests in zip(self._workers, self._index_queues, strict=True):
            process.join(JOIN_S)
            requests.cancel_join_thread()
            requests.close()

    def _get_data(self) -> Any:
        """Wait as torch does, for a batch or for persisting processes to begin. Raises LoaderError, LoaderTimeout."""
        try:
            with ended_by_deaths(self, self._workers):
                return self._wait()
        except Exception as error:  # half a message breaks in any way
            dead = deaths(self._workers, within_s=0 if isinstance(error, LoaderTimeout) else DYING_S)
            self.end()  # a message is lost, so what would come next is in doubt
            if not dead:
                raise
            raise LoaderError(
                f"loader processes: {dead}\n{_STATE}"
                "  next   see what it said above; if it was killed (dmesg), fewer num_workers need less memory"
            ) from error

    def _wait(self) -> Any:
        """Wait for a batch. Raises LoaderTimeout at the deadline."""
        until_s = time.monotonic() + self._timeout if self._timeout else math.inf
        while True:
            found, data = self._try_get_data(_POLL_S)  # type: ignore[no-untyped-call]
            if found:
                return data
            if self._pin_memory and not self._pin_memory_thread.is_alive():
                raise RuntimeError("DataLoader's thread that pins memory ended unexpectedly")
            if time.monotonic() >= until_s:
                raise LoaderTimeout(
                    f"the loader processes gave no batch within timeout = {self._timeout:g} s\n{_STATE}"
                    "  next   look at what dataset[i] waits for; timeout= for reads that may take longer",
                    request=self._awaited(),
                )
