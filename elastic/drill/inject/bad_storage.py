"""Storage on a bad day, for a run in a drill: where it lives behind `faulty://`, in every process.

Each process counts its own operations, and chance decides from the seed and that count; what struck is put on record in
one file of all of them.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from elastic.drill.plan.drill_plan import StorageFaults
from elastic.events.words import counted
from elastic_checkpoint.format.names import commit_id
from elastic_checkpoint.testing import Delay, Error, Plan, StaleList, TornWrite
from elastic_checkpoint.testing.fault_plan import Rule

_ERRORS = ("timeout", "reset", "slow_down", "server")
_DID = {"Error": "failed", "Delay": "stalled", "TornWrite": "torn", "StaleList": "stale"}
_NAMES = {"write": "write", "read": "read", "list": "listing", "look": "look-up", "delete": "deletion"}
RECORD = "storage-faults.jsonl"


def behind_faults(
    url: str, options: dict[str, Any] | None, faults: StorageFaults, *, seed: int, record: Path
) -> tuple[str, dict[str, Any] | None]:
    """Return the URL and options by which a script uses `url`, a folder or an fsspec URL, with such faults between."""
    if not faults.any:
        return url, options
    protocol, separator, path = url.partition("://")
    target: dict[str, Any] = {"target_protocol": protocol, "target_options": options}
    if not separator:
        path, target = url, {"target_protocol": "file", "target_options": {"auto_mkdir": True}}
    plan = Plan(*_rules(faults), seed=seed)
    return f"faulty://{path}", {**target, "faults": plan.document(), "record": str(record)}


def summary(record: Path) -> str:
    """Return how often storage went wrong, in words, by operation and fault."""
    found = Counter((one["operation"], _DID[one["fault"]]) for one in _struck(record))
    words = [f"{counted(count, _NAMES[name])} {did}" for (name, did), count in sorted(found.items())]
    return ", ".join(words) or "nothing failed"


def torn(record: Path) -> list[str]:
    """Return the names of the checkpoints whose manifest was torn, once for each time.

    They are listed, and not whole; what lies under a manifest was written whole, perhaps at the second attempt.
    """
    paths = [str(one["path"]) for one in _struck(record) if one["fault"] == "TornWrite"]
    ids = [commit_id(_tail(path, 2)) for path in paths]
    return [str(id) for id in ids if id is not None]


def _tail(path: str, parts: int) -> str:
    return "/".join(path.split("/")[-parts:])


def _struck(record: Path) -> list[dict[str, Any]]:
    """Return the faults that are on record, one for each operation that failed."""
    try:
        return [json.loads(line) for line in record.read_text().splitlines()]
    except FileNotFoundError:
        return []


def _rules(faults: StorageFaults) -> list[Rule]:
    """Return a plan's chances as rules of the storage that fails; the kinds of errors share theirs."""
    rules: list[Rule] = []
    if faults.errors:
        each = faults.errors / (len(_ERRORS) + 1)
        rules += [Error(kind, chance=each) for kind in _ERRORS]
        rules.append(Error("timeout", late=True, chance=each))
    if faults.stalls:
        rules.append(Delay(faults.stall_s, chance=faults.stalls))
    if faults.torn:
        rules.append(TornWrite(chance=faults.torn))
    if faults.stale:
        rules.append(StaleList(chance=faults.stale))
    return rules
