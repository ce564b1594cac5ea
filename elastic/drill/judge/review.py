"""Brings a run before the judge: its events, the sizes that it recorded, and its checkpoints, read to the last byte."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from elastic.drill.judge.invariants import judge
from elastic.drill.judge.misled import Misled
from elastic.drill.judge.stored_checkpoints import StoredCheckpoint
from elastic.drill.judge.surviving_steps import ViewKey
from elastic.drill.judge.verdict import Verdict, Violation
from elastic.events.event import Event
from elastic.state.train_state import weights_digest
from elastic_checkpoint.errors import CorruptCheckpoint
from elastic_checkpoint.format.names import CommitId
from elastic_checkpoint.load.diff import Side, compare
from elastic_checkpoint.load.integrity import verify_commit
from elastic_checkpoint.load.reader import read_commit
from elastic_checkpoint.runs.history import read_history
from elastic_checkpoint.storage import Storage, open_storage

_OUTPUT_SHOWN = 3000  # characters of what a launch printed that failed


def review(
    url: str,
    events: Sequence[Event],
    *,
    steps: int | None = None,
    reference: Sequence[Event] | str | None = None,
    redone_max: int | None = None,
    lost_max: int | None = None,
    may_fall_back: bool = False,
    one_launch: bool = False,
    spoilt: Collection[str] = (),
    misled: Mapping[ViewKey, Misled] | None = None,
    storage_options: dict[str, Any] | None = None,
) -> Verdict:
    """Return the verdict on the run at `url`; see judge() for the arguments.

    spoilt  names of checkpoints that were damaged on purpose, which need not be whole
    """
    started = next((event for event in events if event["event"] == "run_started"), None)
    if started is None:
        never = Violation("finished", "the run never started: no worker recorded that it had read its configuration")
        return Verdict(violations=(never,))
    sizes = started["config"]
    order = sizes["order"]
    return judge(
        events,
        dataset_length=sizes["dataset_length"],
        batch_size=sizes["batch_size"],
        last_batch=sizes["last_batch"],
        epoch_length=order.get("epoch_length"),
        each=order.get("each", "once"),
        exact=sizes["mode"] == "exact",
        steps=steps,
        reference=reference,
        checkpoints=stored(url, storage_options, but=spoilt),
        redone_max=redone_max,
        lost_max=lost_max,
        may_fall_back=may_fall_back,
        one_launch=one_launch,
        misled=misled,
    )


def stored(
    url: str, storage_options: dict[str, Any] | None = None, *, but: Collection[str] = ()
) -> list[StoredCheckpoint] | None:
    """Return the checkpoints that a run could go on from, newest first, all read whole. None: its storage is gone."""
    if url.startswith("memory:"):
        return None  # it died with the process
    storage = open_storage(url, storage_options)
    try:
        lineage = read_history(storage, lambda _: None).lineage
        return [_stored(storage, id) for id in lineage if str(id) not in but]
    except CorruptCheckpoint:  # its commits are gone: nobody could go on, and the saves that events tell of are missing
        return []
    finally:
        storage.close()


def _stored(storage: Storage, id: CommitId) -> StoredCheckpoint:
    """Read one checkpoint to the last byte, and return what is wrong with it, or its models' digest."""
    found = verify_commit(storage, id, True)
    if found.problems:
        return StoredCheckpoint(str(id), id.claim, id.step, wrong="; ".join(found.problems))
    tree = read_commit(storage, id, shared=True).tree
    parts = ((name.partition("."), part) for name, part in tree.items())
    models = {name or kind: part for (kind, _, name), part in parts if kind == "model"}
    return StoredCheckpoint(str(id), id.claim, id.step, digest=weights_digest(models) if models else None)


def end_violations(
    *, exit_code: int = 0, output: str = "", left_behind: Sequence[str] = (), late: str | None = None
) -> list[Violation]:
    """Return the violations that the end of a run shows by itself, beside its events.

    exit_code    of its last launch
    output       what that printed
    left_behind  on the machine, in words
    late         what was known when its deadline had passed; None: it ended in time
    """
    violations = [Violation("deadline", f"the run with faults: {late}")] if late is not None else []
    if exit_code and late is None:
        what = f"its last launch ended with status {exit_code}\n{output[-_OUTPUT_SHOWN:]}"
        violations.append(Violation("finished", what))
    return violations + [Violation("left", f"left behind: {what}") for what in left_behind]


def final_states(
    baseline: str, faulted: str, storage_options: dict[str, Any] | None = None, *, but: Collection[str] = ()
) -> list[Violation]:
    """Return a violation if the last checkpoints of both runs differ: in weights, optimizer, anything that survives.

    but  names of checkpoints that were damaged on purpose: where it is the last one, there is nothing to compare
    """
    with contextlib.ExitStack() as stack:
        sides = []
        for url in (baseline, faulted):
            storage = open_storage(url, storage_options)
            stack.callback(storage.close)
            lineage = read_history(storage, lambda _: None).lineage
            if not lineage:
                return [Violation("final", f"there is no checkpoint in {url}, so the last states cannot be compared")]
            if str(lineage[0]) in but:
                return []
            sides.append(Side(storage, lineage[0]))
        found = compare(*sides).counted
    names = ", ".join(one.path for one in found[:5])
    what = f"the last checkpoints differ in {len(found)} entries: {names}"
    return [Violation("final", what)] if found else []
