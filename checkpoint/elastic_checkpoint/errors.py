"""What can go wrong with a checkpoint, as one small tree. Each line says what the caller does.

    CheckpointError
      NoCheckpoint        nothing whole was ever committed here: start from the beginning, or look at the reasons
      CorruptCheckpoint   one checkpoint is damaged: `read` takes the next older one; a person looks at the storage
      ClaimHeld           a live job writes to this URL: stop, use another URL, or insist with take_over=True
      ClaimLost           a newer claim exists: stop saving, this job was replaced
      RunMovedOn          another job went on with the run since this one loaded: stop, or load again
      StateMismatch       the checkpoint is of another model or optimizer: fix the named entries; nothing was changed
      RanksDiffer         what counts as one value for all ranks is not: nothing was saved; name it (per_rank=)
      UnsupportedValue    the state holds something that cannot be saved exactly: change it at the named path
      StorageError        the storage failed for good or for too long: the save is lost, training may go on
      WriterDied          the process that wrote was killed: the save is lost, the next one starts another process
      SaveDropped         another save was under way or took this one's place, as when_busy says: nothing is wrong
        StateChanged      what was promised to be steady was written to before it was copied: save again, without that

Facts are fields too. Messages never hold credentials: everything that names a URL went through `storage.redact`.
"""

from __future__ import annotations


class CheckpointError(Exception):
    """The base of everything that this package raises on purpose."""


class NoCheckpoint(CheckpointError):
    """No whole checkpoint is to be had.

    Attributes:
        rejected: Commit name -> why it was passed over; empty where there was none at all.
    """

    def __init__(self, message: str, rejected: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.rejected = rejected or {}


class CorruptCheckpoint(CheckpointError):
    """Bytes in storage are not those that were written, or were never a checkpoint of ours.

    Attributes:
        commit: Name of the commit, or None where a value is decoded outside of one.
        key: The object that failed, or None.
        tensors: Names of the tensors that lie (partly) in the damaged bytes, where that is known.
    """

    def __init__(
        self, message: str, *, commit: str | None = None, key: str | None = None, tensors: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message)
        self.commit = commit
        self.key = key
        self.tensors = tensors


class ClaimHeld(CheckpointError):
    """A job that answers holds the claim of this URL.

    Attributes:
        claim: Its number.
        host: The holder's host name.
        pid: The holder's process id on that host.
        since: When the claim was taken, in seconds of the Unix clock.
        job: The name that the holder gave itself, or None.
    """

    def __init__(self, message: str, *, claim: int, host: str, pid: int, since: float, job: str | None) -> None:
        super().__init__(message)
        self.claim = claim
        self.host = host
        self.pid = pid
        self.since = since
        self.job = job


class ClaimLost(CheckpointError):
    """A newer claim was taken; nothing of this job is committed any more.

    Attributes:
        ours: The number of our claim.
        newest: That of the newest one.
    """

    def __init__(self, message: str, *, ours: int, newest: int) -> None:
        super().__init__(message)
        self.ours = ours
        self.newest = newest


class RunMovedOn(CheckpointError):
    """The run's newest checkpoint is not the one that this job goes on from, which saving would supersede.

    Attributes:
        loaded: Name of the commit that was loaded; None: there was none.
        newest: Name of the newest commit; None: there is none.
    """

    def __init__(self, message: str, *, loaded: str | None, newest: str | None) -> None:
        super().__init__(message)
        self.loaded = loaded
        self.newest = newest


class StateMismatch(CheckpointError):
    """The checkpoint and the state to be filled differ. One error lists everything.

    Attributes:
        missing: Entries of the state that the checkpoint lacks.
        unexpected: Entries of the checkpoint that the state lacks.
        misshaped: Entry -> "saved ..., here ...": another shape, dtype or kind.
    """

    def __init__(self, message: str, *, missing: list[str], unexpected: list[str], misshaped: dict[str, str]) -> None:
        super().__init__(message)
        self.missing = missing
        self.unexpected = unexpected
        self.misshaped = misshaped


class RanksDiffer(CheckpointError):
    """A state that several ranks save together differs between them, in what is not marked as differing.

    Attributes:
        entries: Path -> the ranks whose value is another one than rank 0's.
    """

    def __init__(self, message: str, *, entries: dict[str, list[int]]) -> None:
        super().__init__(message)
        self.entries = entries


class UnsupportedValue(CheckpointError):
    """The state holds a value that has no exact, pickle-free form.

    Attributes:
        path: Where it lies, such as `optimizer.param_groups[0].foo`.
        type: Its type, with the module.
    """

    def __init__(self, message: str, *, path: str, type: str) -> None:
        super().__init__(message)
        self.path = path
        self.type = type


class StorageError(CheckpointError):
    """An operation of the storage failed: at once where trying again cannot help, else after its deadline.

    Attributes:
        operation: Its name, such as "put" or "list".
        key: The object, relative to the run's URL.
        attempts: How often it was tried.
        hopeless: Whether neither waiting nor anybody's help makes it work: no object of this storage has such a name.
    """

    def __init__(self, message: str, *, operation: str, key: str, attempts: int, hopeless: bool = False) -> None:
        super().__init__(message)
        self.operation = operation
        self.key = key
        self.attempts = attempts
        self.hopeless = hopeless


class TornManifest(StorageError):
    """The storage holds other bytes under a manifest's name: its write ended halfway, and nothing is committed.

    This name is of no use any more; the same state can be saved again, under another one.
    """


class WriterDied(CheckpointError):
    """The process that wrote a save in the background ended before it was committed."""


class SaveDropped(CheckpointError):
    """A save in the background was not made: saves are due faster than they can be written, or its job has gone on.

    It has gone on under another claim meanwhile (`Checkpointer.succeed`, or an earlier step that another thread saved).

    Attributes:
        step: The step that it would have been of.
    """

    def __init__(self, message: str, *, step: int) -> None:
        super().__init__(message)
        self.step = step


class StateChanged(SaveDropped):
    """Tensors that were promised to be steady (`Checkpointer.save`) were written to before they were copied.

    Nothing of the save was committed.

    Attributes:
        tensors: Their names.
    """

    def __init__(self, message: str, *, step: int, tensors: tuple[str, ...]) -> None:
        super().__init__(message, step=step)
        self.tensors = tensors
