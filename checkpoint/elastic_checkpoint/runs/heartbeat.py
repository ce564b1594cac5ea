"""A heartbeat in the storage, for those who cannot ask the holder over the network: closed ports, another network.

The holder of a claim rewrites one small object every few seconds; a newcomer watches whether it changes, on its own
clock, for as long as its grace. It is written in place and never made durable, since only change counts: a torn one is
a change, too. Cost: a PUT every 5 s, which at the prices of object stores is some 9 cents a day.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading

from elastic_checkpoint.errors import CheckpointError
from elastic_checkpoint.format.names import heartbeat_key
from elastic_checkpoint.storage import Missing, Storage, put_lightly

_BYTES_MAX = 100  # what else lies there may be of any size
EVERY_S = 5.0  # a grace of 15 s sees two of them, even if one is late


class Heartbeat:
    """A heartbeat that is renewed until `end`, or until this process ends. A daemon thread."""

    def __init__(self, storage: Storage, claim: int, *, at_once: bool = False) -> None:
        """Begin to give signs; at_once: the claim is not new, and whoever gave the last sign may have gone long ago."""
        self._storage, self._key = storage, heartbeat_key(claim)
        self._nonce, self._at_once = secrets.token_hex(8), at_once
        self._pid = os.getpid()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="checkpoint-heartbeat", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Renew it no more. Idempotent. A storage that hangs is not waited for."""
        if self._pid != os.getpid():  # a forked child has no thread to end, and its locks are as they were
            return
        self._stopping.set()
        with contextlib.suppress(RuntimeError):  # called from the thread itself, by the garbage collector
            self._thread.join(1.0)

    def _renew(self) -> None:
        beat = 0
        while not self._stopping.wait(0.0 if self._at_once and not beat else EVERY_S):
            beat += 1
            with contextlib.suppress(CheckpointError, OSError):  # the next one may come through
                put_lightly(self._storage, self._key, f"{self._nonce} {beat}".encode("ascii"))


def read_heartbeat(storage: Storage, claim: int) -> bytes | None:
    """Return what changes as long as the claim's holder lives; None where it left no sign."""
    try:
        return storage.get(heartbeat_key(claim), 0, _BYTES_MAX)
    except Missing:
        return None
