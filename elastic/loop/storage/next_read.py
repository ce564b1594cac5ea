"""What the first step behind a save has read: whoever goes on from that save reads it again, and finds out whether the
data, its transforms and the collate function are those that the run had.

    data/c00000007/s000001200-<nonce>/note.json   {"step": 1200, "digest": …, "shares": 8, "batches": 8}

Each share's batch is digested as the loop's body gets it, and the digests travel with the step's sums, so that they are
the same at any world size (in fast mode, at the same one). The coordinator writes them beside the commit once both are
there, in a thread of its own. A run that is lost before has nothing to compare.

Behind the last step of a run none is read. What that one has read lies in its checkpoint, as `meta["last_read"]`: where
the run is made longer, it is read once more, and told of where it is another. It may be so honestly: between two epochs
the script may have changed what its data set gives.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import elastic_checkpoint
from elastic.errors import IdentityMismatch
from elastic.state.identity import CONTENT

_CLOSE_S = 5.0  # for a last word; a run whose last one is missing has nothing to compare


@dataclass(frozen=True)
class NextRead:
    """
    digest   of all batches of the step, a sum of 40 bits of each
    shares   that they are of
    batches  into which these were put
    """

    step: int
    digest: int
    shares: int
    batches: int

    @classmethod
    def of(cls, note: object) -> NextRead | None:
        """As it lies beside a commit; None: it is none."""
        if not isinstance(note, dict) or note.keys() != cls.__annotations__.keys():
            return None
        return cls(**note) if all(type(value) is int for value in note.values()) else None

    def check(self, found: NextRead, *, where: str) -> None:
        """Whether that is the same, where it is of the same step, cut alike. Raises IdentityMismatch."""
        if found == self or (found.step, found.shares, found.batches) != (self.step, self.shares, self.batches):
            return
        raise IdentityMismatch(
            f"step {self.step} reads other values than it did before the run was ended: digest {found.digest:x} here, "
            f"{self.digest:x} there\n"
            "  found  the same examples, by number, in the same order: the data itself, its transforms, or the collate "
            "function\n         give something else than when this step was read for the first time\n"
            f"  state  nothing was applied; what is saved in {where} is as it was\n"
            f"  next   bring back what was changed, or start under a new URL; data that is meant to be another: "
            f"Run(accept=[{CONTENT!r}]),\n         `elastic run --accept={CONTENT}`, or ELASTIC_ACCEPT={CONTENT} in "
            "the environment",
            {CONTENT: (f"{found.digest:x}", f"{self.digest:x}")},
        )


class Notes:
    """Of one coordinator. url, options: of the run's storage"""

    def __init__(self, url: str, options: Mapping[str, Any] | None) -> None:
        self._url = url
        self._options = dict(options) if options else None
        self._commit: elastic_checkpoint.Commit | None = None
        self.newest: NextRead | None = None
        self._lock = threading.Lock()
        self._waiting: tuple[elastic_checkpoint.Commit, NextRead] | None = None
        self._thread: threading.Thread | None = None

    def committed(self, commit: elastic_checkpoint.Commit) -> None:
        """The newest one."""
        self._commit = commit
        self._match()

    def has_read(self, read: NextRead) -> None:
        """The step that was exchanged last."""
        self.newest = read
        self._match()

    def close(self) -> None:
        thread = self._thread
        if thread is not None:
            thread.join(_CLOSE_S)

    def _match(self) -> None:
        commit, read = self._commit, self.newest
        if commit is None or read is None or commit.step != read.step:
            return
        self._commit = None
        with self._lock:
            begins = self._thread is None
            self._waiting = commit, read  # a storage that is slower than saves come gets the newest
            if begins:
                self._thread = threading.Thread(target=self._write, name="elastic-note", daemon=True)
                self._thread.start()

    def _write(self) -> None:
        while True:
            with self._lock:
                waiting, self._waiting = self._waiting, None
                if waiting is None:
                    self._thread = None
                    return
            commit, read = waiting
            with suppress(elastic_checkpoint.CheckpointError), self._storage() as storage:  # else it is missing
                storage.note(commit, asdict(read))

    def _storage(self) -> elastic_checkpoint.Checkpointer:
        return elastic_checkpoint.Checkpointer(self._url, storage_options=self._options)


def reads_otherwise(step: int) -> str:
    """What is said of the last step of a run that is made longer."""
    return (
        f"step {step}, read once more, gives other values than when the run ended there\n"
        "  found  the data itself, its transforms, the collate function, or what these depend on (the number of an "
        "epoch)\n         is not what it was\n"
        "  next   nothing, where the script gives its data set another face in each epoch; else bring back what was\n"
        "         changed, or start under a new URL"
    )
