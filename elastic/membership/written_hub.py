"""Where a hub is, as somebody wrote it: in the rendezvous' store, or beside the checkpoints. Anybody may write there,
and whoever reads it connects to what it says, so it is checked whole.

    {"host", "port", "nonce"}   nonce: what only agents of the run know
"""

from __future__ import annotations

import json
from typing import Any

_KINDS = {"host": str, "port": int, "nonce": str}
_PORT_MAX = (1 << 16) - 1


def hub_in(text: bytes) -> dict[str, Any] | None:
    """None: it is nothing of the kind."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or any(type(found.get(name)) is not kind for name, kind in _KINDS.items()):
        return None
    return found if 0 < found["port"] <= _PORT_MAX else None
