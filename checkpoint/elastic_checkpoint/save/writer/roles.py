"""The writer processes of a group, one for each rank: each stores its rank's part, and that of rank 0 commits.

    another rank's: Stored | Failed  ->  rank 0's, once all are: count, look again, manifest
                                     ->  all others: Committed | Failed

What arrives is one of these, whole, or whoever said it is hung up on. They are connected to each other (net/peers.py)
and need no rank for this: what is staged on all ranks is committed even if every rank is killed right after. A writer
that ends before it has said its part ends that save, and all others learn of it at once; one that is alive and silent
is named at the deadline. A save that has failed anywhere is given up by all, between two objects.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from elastic_checkpoint.errors import CheckpointError, SaveDropped
from elastic_checkpoint.format.draft import Draft, StoredObject
from elastic_checkpoint.net.codec import Facts, Int, Message, Tagged, as_message, by_word, parse
from elastic_checkpoint.net.errors import ErrorDocument, error_document, error_from
from elastic_checkpoint.net.peers import Client, Server
from elastic_checkpoint.save.commit import commit, is_committed
from elastic_checkpoint.storage import Storage

_SLACK_S = 10.0  # how much longer than rank 0's writer the others wait: it finds out first, and says who is missing
_KEPT = 100  # saves whose end is remembered, for what is said of them too late


class _Object(Facts):
    """A stored object, as StoredObject.document has it."""

    size: Int
    xxh3_128: str
    chunk_bytes: Int
    chunks: list[str]


class Stored(Tagged):
    """This writer's part of the save of that name is stored."""

    save: str
    objects: list[_Object]

    def part(self) -> list[StoredObject]:
        """Return what is stored, as the manifest says it."""
        return [StoredObject(one.size, one.xxh3_128, one.chunk_bytes, tuple(one.chunks)) for one in self.objects]


class Committed(Tagged):
    """All parts are stored, and the save can be loaded."""

    save: str


class Failed(Tagged):
    save: str
    error: ErrorDocument


FROM_OTHERS = by_word(Stored | Failed)
FROM_RANK_0 = by_word(Committed | Failed)


class Role(Protocol):
    """A writer process's part in the saves of its group; each `id` is the name of a save."""

    def staged(self, id: str) -> None:
        """Note that this writer's part is staged: all others are connected, or have gone since."""

    def ended(self, id: str) -> CheckpointError | None:
        """Return why the save has ended without a commit, if it has."""

    def finish(self, storage: Storage, draft: Draft, own: Sequence[StoredObject]) -> None:
        """Return when the save is committed. Raises what it failed of.

        own  the objects of this writer's part, which are stored
        """

    def give_up(self, id: str, error: ErrorDocument) -> None:
        """Tell the others that the save has failed here."""

    def close(self) -> None: ...


class Local:
    """The only writer of its saves."""

    def staged(self, id: str) -> None:
        pass

    def ended(self, id: str) -> CheckpointError | None:
        return None

    def finish(self, storage: Storage, draft: Draft, own: Sequence[StoredObject]) -> None:
        commit(storage, draft, own)

    def give_up(self, id: str, error: ErrorDocument) -> None:
        pass

    def close(self) -> None:
        pass


class Leader:
    """The role of rank 0's writer: gathers the parts of `size` ranks, and commits."""

    def __init__(self, size: int, finish_s: float) -> None:
        """Listen for the others' writers. Raises OSError where no socket can be opened."""
        self._size, self._finish_s = size, finish_s
        self._changed = threading.Condition()
        self._here: dict[int, int] = {}  # who is connected, and which writer of its rank that is, from 1
        self._came: dict[int, int] = {}
        self._gone: dict[int, str] = {}
        self._expected: dict[str, dict[int, int]] = {}  # who was connected when a save was staged
        self._parts: dict[str, dict[int, list[StoredObject]]] = {}
        self._failed: dict[str, CheckpointError] = {}
        self._ended_saves: deque[str] = deque(maxlen=_KEPT)
        self._server = Server(self._hear, self._lose, came=self._welcome)

    @property
    def endpoint(self) -> Message:
        return self._server.endpoint

    def staged(self, id: str) -> None:
        with self._changed:
            self._expected[id] = dict(self._here)

    def ended(self, id: str) -> CheckpointError | None:
        return self._failed.get(id)

    def finish(self, storage: Storage, draft: Draft, own: Sequence[StoredObject]) -> None:
        others = self._gathered(str(draft.id))
        commit(storage, draft, [*own, *others])
        self._tell(Committed(save=str(draft.id)))

    def give_up(self, id: str, error: ErrorDocument) -> None:
        self._tell(Failed(save=id, error=error))

    def close(self) -> None:
        self._server.close()

    def _gathered(self, id: str) -> list[StoredObject]:
        """Return what the other ranks stored, in their order. Raises CheckpointError."""
        with self._changed:
            parts = self._parts.setdefault(id, {})
            expected = self._expected.get(id, {})

            def missing() -> set[int]:
                return set(range(1, self._size)) - parts.keys()

            def lost() -> dict[int, str]:
                """Return who will never say it; a writer that came after the save was staged has nothing of it."""
                return {
                    rank: self._gone.get(rank, "it never came")
                    for rank in missing()
                    if rank not in self._here or self._here[rank] != expected.get(rank)
                }

            self._changed.wait_for(lambda: id in self._failed or not missing() or lost(), self._finish_s)
            if id in self._failed:
                raise self._failed[id]
            if missing():
                raise _lacking(id, missing(), lost(), self._finish_s)
            return [stored for rank in sorted(parts) for stored in parts[rank]]

    def _tell(self, outcome: Committed | Failed) -> None:
        id = outcome.save
        with self._changed:
            self._ended_saves.append(id)
            self._parts.pop(id, None)
            self._failed.pop(id, None)
            self._expected.pop(id, None)
        self._server.send_all(dict.fromkeys(range(1, self._size), as_message(outcome)))

    def _welcome(self, rank: int) -> None:
        with self._changed:
            self._here[rank] = self._came[rank] = self._came.get(rank, 0) + 1
            self._changed.notify_all()

    def _hear(self, rank: int, message: Message) -> None:
        """Take what another rank's writer has said. Raises NotAMessage."""
        said: Stored | Failed = parse(FROM_OTHERS, message)
        part = said.part() if isinstance(said, Stored) else []
        with self._changed:
            if said.save in self._ended_saves:
                return
            if isinstance(said, Failed):
                self._failed.setdefault(said.save, error_from(said.error))
            else:
                self._parts.setdefault(said.save, {})[rank] = part
            self._changed.notify_all()

    def _lose(self, rank: int, why: str) -> None:
        with self._changed:
            self._here.pop(rank, None)
            self._gone[rank] = why
            self._changed.notify_all()


