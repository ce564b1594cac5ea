"""Storage on a bad day, for a run in a drill: its folder behind `faulty://` (checkpoint.testing), in every process.

Each process counts its own operations, and chance decides from the seed and that count; what struck is put on record in
one file of all of them.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from checkpoint.testing import Delay, Error, Plan, StaleList, TornWrite
from checkpoint.testing.plan import Rule
from elastic.drill.cluster import Imposed
from elastic.drill.plan import StorageFaults

_ERRORS = ("timeout", "reset", "slow_down", "server")
_DID = {"Error": "failed", "Delay": "stalled", "TornWrite": "torn", "StaleList": "stale"}
RECORD = "storage-faults.jsonl"


def imposed(folder: Path, faults: StorageFaults, *, seed: int, record: Path) -> Imposed:
    """What makes a script use `folder`; with faults between, if there are any."""
    if not faults.any:
        return Imposed(str(folder))
    plan = Plan(*_rules(faults), seed=seed)
    target = {"target_protocol": "file", "target_options": {"auto_mkdir": True}}
    options = {**target, "faults": plan.document(), "record": str(record)}
    return Imposed(f"faulty://{folder}", options)


def struck(record: Path) -> Counter[str]:
    """What went wrong with storage, by kind of fault and operation."""
    found: Counter[str] = Counter()
    try:
        lines = record.read_text().splitlines()
    except FileNotFoundError:
        return found
    for line in lines:
        one = json.loads(line)
        found[f"{one['operation']}s {_DID[one['fault']]}"] += 1
    return found


def _rules(faults: StorageFaults) -> list[Rule]:
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
