"""What nodes leave of themselves in the rendezvous' store, signed where the run has a secret.

What is not signed by the run's secret is not unpickled here, and its reader joins no round.
"""

from __future__ import annotations

import hmac
from hashlib import sha256
from typing import Any

from torch.distributed.elastic.rendezvous import RendezvousConnectionError, RendezvousStateError
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import RendezvousBackend

from elastic_checkpoint.net.secret import ANOTHER, NONE_HERE, NONE_THERE

_SIGNED = b"elastic-signed-1\n"
_SIGNATURE_BYTES = sha256().digest_size

Found = tuple[bytes, Any]


class StateRefused(RendezvousStateError):
    """Whoever wrote the state has another secret than this node, or none, or this node has none."""


class SignedBackend(RendezvousBackend):
    """A backend of torch's rendezvous that signs the state, which `backend` holds with its signature before it.

    What others write over a state that was signed is not read, and the state is put back.
    """

    def __init__(self, backend: RendezvousBackend, run_id: str, secret: str | None) -> None:
        self._backend = backend
        self._run_id = run_id
        self._secret = secret
        self._newest: bytes | None = None  # that was signed by the secret, as it is stored
        self._is_closed = False

    def close(self) -> None:
        """End a round that waits here, should the store be back, as this node meets elsewhere."""
        self._is_closed = True

    @property
    def name(self) -> str:
        return str(self._backend.name)

    def get_state(self) -> Found | None:
        """Return the state as torch wants it, its signature checked. Raises StateRefused."""
        self._check_open()
        found = self._backend.get_state()
        if found is None:
            return None
        state, token, _ = self._read((*found, False))
        return state, token

    def set_state(self, state: bytes, token: Any = None) -> tuple[bytes, Any, bool] | None:
        """Sign and set the state. Raises StateRefused."""
        self._check_open()
        found = self._backend.set_state(self._signed(state), token)
        return None if found is None else self._read(found)

    def _check_open(self) -> None:
        """Raise RendezvousConnectionError if this node meets elsewhere."""
        if self._is_closed:
            raise RendezvousConnectionError("this node meets elsewhere")

    def _read(self, found: tuple[bytes, Any, bool]) -> tuple[bytes, Any, bool]:
        """Return what is stored, checked: its bytes, token, and whether they are what was to be set."""
        try:
            state = self._checked(found[0])
        except StateRefused:
            if self._newest is None or (back := self._backend.set_state(self._newest, found[1])) is None:
                raise
            return self._checked(back[0]), back[1], False
        if self._secret is not None:
            self._newest = found[0]
        return state, found[1], found[2]

    def _signed(self, state: bytes) -> bytes:
        return state if self._secret is None else _SIGNED + self._signature(self._secret, state) + state

    def _checked(self, found: bytes) -> bytes:
        """Return a state without its signature. Raises StateRefused where that is not the run's secret's."""
        # torch unpickles what this returns, and whoever reaches the port can write there: it would be their code
        signed = found.startswith(_SIGNED)
        if self._secret is None:
            if signed:
                raise StateRefused(NONE_HERE)
            return found
        if not signed:
            raise StateRefused(NONE_THERE)
        signature, state = found[len(_SIGNED) :][:_SIGNATURE_BYTES], found[len(_SIGNED) + _SIGNATURE_BYTES :]
        if not hmac.compare_digest(signature, self._signature(self._secret, state)):
            raise StateRefused(ANOTHER)
        return state

    def _signature(self, secret: str, state: bytes) -> bytes:
        about = f"elastic rendezvous 1: {self._run_id}\n".encode()
        return hmac.digest(secret.encode("utf-8", "surrogateescape"), about + state, "sha256")
