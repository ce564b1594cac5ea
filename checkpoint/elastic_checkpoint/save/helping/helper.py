"""A process that holds what another one saves, and stores parts of it: in threads, from its live tensors.

    offered: name, size, hash  ->  packed into a buffer  ->  has it that hash?  ->  stored under a name of its own, and
      said  |  declined

What is stored was hashed where it lies, so a state that is another one, or that changes meanwhile, puts nothing wrong
into the save. It commits nothing, and holds no claim. What fails here is declined, and who commits stores it itself.
"""

from __future__ import annotations

import mmap
import os
import queue
import threading
from collections.abc import Callable
from typing import Any

from elastic_checkpoint.errors import CheckpointError
from elastic_checkpoint.format.document import Tree
from elastic_checkpoint.format.hashing import xxh3
from elastic_checkpoint.format.shards import plan_shards
from elastic_checkpoint.format.tensors import pack
from elastic_checkpoint.format.tree import encode
from elastic_checkpoint.net.client import Client
from elastic_checkpoint.net.codec import made, parse
from elastic_checkpoint.net.framing import Message
from elastic_checkpoint.runs.claims import Claim, read_claim
from elastic_checkpoint.save.helping.messages import AT_ONCE, TO_HELPER, Declined, Invitation, Offer, Stored, as_message
from elastic_checkpoint.storage import Scrubber, Storage, open_storage

_RETRY_S = 10.0  # then who commits does it


class Helper:
    """Stores parts of what another process saves, which holds the same state and has invited this one
    (`Checkpointer.invite`): from the start of this object on, until `close`, or until that process's writer is gone."""

    def __init__(
        self,
        url: str | os.PathLike[str],
        storage_options: dict[str, Any] | None,
        invitation: Message,
        number: int,
        state: Tree,
        *,
        log: Callable[[str], None],
    ) -> None:
        """Returns at once; the rest is done in threads.

        Args:
            url: As the other process has it.
            storage_options: For fsspec's filesystem.
            invitation: What `invite` has returned there.
            number: This helper's, as it was said there.
            state: As it is given to `save` there. It is asked for its tensors before this returns, and they are read
                until `close`: what changes meanwhile is not stored.
            log: Gets one line where this process cannot help.

        Raises:
            UnsupportedValue: Something in the state cannot be saved exactly.
            ValueError: This is no invitation.
        """
        invited = made(Invitation, invitation)
        _, self._tensors = encode(state)
        self._shards = plan_shards(self._tensors, invited.shard_bytes)
        self._log = log
        self._scrub = Scrubber(os.fspath(url), storage_options or {})
        self._number = number
        self._offers: queue.SimpleQueue[Offer | None] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._thread = threading.Thread(
            target=self._help, args=(url, storage_options, invited), name="checkpoint-helper", daemon=True
        )
        self._thread.start()

    def close(self, within_s: float = 0.0) -> None:
        """Begins to store nothing more. Idempotent.

        Args:
            within_s: So long what is under way is waited for, in seconds; then it is left to its threads.
        """
        self._end()
        self._thread.join(within_s)

    def _end(self, why: str = "") -> None:
        self._ended.set()
        for _ in range(AT_ONCE):
            self._offers.put(None)

    def _help(self, url: str | os.PathLike[str], storage_options: dict[str, Any] | None, invited: Invitation) -> None:
        try:
            storage = open_storage(url, storage_options, retry_s=_RETRY_S)
            claim = Claim.from_document(invited.claim)
            if read_claim(storage, claim.number, lambda line: None) != claim:
                raise CheckpointError(f"{storage.url} does not show claim {claim.number}, so it is not shared")
            client = Client(invited.endpoint, self._number, self._hear, self._end)
        except Exception as error:  # whatever it is, the save is made without this helper
            self._log(f"this process does not help with the save: {self._scrub(str(error))}")
            return
        at_it = [
            threading.Thread(target=self._store_all, args=(storage, client), name=f"checkpoint-helper-{n}", daemon=True)
            for n in range(AT_ONCE)
        ]
        for one in at_it:
            one.start()
        self._ended.wait()
        client.close()
        for one in at_it:
            one.join()
        storage.close()

    def _hear(self, message: Message) -> None:
        """Raises NotAMessage."""
        offer: Offer = parse(TO_HELPER, message)
        assert offer.id
        self._offers.put(offer)

    def _store_all(self, storage: Storage, client: Client) -> None:
        buffer = mmap.mmap(-1, max((shard.size for shard in self._shards), default=1))
        while (offer := self._offers.get()) is not None and not self._ended.is_set():
            name, index = str(offer.id), offer.index
            why = self._why_not_stored(storage, offer, buffer)
            said = Stored(save=name, index=index) if why is None else Declined(save=name, index=index, why=why)
            client.send(as_message(said))

    def _why_not_stored(self, storage: Storage, offer: Offer, buffer: mmap.mmap) -> str | None:
        index = offer.index
        if not 0 <= index < len(self._shards) or self._shards[index].size != offer.size:
            return "it has another plan of the state"
        try:
            file = pack(self._shards[index], self._tensors, buffer)
            if xxh3(file) != offer.xxh3_128:
                return "it holds other bytes"
            if self._ended.is_set():
                return "it has ended"
            storage.put(offer.id.shard_key(index, self._number), file)
        except Exception as error:  # whatever it is, who commits stores it
            return self._scrub(f"{type(error).__name__}: {error}")
        return None
