"""The writer process that commits a save whose objects others store, too (save/helping).

    who helps is connected (net/server.py)  ->  each object: offered with its hash, or stored here
      ->  count, look again, manifest, as alone

All hashes of the manifest are of what is staged here. A helper that is silent, gone or of other bytes costs time and
nothing else: this process stores what is missing. It goes on if its own training process, or all helpers, are killed.

Each stores under names of its own, so that an object which two have stored was written once by each, and of a helper
that comes to life after the commit nothing counts. Nor does what is still under way here then: nobody waits for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from elastic_checkpoint.errors import CheckpointError
from elastic_checkpoint.format.draft import Draft, StoredObject
from elastic_checkpoint.net.codec import parse
from elastic_checkpoint.net.framing import Message
from elastic_checkpoint.net.server import Server
from elastic_checkpoint.save.commit import commit, described, found_of
from elastic_checkpoint.save.helping.dealing import COMMITS, Dealing
from elastic_checkpoint.save.helping.messages import AT_ONCE, FROM_HELPER, Declined, Offer, Stored, as_message
from elastic_checkpoint.save.writer.part import Part
from elastic_checkpoint.storage import Storage

_LOOK_S = 1.0


@dataclass(eq=False)
class _Shared:
    """A save that is being stored.

    objects  what each of them is, as far as it was hashed
    spare    keys that may come to hold an object, whoever's counts
    failed   of what, here
    """

    part: Part
    dealing: Dealing
    objects: dict[int, StoredObject] = field(default_factory=dict)
    spare: set[str] = field(default_factory=set)
    failed: Exception | None = None

    @property
    def over(self) -> bool:
        return self.failed is not None or self.dealing.done


class Sharing:
    """A Role (roles.py), of one save after another."""

    def __init__(self, helpers: Sequence[int]) -> None:
        """helpers: the numbers of those who may connect. Raises OSError where no socket can be opened."""
        self._changed = threading.Condition()  # guards everything below
        self._helpers = [*helpers]
        self._in_hand: dict[int, int] = {}  # of each helper that is connected: objects that it was offered
        self._save: _Shared | None = None
        self._server = Server(self._hear, self._lose, came=self._welcome, expected=len(helpers))

    @property
    def endpoint(self) -> Message:
        return self._server.endpoint

    def staged(self, id: str) -> None:
        pass

    def ended(self, id: str) -> CheckpointError | None:
        return None

    def store(self, part: Part) -> list[StoredObject]:
        with self._changed:
            self._save = save = _Shared(part, Dealing(len(part.files), self._helpers))
        save.spare |= part.draft.planned().keys()
        threads = [
            *(
                threading.Thread(target=self._store_own, args=(save,), name=f"checkpoint-object-{n}", daemon=True)
                for n in range(part.at_once)
            ),
            threading.Thread(target=self._offer_all, args=(save,), name="checkpoint-offering", daemon=True),
        ]
        for thread in threads:
            thread.start()
        with self._changed:
            self._changed.wait_for(lambda: save.over)  # ends: this process stores all of it, or fails
            if not save.dealing.done and save.failed is not None:
                self._save = None
                raise save.failed
        self._store_torn(save)
        by = save.dealing.stored
        return [replace(save.objects[index], helper=by[index]) for index in range(len(part.files))]

    def finish(self, storage: Storage, draft: Draft, own: Sequence[StoredObject]) -> dict[int, int]:
        with self._changed:
            save, self._save = self._save, None
        assert save is not None, "what is committed was stored before"
        commit(storage, draft, own, spare=save.spare)
        helped: dict[int, int] = {}
        for stored in own:
            if stored.helper != COMMITS:
                helped[stored.helper] = helped.get(stored.helper, 0) + stored.size
        return helped

    def give_up(self, id: str, error: Message) -> None:
        pass

    def close(self) -> None:
        self._server.close()

    def _store_torn(self, save: _Shared) -> None:
        """What helpers say that they stored, and the storage shows at another size. Raises StorageError."""
        part, by = save.part, save.dealing.stored
        planned = {part.key(index, who): len(part.files[index]) for index, who in by.items() if who != COMMITS}
        found = found_of(part.storage, part.draft, planned) if planned else {}
        for index, who in [*by.items()]:
            if who != COMMITS and found[part.key(index, who)] != len(part.files[index]):
                save.objects[index] = part.write(index)
                by[index] = COMMITS

    # What is stored here

    def _store_own(self, save: _Shared) -> None:
        while (index := self._next_own(save)) is not None:
            try:
                stored = save.part.write(index)
            except Exception as error:  # whatever it is, the save fails of it
                with self._changed:
                    save.failed = save.failed or error
                    self._changed.notify_all()
                return
            with self._changed:
                save.objects[index] = stored
                self._has_stored(save, COMMITS, index)

    def _has_stored(self, save: _Shared, who: int, index: int) -> None:
        """With `_changed` held."""
        if index not in save.dealing.stored:
            save.part.stored(len(save.part.files[index]))
        save.dealing.has_stored(who, index, time.monotonic())
        self._changed.notify_all()

    def _next_own(self, save: _Shared) -> int | None:
        """None: nothing is left to be stored here."""
        dealing = save.dealing
        with self._changed:
            while not save.over and not dealing.is_alone:
                now_s = time.monotonic()
                if (index := dealing.take(COMMITS, now_s)) is not None:
                    return index
                at_s = dealing.overtakes_s()
                self._changed.wait(_LOOK_S if at_s is None else min(_LOOK_S, max(0.0, at_s - now_s)))
            return None

    # What is offered

    def _offer_all(self, save: _Shared) -> None:
        while (offered := self._next_offer(save)) is not None:
            helper, index = offered
            stored = described(save.part.files[index])
            with self._changed:
                save.objects.setdefault(index, stored)
                save.spare.add(save.part.key(index, helper))
            offer = Offer(
                save=save.part.draft.id._asdict(),
                index=save.part.first + index,
                size=stored.size,
                xxh3_128=stored.xxh3,
            )
            self._server.send(helper, as_message(offer))  # or `_lose` hears of it

    def _next_offer(self, save: _Shared) -> tuple[int, int] | None:
        """Who is offered what; None: there is nothing more to be offered."""
        with self._changed:
            while not save.over:
                for helper in sorted(self._in_hand, key=lambda one: self._in_hand[one]):
                    if self._in_hand[helper] >= AT_ONCE:
                        break
                    if (index := save.dealing.take(helper, time.monotonic())) is not None:
                        self._in_hand[helper] += 1
                        return helper, index
                self._changed.wait(_LOOK_S)
            return None

    def _welcome(self, number: int) -> None:
        with self._changed:
            if number in self._helpers:
                self._in_hand[number] = 0
                self._changed.notify_all()

    def _hear(self, number: int, message: Message) -> None:
        """Raises NotAMessage."""
        said: Stored | Declined = parse(FROM_HELPER, message)
        with self._changed:
            save = self._save
            if number not in self._in_hand:
                return
            self._in_hand[number] -= 1
            if save is not None and said.save == save.part.name and save.dealing.is_at(number, said.index):
                if isinstance(said, Stored):
                    self._has_stored(save, number, said.index)
                else:
                    save.dealing.decline(number, said.index)
            self._changed.notify_all()

    def _lose(self, number: int, why: str) -> None:
        with self._changed:
            if self._in_hand.pop(number, None) is not None and self._save is not None:
                self._save.dealing.lose(number)
            self._changed.notify_all()
