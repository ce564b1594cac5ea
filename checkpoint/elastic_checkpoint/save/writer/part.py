"""What one writer process stores of a save: all objects of it, or its rank's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass

from elastic_checkpoint.errors import CheckpointError
from elastic_checkpoint.format.draft import Draft, StoredObject
from elastic_checkpoint.save.commit import write_object
from elastic_checkpoint.storage import Storage


@dataclass(frozen=True)
class Part:
    """
    files    its objects' bytes
    first    the number of the first of them in the save
    at_once  how many may be on their way to the storage at the same time
    stored   is called with the bytes of each that is stored, in any thread
    """

    storage: Storage
    draft: Draft
    files: Sequence[memoryview]
    first: int
    at_once: int
    stored: Callable[[int], None]

    @property
    def name(self) -> str:
        return str(self.draft.id)

    def write(self, index: int) -> StoredObject:
        """Stores the file of this index. Raises StorageError."""
        return write_object(self.storage, self.draft.id, self.first + index, self.files[index])


class AllHere(ABC):
    """Stores all of a part from this process."""

    @abstractmethod
    def ended(self, id: str) -> CheckpointError | None:
        """Why the save has ended without a commit, if it has."""

    def store(self, part: Part) -> list[StoredObject]:
        """Raises what the first of them failed of, or what the save has ended of elsewhere."""

        def write(index: int) -> StoredObject:
            if (ended := self.ended(part.name)) is not None:
                raise ended
            stored = part.write(index)
            part.stored(stored.size)
            return stored

        with ThreadPoolExecutor(part.at_once, thread_name_prefix="checkpoint-object") as pool:
            jobs = [pool.submit(write, index) for index in range(len(part.files))]
            wait(jobs, return_when=FIRST_EXCEPTION)
            pool.shutdown(wait=True, cancel_futures=True)
        failed = next((job.exception() for job in jobs if not job.cancelled() and job.exception()), None)
        if failed is not None:
            raise failed
        return [job.result() for job in jobs]