class Follower:
    """The role of another rank's writer: says what it stored to rank 0's, and hears what came of the save."""

    def __init__(
        self,
        endpoint: Message,
        rank: int,
        size: int,
        finish_s: float,
        failed: Callable[[str], None],
        parted: Callable[[], None],
    ) -> None:
        """Connect to rank 0's writer. Raises OSError where it cannot be reached.

        failed  is called with the name of each save that ended without a commit
        parted  when rank 0's writer is gone
        """
        self._rank, self._size, self._finish_s = rank, size, finish_s
        self._call_failed, self._call_parted = failed, parted
        self._changed = threading.Condition()
        self._outcomes: dict[str, Committed | Failed] = {}
        self._gone = ""
        self._client = Client(endpoint, rank, self._hear, self._lose)

    def staged(self, id: str) -> None:
        pass

    def ended(self, id: str) -> CheckpointError | None:
        outcome = self._outcomes.get(id)
        if outcome is None:
            return _lacking(id, {0}, {0: self._gone}, 0) if self._gone else None
        return error_from(outcome.error) if isinstance(outcome, Failed) else None

    def finish(self, storage: Storage, draft: Draft, own: Sequence[StoredObject]) -> None:
        id = str(draft.id)
        objects = [
            _Object(size=one.size, xxh3_128=one.xxh3, chunk_bytes=one.chunk_bytes, chunks=list(one.chunks))
            for one in own
        ]
        self._client.send(as_message(Stored(save=id, objects=objects)))
        with self._changed:
            self._changed.wait_for(lambda: id in self._outcomes or self._gone, self._finish_s + _SLACK_S)
        if id not in self._outcomes and is_committed(storage, draft.id):
            return  # rank 0's writer went before it could say so
        if (error := self.ended(id)) is not None:
            raise error
        if id not in self._outcomes:
            raise _lacking(id, {0}, {}, self._finish_s + _SLACK_S)

    def give_up(self, id: str, error: ErrorDocument) -> None:
        error = msgspec.structs.replace(error, text=f"on rank {self._rank} of {self._size}: {error.text}")
        self._client.send(as_message(Failed(save=id, error=error)))

    def close(self) -> None:
        with self._changed:
            self._gone = self._gone or "this writer process meets others now"
            self._changed.notify_all()
        self._client.close()

    def _hear(self, message: Message) -> None:
        """Take what came of a save. Raises NotAMessage."""
        outcome: Committed | Failed = parse(FROM_RANK_0, message)
        with self._changed:
            self._outcomes[outcome.save] = outcome
            while len(self._outcomes) > _KEPT:
                del self._outcomes[next(iter(self._outcomes))]
            self._changed.notify_all()
        if isinstance(outcome, Failed):
            self._call_failed(outcome.save)

    def _lose(self, why: str) -> None:
        with self._changed:
            self._gone = why
            self._changed.notify_all()
        self._call_parted()


def dropped(step: int, why: str) -> ErrorDocument:
    """Return what is said of a save that was not made, because of when_busy."""
    return error_document(SaveDropped(f"step {step} was not saved: {why}", step=step))


def _lacking(id: str, ranks: set[int], gone: dict[int, str], within_s: float) -> CheckpointError:
    who = sorted(gone or ranks)
    how = f"ended before it was stored ({next(iter(gone.values()))})" if gone else f"did not say within {within_s:g} s"
    which = f"the writer process of rank {who[0]}" if len(who) == 1 else f"those of ranks {', '.join(map(str, who))}"
    state = "nothing of it was committed" if who[0] else "it is not committed, unless rank 0 does so yet"
    return CheckpointError(
        f"{id} was not saved: {which} {how}\n"
        f"  state  {state}; the previous checkpoint stays the newest\n"
        "  next   look at that rank's output; the next save works as soon as all ranks are there"
    )
