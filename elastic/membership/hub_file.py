"""Where the run's hub is, as it is written beside the checkpoints: who is given the run's URL looks there first.

    elastic/hub.json   {"host", "port", "nonce"}

Where nodes meet by that URL alone, the hub's own agent writes it as soon as they have met (launch/meeting.py), and in
any case the coordinator does, as views begin and when the hub moves (loop/storage/hub_notice.py). It is read before
anybody looks for a rendezvous, and once a second until the hub is found (launch/hub/written_lookup.py).

Whoever can read the run's storage can join the run, unless it has a secret (checkpoint/net/secret.py). What lies there
is a hint: a hub that has moved on says where to.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from typing import Any

from checkpoint.errors import CheckpointError
from checkpoint.storage import Missing, TooLarge, get_bounded, open_storage
from elastic.membership.written_hub import hub_in

KEY = "elastic/hub.json"
_BYTES_MAX = 1 << 12
_RETRY_S = 10.0


def write(url: str | os.PathLike[str], options: Mapping[str, Any] | None, where: Mapping[str, Any]) -> None:
    """Raises CheckpointError."""
    with contextlib.closing(open_storage(url, dict(options or {}), retry_s=_RETRY_S)) as storage:
        storage.put(KEY, json.dumps(dict(where)).encode())


def read(url: str | os.PathLike[str]) -> dict[str, Any] | None:
    """None: there is nothing of the kind. Raises CheckpointError where the storage cannot be read."""
    with contextlib.closing(open_storage(url, retry_s=_RETRY_S)) as storage, contextlib.suppress(Missing, TooLarge):
        return hub_in(get_bounded(storage, KEY, _BYTES_MAX))
    return None


__all__ = ["KEY", "CheckpointError", "read", "write"]
