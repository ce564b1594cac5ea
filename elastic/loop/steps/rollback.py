"""The state of a regular save, read by the coordinator and handed to every rank: what a rollback goes on with.

Regular are saves after a multiple of `save_every` steps, the first state included. Which of them is the newest depends
on the step alone, and not on who was lost, who left, or when: so a run that was disturbed goes back to where the
undisturbed one goes. Only where that save is not there (it had failed, or is damaged) is an older one taken, and what
was passed over says so.
"""

from __future__ import annotations

import json
from typing import Any

import elastic_checkpoint
from elastic.errors import StartFailed
from elastic.group.form import all_know, gather_bytes
from elastic.loop.restoring.transfer import broadcast
from elastic.loop.session import Session
from elastic.membership.progress import Phase
from elastic.state.train_state import Tree


def go_back(session: Session, step: int, every: int) -> tuple[int, Tree] | None:
    """Return (steps, state) of the newest regular save of at most `step` steps; None: there is none.

    All ranks call it. Raises PeerLost, and StartFailed where the storage failed on the coordinator; there,
    StorageError.
    """
    group, phases, saver = session.group, session.phases, session.restorer.saver
    tree: Tree | None = None
    failure: Exception | None = None
    outcome: dict[str, Any] = {}
    if group.rank == 0:
        assert saver is not None
        phases.enter(Phase.LOADING, session.restorer.storage_s)
        session.context.moment("load")
        try:
            found = saver.read_regular(step, every)
            tree = None if found is None else found[1]
            outcome = {"step": None if found is None else found[0]}
        except elastic_checkpoint.CheckpointError as failed:
            failure, outcome = failed, {"failure": f"{type(failed).__name__}: {failed}"}
    phases.enter(Phase.WAITING)
    answer = json.loads(gather_bytes(group, json.dumps(outcome).encode())[0])
    if "failure" in answer:
        all_know(group)
        raise failure or StartFailed(
            f"rank 0 could not read the save that the run goes back to\n{answer['failure']}\n"
            "  state  the model is as it was before this step, and nothing was saved\n"
            "  next   see to the storage; the same command goes on from the newest save"
        )
    if answer["step"] is None:
        return None
    state = broadcast(group, tree)
    phases.enter(Phase.COMPUTING)
    return int(answer["step"]), state
