"""Where the run's hub is, as it is written beside the checkpoints: whoever is given the run's URL looks there first.

    elastic/hub.json         {"host", "port", "nonce"}
    elastic/hub-ended.json   the same: that hub has ended, and no other one follows

Where nodes meet by that URL alone, the hub's own agent writes it as soon as they have met (launch/meeting.py), and in
any case the coordinator does, as views begin and when the hub moves (loop/storage/hub_notice.py). It is read before
anybody looks for a rendezvous, and once a second until the hub is found (launch/hub/written_lookup.py).

The last hub of a run writes beside it that it has ended (launch/hub/announcement.py).

Whoever can read the run's storage can join the run, unless it has a secret (elastic_checkpoint/net/secret.py). What
lies there is a hint: a hub that has moved on says where to.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from typing import Any

from elastic.membership.written_hub import hub_in
from elastic_checkpoint.storage import Missing, Storage, TooLarge, get_bounded, open_storage

KEY = "elastic/hub.json"
ENDED_KEY = "elastic/hub-ended.json"
_BYTES_MAX = 1 << 12
_RETRY_S = 10.0


def write(url: str | os.PathLike[str], options: Mapping[str, Any] | None, where: Mapping[str, Any]) -> None:
    """Write where the hub is beside the run's checkpoints. Raises CheckpointError."""
    with contextlib.closing(open_storage(url, dict(options or {}), retry_s=_RETRY_S)) as storage:
        storage.put(KEY, json.dumps(dict(where)).encode())


def write_end(url: str | os.PathLike[str], nonce: str) -> None:
    """Write that the hub with this nonce has ended, if it is the one that stands there. Raises CheckpointError.

    Only where the run is over, and nobody may be going on with it elsewhere.
    """
    with contextlib.closing(open_storage(url, retry_s=_RETRY_S)) as storage:
        hub = _read(storage, KEY)
        if hub is not None and hub["nonce"] == nonce:
            # Whoever finds a hub there that does not answer has to wait, as it may be moving. Nothing is deleted: of
            # two that take themselves for the hub, on two sides of a cut, one would delete the other's.
            storage.put(ENDED_KEY, json.dumps(hub).encode())


def read(url: str | os.PathLike[str], options: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
    """Return where the hub is; None: nothing says so, or it has ended. Raises CheckpointError if it is unreadable."""
    with contextlib.closing(open_storage(url, dict(options or {}), retry_s=_RETRY_S)) as storage:
        hub = _read(storage, KEY)
        return hub if hub is None or _read(storage, ENDED_KEY) != hub else None


def _read(storage: Storage, key: str) -> dict[str, Any] | None:
    """Return the hub that is written under `key`; None: no hub is."""
    with contextlib.suppress(Missing, TooLarge):
        return hub_in(get_bounded(storage, key, _BYTES_MAX))
    return None
