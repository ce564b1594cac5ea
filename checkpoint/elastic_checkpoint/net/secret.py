"""The secret of a run, ELASTIC_SECRET: whoever knows it may speak. Read from the environment, and from nowhere else.

`ssl` and `cryptography` are imported where the first connection is made by it (transport.py): whoever makes none does
not wait for them.
"""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Mapping

from elastic_checkpoint.errors import CheckpointError

VARIABLE = "ELASTIC_SECRET"
CHARACTERS_MIN = 20  # fewer are no random ones: 20 of base64 are 120 bits
MAKE_ONE = f"export {VARIABLE}=$(openssl rand -base64 32)"
ANOTHER = f"it has another {VARIABLE}, or is no part of this run"
NONE_THERE = f"it has no {VARIABLE}, and this process has one"
NONE_HERE = f"it has an {VARIABLE}, and this process has none"
SAME_FOR_ALL = (
    f"give all nodes of the run the same {VARIABLE}; which of the two is the right one cannot be told from here"
)

HANDSHAKE = b"\x16\x03"  # what a TLS connection begins with
WANTS_TLS, WANTS_NONE = b'{"say":"secret_needed"}\n', b'{"say":"no_secret_here"}\n'  # said to who cannot be understood

_OF_ONE_LAUNCH = "of-one-launch."


class TransportError(ValueError):
    """The other end is none of ours; the connection is of no use any more."""


def secret_of_run(environ: Mapping[str, str] | None = None) -> str | None:
    """Return the secret in `environ` (default: this process's); None where there is none. Raises CheckpointError."""
    found = (os.environ if environ is None else environ).get(VARIABLE)
    if found is None:
        return None
    secret = found.strip()  # files, and with them the secrets of Kubernetes, end in a line's end
    if len(secret) < CHARACTERS_MIN:
        raise CheckpointError(
            f"{VARIABLE} has {len(secret)} characters, and needs at least {CHARACTERS_MIN}: it could be guessed\n"
            "  state  nothing was started\n"
            f"  next   {MAKE_ONE}, the same on all nodes; or unset it, to go on without one"
        )
    return secret


def without_secret(there_are: str, risk: str, *, give_to: str) -> str:
    """Return a warning that there is no secret, with the risk and what to do."""
    return (
        f"{there_are} and no {VARIABLE}: {risk}\n"
        f"  next   make one ({MAKE_ONE}) and give it to {give_to}; on a network of your own, go on"
    )


def generated_secret() -> str:
    """Return a secret that nobody knows yet."""
    return secrets.token_urlsafe(32)


def secret_of_one_launch() -> str:
    """Return a secret as `generated_secret`, of a launch that keeps it to itself: no later one knows it."""
    return _OF_ONE_LAUNCH + generated_secret()


def lasting_key(label: bytes, environ: Mapping[str, str] | None = None) -> bytes | None:
    """Return a key of 32 bytes for what this run stores, the same in every later launch; None without a given secret.

    label  of the purpose, for none of whose keys another one's can be used

    Raises CheckpointError.
    """
    secret = secret_of_run(environ)
    if secret is None or secret.startswith(_OF_ONE_LAUNCH):
        return None
    return hmac.digest(secret.encode("utf-8", "surrogateescape"), label, "sha256")
