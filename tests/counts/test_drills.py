"""Random drills of four scripts: whatever a seed draws, each invariant holds, and workers end as undisturbed ones.

    a number      tests/kit/programs/varied.py: loader processes, `extra=`, short epochs, habits of scripts
    plain-…       tests/kit/programs/plain.py: a loop over batches
    streams-…     tests/kit/programs/streamed.py: streams, in either kind of loop, as the seed draws it
    sharded-…     tests/kit/programs/sharded.py: a model that replicas of two workers hold, in either kind of loop

`make counts COUNT=drills DRILLS=300 SEED=7` runs so many from that seed on, and with SCRIPTS=sharded- of one script.
"""

from __future__ import annotations

import os

import pytest

from tests.kit.drills_at_once import SEED, run_all
from tests.kit.sampling import seeds
from tests.kit.target_drills import TARGETS, target_drill

DRILLS = os.environ.get("DRILLS")
KINDS = os.environ["SCRIPTS"].split(",") if os.environ.get("SCRIPTS") else ["", "plain-", "streams-", "sharded-"]


@pytest.mark.nightly(sample=1, of="drills at random")
@pytest.mark.timeout(12 * 3600)
def test_random_drills_of_four_scripts_keep_every_promise() -> None:
    """Each prints the command that replays it before it runs; one that fails keeps its folder, and becomes a test."""
    run_all([f"{KINDS[at % len(KINDS)]}{SEED + at}" for at in (range(int(DRILLS)) if DRILLS else seeds(4, sample=1))])


@pytest.mark.parametrize("target", ["streams", "sharded"])
def test_seeds_draw_both_loops(target: str) -> None:
    drawn = [target_drill(target, seed).args for seed in range(20)]
    assert {"--plain" in variant for variant in drawn} == {True, False}
    assert len(set(drawn)) == len(TARGETS[target].variants)
