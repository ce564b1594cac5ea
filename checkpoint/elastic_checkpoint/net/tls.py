"""TLS between processes that know one secret (certificate.py), over any connection: see transport.py for what holds.

Any thread may say something while another one reads.
"""

from __future__ import annotations

import functools
import ssl
import threading

from elastic_checkpoint.errors import CheckpointError
from elastic_checkpoint.net.certificate import context
from elastic_checkpoint.net.secret import VARIABLE
from elastic_checkpoint.net.transport import ANOTHER, HANDSHAKE, NONE_THERE, WANTS_TLS, TransportError

_ALERT = b"\x15"
_READ_BYTES = 2**16
_WRITE_BYTES = 2**18  # at a time: what OpenSSL leaves in memory is moved each time it grows


@functools.lru_cache(maxsize=1)
def check(secret: str) -> None:
    """Shakes hands with itself. Raises CheckpointError, OSError."""
    ends = Tls(secret, server_side=False), Tls(secret, server_side=True)
    try:
        said = ends[0].encrypt()
        for number in (1, 0, 1):
            ends[number].decrypt(said)
            said = ends[number].encrypt()
    except (ssl.SSLError, TransportError) as failure:
        raise CheckpointError(
            f"{VARIABLE} is set, and {ssl.OPENSSL_VERSION} of this machine does not speak TLS by it: {failure}\n"
            "  state  nothing was started\n"
            "  next   it needs TLS 1.3 and Ed25519: see what the machine's OpenSSL policy (openssl.cnf, FIPS) allows"
        ) from failure


class Tls:
    def __init__(self, secret: str, *, server_side: bool) -> None:
        self.through = False
        self.refused = ""
        self._server_side = server_side
        self._arrived, self._leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context(secret, server_side=server_side).wrap_bio(self._arrived, self._leaving, server_side)
        self._one_at_a_time = threading.Lock()  # OpenSSL's object is for one thread
        self._said = b""  # before the handshake is through
        self._begun = False
        self._shake_hands()

    @property
    def pending(self) -> bool:
        return self._leaving.pending > 0

    def encrypt(self, data: bytes = b"") -> bytes:
        with self._one_at_a_time:
            if self.through and not self.refused:
                return self._written(data)
            self._said += data
            return self._leaving.read()

    def decrypt(self, data: bytes) -> bytes:
        with self._one_at_a_time:
            try:
                self._check_beginning(data)
                self._arrived.write(data)
                return self._read_all() if self.through or self._shake_hands() else b""
            except ssl.SSLError as failure:
                raise self._refuse(_reason(failure, self.through)) from failure

    def _check_beginning(self, data: bytes) -> None:
        """A process without a secret is told so in its own words, and is not a failed handshake to us."""
        if self._begun:
            return
        self._begun = True
        if data[:1] not in (HANDSHAKE[:1], _ALERT):
            if self._server_side:
                self._leaving.write(WANTS_TLS)
            raise self._refuse(NONE_THERE)

    def _refuse(self, why: str) -> TransportError:
        self.refused = why
        return TransportError(why)

    def _shake_hands(self) -> bool:
        """As far as it can go now. Whether it is through."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        self.through = True
        said, self._said = self._said, b""
        self._leaving.write(self._written(said))
        return True

    def _written(self, data: bytes) -> bytes:
        """What is to be sent for it, after what was to be sent before."""
        rest, parts = memoryview(data), []
        while rest:
            rest = rest[self._tls.write(rest[:_WRITE_BYTES]) :]
            parts.append(self._leaving.read())
        return b"".join(parts) or self._leaving.read()

    def _read_all(self) -> bytes:
        parts = []
        try:
            while part := self._tls.read(_READ_BYTES):
                parts.append(part)
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):  # the latter: it says no more, and will hang up
            pass
        return b"".join(parts)


def _reason(failure: ssl.SSLError, through: bool) -> str:
    reason = failure.reason or str(failure)
    if through:
        return f"what arrives is not what was sent ({reason})"
    if isinstance(failure, ssl.SSLCertVerificationError) or "ALERT" in reason:
        return ANOTHER
    return f"it is no part of this run ({reason})"
