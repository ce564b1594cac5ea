"""A round of torch's rendezvous: it is waited for in a thread, and those who wait are told who is refused.

Nodes write their own name, address and port where torch has an address, so that all who have met know each other.
"""

from __future__ import annotations

import contextlib
import pickle
import threading
from collections.abc import Callable
from typing import Any

from torch.distributed import DistError, Store
from torch.distributed.elastic.rendezvous import RendezvousInfo

from elastic_checkpoint.net.dialing import Address
from elastic_checkpoint.net.secret import ANOTHER, SAME_FOR_ALL

_REFUSED_BYTES_MAX = 64


class Refusals:
    """Tells those who wait who was refused, by a word in the store that anybody may have written."""

    def __init__(self, store: Any, key: str, say: Callable[[str], None]) -> None:
        self._store, self._key, self._say = store, key, say
        self._reported = self._newest()

    def tell(self) -> None:
        """Say once of each who was refused since this node came."""
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
        """Write the address of this node, which was refused, for those who wait."""
        with contextlib.suppress(DistError):
            self._store.set(self._key, address)


class Round:
    """Waits for a round of the rendezvous in a thread, so that a hub that is published meanwhile is found."""

    def __init__(self, wait: Callable[[], RendezvousInfo]) -> None:
        self._wait = wait
        self.info: RendezvousInfo | None = None
        self.error: Exception | None = None
        self.begun = False

    def begin(self) -> None:
        self.begun = True
        threading.Thread(target=self._run, name="elastic-rendezvous", daemon=True).start()

    def _run(self) -> None:
        try:
            self.info = self._wait()
        except Exception as error:
            self.error = error


class NoMaster(Store):
    """For a handler's store: answers at once what torch asks its first node for, an address that nobody uses here."""

    def set(self, key: str, value: Any) -> None:
        return

    def get(self, key: str) -> bytes:
        return b"0"  # else each node waits for what the first one says, for a minute if that is lost


def called(node: str, address: Address) -> str:
    """Return what a node writes of itself, where torch has its address."""
    return f"{node}@{address[0]}:{address[1]}"


def participants(backend: Any) -> list[tuple[str, Address]] | None:
    """Return who is at the rendezvous, or was and is lost, in torch's order; None: nobody can be asked."""
    with contextlib.suppress(Exception):  # a store that may be gone; a format of torch 2.13's, not documented
        found = backend.get_state()
        if found is None:
            return []
        known = pickle.loads(found[0])  # noqa: S301  # torch's own, which it loads itself all the time
        return [_named(node.addr) for node in sorted({*known.participants, *known.wait_list})]
    return None


def in_words(found: list[tuple[str, Address]] | None) -> str:
    if found is None:
        return "nobody can be asked"
    nodes = ", ".join(f"{name} at {host}" for name, (host, _) in found)
    return f"{len(found)} nodes: {nodes}" if found else "nobody, not even this node yet"


def _named(written: str) -> tuple[str, Address]:
    name, _, where = written.rpartition("@")
    host, _, port = where.rpartition(":")
    return name, (host, int(port))
