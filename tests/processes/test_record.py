"""The record of a run has each step once, with the same bits, whatever became of those who wrote it.

Real workers under SIGKILL: coordinators and others are lost live, then all, and the run goes on at another size.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from elastic.drill.cluster import Cluster
from elastic.drill.faults import At, Kill, KillAll, Plan
from elastic.record import read_record
from elastic_checkpoint.storage import open_storage
from tests.kit.s3 import s3_server

WITHIN_S = 240
STEPS = 60


def test_each_step_is_on_record_once_through_kills_and_a_resume_at_another_size(
    elastic_cluster: Callable[..., Cluster],
) -> None:
    """The coordinator is killed in its update, with lines that it has not written; then its successor; then all."""
    faults = (
        Kill(0, At(13, "update", world_size=3)),
        Kill(1, At(None, "backward", world_size=3)),
        Kill(0, At(None, "saved", world_size=3)),
        KillAll(At(45, "forward")),
    )
    run = elastic_cluster(
        workers=3, launcher="elastic", steps=STEPS, seed=7, plan=Plan(faults), unhurried=3, save_every=10
    )
    run.finish(within_s=WITHIN_S)
    run.start(workers=2)
    end = run.finish(within_s=WITHIN_S)
    assert end.exit_code == 0, end.output
    alone = elastic_cluster(workers=1, launcher="elastic", steps=STEPS, seed=7, save_every=10)
    assert alone.finish(within_s=WITHIN_S).exit_code == 0

    found, whole = read_record(run.url), read_record(alone.url)
    assert list(found.steps) == list(whole.steps) == [*range(STEPS)]
    assert (found.missing, found.twice) == ([], [])
    assert len({step.claim for step in found.steps.values()}) == 2
    apart = {at: said for at, step in whole.steps.items() if (said := step.differs(found.steps[at]))}
    assert apart == {}
    assert all(len(step.shares) == 8 and all(map(all, step.shares)) for step in found.steps.values())
    assert [at for at, step in found.steps.items() if step.weights], "behind saves"


def test_a_run_on_object_storage_has_its_record_in_a_segment_that_grows(
    elastic_cluster: Callable[..., Cluster],
) -> None:
    with s3_server() as server:
        url = f"{server.new_bucket('runs')}/mine"
        run = elastic_cluster(
            url=url, workers=2, launcher="elastic", steps=12, seed=7, storage_options=server.options,
            storage=json.dumps(server.options),
        )  # fmt: skip
        end = run.finish(within_s=WITHIN_S)
        assert end.exit_code == 0, end.output
        assert list(read_record(url, server.options).steps) == [*range(12)]
        assert len(open_storage(url, server.options).list("record")) == 1
