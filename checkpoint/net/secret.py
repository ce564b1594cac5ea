"""The secret of a run, ELASTIC_SECRET: who knows it may speak. Read from the environment, and from nowhere else.

`ssl` and `cryptography` are imported where the first connection is made by it (secured.py): whoever makes none does not
wait for them.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping

from checkpoint.errors import CheckpointError

VARIABLE = "ELASTIC_SECRET"
CHARACTERS_MIN = 20  # fewer are no random ones: 20 of base64 are 120 bits
MAKE_ONE = f"export {VARIABLE}=$(openssl rand -base64 32)"


def secret_of_run(environ: Mapping[str, str] | None = None) -> str | None:
    """The secret in `environ` (default: this process's); None where there is none. Raises CheckpointError."""
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


def generated_secret() -> str:
    """A secret that nobody knows yet."""
    return secrets.token_urlsafe(32)
