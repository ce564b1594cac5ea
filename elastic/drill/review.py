"""Brings a run before the judge: its events, the sizes that it recorded, and its checkpoints, read to the last byte."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from checkpoint import Checkpointer
from checkpoint.cli.diff import Side, compare
from checkpoint.runs.history import read_history
from checkpoint.storage import open_storage
from elastic.drill.judge import judge
from elastic.drill.verdict import Verdict, Violation
from elastic.observe.events import Event


def review(
    url: str,
    events: Sequence[Event],
    *,
    steps: int | None = None,
    reference: Sequence[Event] | str | None = None,
    redone_max: int | None = None,
    lost_max: int | None = None,
    may_fall_back: bool = False,
    spoilt: Collection[str] = (),
    storage_options: dict[str, Any] | None = None,
) -> Verdict:
    """The verdict on the run at `url`; see judge() for the arguments.

    spoilt  names of checkpoints that were damaged on purpose, which need not be whole
    """
    started = next((event for event in events if event["event"] == "run_started"), None)
    if started is None:
        never = Violation("finished", "the run never started: no worker recorded that it had read its configuration")
        return Verdict(
            violations=(never,),
            steps=0,
            redone=0,
            discarded=0,
            world_sizes=(),
            examples_applied=Counter(),
            weights_sha256=None,
        )
    sizes = started["config"]
    return judge(
        events,
        dataset_length=sizes["dataset_length"],
        batch_size=sizes["batch_size"],
        last_batch=sizes["last_batch"],
        exact=sizes["mode"] == "exact",
        steps=steps,
        reference=reference,
        checkpoints={name: wrong for name, wrong in damage(url, storage_options).items() if name not in spoilt},
        redone_max=redone_max,
        lost_max=lost_max,
        may_fall_back=may_fall_back,
    )


def damage(url: str, storage_options: dict[str, Any] | None = None) -> dict[str, str | None]:
    """Checkpoint name -> what is wrong with it (None: nothing), for all that the run could go on from."""
    if url.startswith("memory:"):
        return {}  # it lived and died with the process
    with Checkpointer(url, storage_options=storage_options) as checkpoints:
        return {v.name: "; ".join(v.problems) or None for v in checkpoints.verify() if v.in_lineage}


def final_states(calm: str, hurt: str) -> list[Violation]:
    """What differs between the last checkpoints of both runs: weights, optimizer, and all else that survives."""
    with contextlib.ExitStack() as stack:
        sides = []
        for url in (calm, hurt):
            storage = open_storage(url)
            stack.callback(storage.close)
            lineage = read_history(storage, lambda _: None).lineage
            if not lineage:
                return [Violation("final", f"there is no checkpoint in {url}, so the last states cannot be compared")]
            sides.append(Side(storage, lineage[0]))
        found = compare(*sides).differences
    names = ", ".join(one.path for one in found[:5])
    what = f"the last checkpoints differ in {len(found)} entries: {names}"
    return [Violation("final", what)] if found else []
