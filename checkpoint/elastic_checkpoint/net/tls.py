"""TLS between processes that know one secret, over any connection: see transport.py for what holds.

    the secret  ->  HKDF-SHA256  ->  an Ed25519 key  ->  a certificate that it signs itself, the same on each machine

Both ends show this certificate, and take no other: TLS 1.3 proves that the other one has its key. Nothing is left to
choose or to agree on, and no clock matters: it is valid as long as dates can be written. Of the secret nothing is sent,
but whoever connects is shown the certificate, and can try secrets against it at leisure: hence random ones.
One thread uses it at a time, as each connection is in one loop.
"""

from __future__ import annotations

import functools
import os
import ssl
from base64 import encodebytes
from datetime import datetime

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from elastic_checkpoint.errors import CheckpointError
from elastic_checkpoint.net.secret import ANOTHER, HANDSHAKE, NONE_THERE, VARIABLE, WANTS_TLS, TransportError

_INFO = b"elastic control plane 1"  # another number for another derivation
_NAME = "elastic"
_FROM, _UNTIL = datetime(1970, 1, 1), datetime(9999, 12, 31)
_CONTEXTS_MAX = 16  # of a run, and of the claims that were asked
_ALERT = b"\x15"
_READ_BYTES = 2**16
_WRITE_BYTES = 2**18  # at a time: what OpenSSL leaves in memory is moved each time it grows


@functools.lru_cache(maxsize=1)
def check(secret: str) -> None:
    """Shake hands with itself, to see that this machine can. Raises CheckpointError, OSError."""
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
        self._said = b""  # before the handshake is through
        self._begun = False
        self._shake_hands()

    @property
    def pending(self) -> bool:
        return self._leaving.pending > 0

    def encrypt(self, data: bytes = b"") -> bytes:
        if self.through and not self.refused:
            return self._written(data)
        self._said += data
        return self._leaving.read()

    def decrypt(self, data: bytes) -> bytes:
        try:
            self._check_beginning(data)
            self._arrived.write(data)
            return self._read_all() if self.through or self._shake_hands() else b""
        except ssl.SSLError as failure:
            raise self._refuse(_reason(failure, self.through)) from failure

    def _check_beginning(self, data: bytes) -> None:
        """Raise TransportError for a process without a secret, which is told so in its own words."""
        if self._begun:
            return
        self._begun = True
        if data[:1] not in (HANDSHAKE[:1], _ALERT):
            if self._server_side:
                self._leaving.write(WANTS_TLS)
            raise self._refuse(NONE_THERE)  # which is no failed handshake to us

    def _refuse(self, why: str) -> TransportError:
        self.refused = why
        return TransportError(why)

    def _shake_hands(self) -> bool:
        """Shake hands as far as it can go now; return whether it is through."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        self.through = True
        said, self._said = self._said, b""
        self._leaving.write(self._written(said))
        return True

    def _written(self, data: bytes) -> bytes:
        """Return what is to be sent for `data`, after what was to be sent before."""
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


@functools.lru_cache(maxsize=_CONTEXTS_MAX)
def context(secret: str, *, server_side: bool) -> ssl.SSLContext:
    """Return the context of one side of connections between those who know `secret`."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server_side else ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = False  # no name is in the certificate: whoever has its key is one of us, wherever it is
    made.verify_mode = ssl.CERT_REQUIRED
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    if server_side:
        made.num_tickets = 0  # a connection is never resumed
    key, certificate = identity(secret)
    made.load_verify_locations(cadata=certificate)
    _load(made, key, certificate)
    return made


def identity(secret: str) -> tuple[bytes, bytes]:
    """Return the private key (PKCS #8) and the certificate (X.509) that follow from `secret`, both as DER."""
    seed = HKDF(SHA256(), 32, None, _INFO).derive(secret.encode("utf-8", "surrogateescape"))
    key = Ed25519PrivateKey.from_private_bytes(seed)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _NAME)])
    certificate = (
        x509.CertificateBuilder()
        .issuer_name(name)
        .subject_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(_FROM)
        .not_valid_after(_UNTIL)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, None)
    )
    private = key.private_bytes(
        serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private, certificate.public_bytes(serialization.Encoding.DER)


def _load(into: ssl.SSLContext, key: bytes, certificate: bytes) -> None:
    """Load both by a file, as `ssl` reads them: one in memory, without a name, which is gone with its descriptor."""
    with open(os.memfd_create("elastic-key", os.MFD_CLOEXEC), "wb") as file:
        for kind, data in (("PRIVATE KEY", key), ("CERTIFICATE", certificate)):
            file.write(f"-----BEGIN {kind}-----\n{encodebytes(data).decode()}-----END {kind}-----\n".encode())
        file.flush()
        into.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
