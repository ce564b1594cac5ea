"""What both ends of a connection show each other to prove that they know one secret.

    the secret  ->  HKDF-SHA256  ->  an Ed25519 key  ->  a certificate that it signs itself, the same on each machine

Both ends show this certificate, and take no other: TLS 1.3 proves that the other one has its key. Nothing is left to
choose or to agree on, and no clock matters: it is valid as long as dates can be written. Of the secret nothing is sent,
but whoever connects is shown the certificate, and can try secrets against it at leisure: hence random ones.
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

_INFO = b"elastic control plane 1"  # another number for another derivation
_NAME = "elastic"
_FROM, _UNTIL = datetime(1970, 1, 1), datetime(9999, 12, 31)
_CONTEXTS_MAX = 16  # of a run, and of the claims that were asked


@functools.lru_cache(maxsize=_CONTEXTS_MAX)
def context(secret: str, *, server_side: bool) -> ssl.SSLContext:
    """For one side of connections between those who know `secret`."""
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
    """The private key (PKCS #8) and the certificate (X.509) that follow from `secret`, both as DER."""
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
    """`ssl` reads them from a file: from one in memory, without a name, which is gone with its descriptor."""
    with open(os.memfd_create("elastic-key", os.MFD_CLOEXEC), "wb") as file:
        for kind, data in (("PRIVATE KEY", key), ("CERTIFICATE", certificate)):
            file.write(f"-----BEGIN {kind}-----\n{encodebytes(data).decode()}-----END {kind}-----\n".encode())
        file.flush()
        into.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
