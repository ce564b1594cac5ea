"""A round of torch's rendezvous: it is waited for in a thread, and those who wait are told who is refused.

Of torch 2.13: the pickled state that `participants` reads, for an error's text, is not documented.
"""

from __future__ import annotations

import contextlib
import pickle
import threading
import time
from collections.abc import Callable
from typing import Any

from torch.distributed import DistError, DistStoreError
from torch.distributed.elastic.rendezvous import RendezvousInfo

from elastic_checkpoint.net.transport import ANOTHER, SAME_FOR_ALL

_REFUSED_BYTES_MAX = 64


class Refusals:
    """Those who wait are told who was refused, by a word in the store that anybody may have written."""

    def __init__(self, store: Any, key: str, say: Callable[[str], None]) -> None:
        self._store, self._key, self._say = store, key, say
        self._reported = self._newest()

    def tell(self) -> None:
        """Of each once, and not of those before this node came."""
        where = self._newest()
        if where != self._reported:
            self._reported = where
            self._say(
                f"a node at {where.decode(errors='replace')!r} was refused: {ANOTHER}\n"
                f"  state  this one goes on waiting for the others\n  next   {SAME_FOR_ALL}"
            )

    def _newest(self) -> bytes:
        return bytes(self._store.get(self._key)[:_REFUSED_BYTES_MAX]) if self._store.check([self._key]) else b""

    def leave(self, address: str) -> None:
        with contextlib.suppress(DistError):
            self._store.set(self._key, address)


class Round:
    """Waits for a round of the rendezvous in a thread, so that a hub that is published meanwhile is found."""

    def __init__(self, wait: Callable[[], RendezvousInfo]) -> None:
        self._wait = wait
        self.info: RendezvousInfo | None = None
        self.error: Exception | None = None
        self.begun = False
        self._completed_s = 0.0

    def begin(self) -> None:
        """Once more, too: this node leaves the round before, and those who are left meet without who is lost."""
        self.begun, self.info, self.error = True, None, None
        threading.Thread(target=self._run, name="elastic-rendezvous", daemon=True).start()

    def is_lost(self, within_s: float) -> bool:
        """Whether all have met, and the first of them has not done its part since: here within that time, or in torch,
        whose nodes wait in the store for what it is to say there."""
        completed_long = self.info is not None and time.monotonic() - self._completed_s > within_s
        return completed_long or isinstance(self.error, DistStoreError)

    def _run(self) -> None:
        try:
            info = self._wait()
            self._completed_s, self.info = time.monotonic(), info
        except Exception as error:
            self.error = error


def participants(backend: Any) -> str:
    """Who is at the rendezvous, in words."""
    with contextlib.suppress(Exception):  # a private format, and a store that may be gone
        found = backend.get_state()
        if found is None:
            return "nobody, not even this node yet"
        known = pickle.loads(found[0])  # noqa: S301  # torch's own, which it loads itself all the time
        names = sorted({f"{node.addr} (pid {node.pid})" for node in (*known.participants, *known.wait_list)})
        return f"{len(names)} nodes: {', '.join(names)}"
    return "nobody can be asked"
