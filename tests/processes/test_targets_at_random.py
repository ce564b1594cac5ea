"""Random drills of every kind of loop: whatever a seed draws, the bits and what a trainer knows are as if undisturbed.

Each is judged as `elastic drill` does it, and what each worker prints of its end is compared with what an undisturbed
worker prints.
"""

from __future__ import annotations

import pytest

from tests.kit.drills_at_once import run_all
from tests.kit.needs import needs_transformers
from tests.kit.target_drills import TARGETS

SEEDS = range(20)


@pytest.mark.nightly(sample=1, of="drills at random")
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "drill",
    [
        pytest.param(f"{target}-{seed}", marks=needs_transformers if target == "transformers" else ())
        for seed in SEEDS
        for target in TARGETS
    ],
)
def test_random_faults_leave_the_bits_and_the_trainer_s_state_alone(
    drill: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """It prints the command that replays it before it runs; one that fails keeps its folder."""
    run_all([drill], shared=tmp_path_factory.getbasetemp().parent / "drills-of-targets")
