"""The world size is not a hyperparameter: every case of tests.kit.cases, at every world size, byte for byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import elastic
from elastic.config import Mode
from tests.kit.cases import ALSO_FAST, CASES, Training
from tests.kit.cases.training import SHARES
from tests.kit.ranks import agent_store, as_worker_of_torchrun, returned, run_ranks

Outcomes = dict[str, dict[str, Any]]


def train(folder: Path, world_size: int, mode: Mode = "exact") -> list[Outcomes]:
    """What every rank found, case by case."""
    with agent_store() as port:
        found: list[Outcomes] = returned(run_ranks(cases_of_rank, world_size, port, folder, mode))
        return found


def cases_of_rank(rank: int, world_size: int, port: int, folder: Path, mode: Mode) -> Outcomes:
    if world_size > 1:
        as_worker_of_torchrun(rank, world_size, port)
    outcomes: Outcomes = {}
    for name in CASES if mode == "exact" else ALSO_FAST:
        elastic.seed(11)
        training = Training(folder / name, mode)
        CASES[name](training)
        outcomes[name] = training.outcome
    return outcomes


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """One process, without the environment of torchrun."""
    return train(tmp_path_factory.mktemp("alone"), 1)[0]


@pytest.mark.nightly(sample=1)
@pytest.mark.parametrize("world_size", range(2, SHARES + 1))
def test_every_byte_is_the_same_at_every_world_size(alone: Outcomes, tmp_path: Path, world_size: int) -> None:
    """Weights, buffers, gradients, optimizer and other state, sums of every step, evaluations and later draws, on
    every rank: dividing V or not, and with ranks that have no share of a short batch."""
    differing = {
        f"{name}, rank {rank}": sorted(key for key in expected if found[name].get(key) != expected[key])
        for rank, found in enumerate(train(tmp_path, world_size))
        for name, expected in alone.items()
        if found[name] != expected
    }

    assert not differing


def test_the_cases_did_what_they_are_there_for(alone: Outcomes) -> None:
    """A case that trains on nothing, or whose sums are empty, would agree with everything."""
    assert alone.keys() == CASES.keys()
    assert {case: len(found["steps"]) for case, found in alone.items() if len(found["steps"]) < 2} == {}
    assert alone["drop"]["counts"] == [20] * 6
    assert alone["carry"]["counts"] == [20] * 5
    assert alone["momentum_and_nesterov"]["counts"] == [20, 20, 10] * 2
    assert alone["an_epoch_of_three_examples"]["counts"] == [3, 3, 3]
    assert alone["batch_norm_in_micro_batches"]["counts"] == [28, 20] * 2
    assert alone["stopped_inside_the_inner_loop"]["stopped"] == "an outlier"
    assert len(alone["stopped_inside_the_inner_loop"]["steps"]) == 3
    assert len(alone["stopped_between_steps"]["steps"]) == 3  # asked for after step 1, so step 2 carries the request
    assert 0 < sum(alone["shares_that_count_nothing"]["counts"]) < 100


def test_sums_come_back_with_the_type_and_the_value_that_they_should_have(alone: Outcomes) -> None:
    """Against plain arithmetic: agreeing with oneself at every world size is not yet being right."""
    first, _, last = alone["sums_of_many_kinds"]["sums"][:3]
    assert first["n"] == 20
    assert first["big"] == 6 * 2**40 + 20
    assert type(first["big"]) is int
    assert first["twice"] == 6 * 1.5
    assert first["flag"] == 6
    assert torch.tensor(first["array"]).allclose(torch.full((2, 2), 2.0))
    assert sum(first["by_class"]) == 20
    assert "late" not in first
    assert last["late"] == 3  # a short batch has three shares


def test_loader_processes_change_nothing(alone: Outcomes) -> None:
    here = alone["noise_in_the_dataset"]
    assert here == alone["noise_in_the_dataset_read_by_loader_processes"]
    assert here["weights"] != alone["momentum_and_nesterov"]["weights"]


@pytest.mark.nightly(sample=1)
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_fast_mode_keeps_all_but_the_last_bits(alone: Outcomes, tmp_path: Path, world_size: int) -> None:
    """The same examples: counts and integer sums are exact, floats differ by the order of additions."""
    ranks = train(tmp_path, world_size, "fast")

    assert all(found == ranks[0] for found in ranks)
    assert ranks[0].keys() == ALSO_FAST
    for name, found in ranks[0].items():
        expected = alone[name]
        assert found["counts"] == expected["counts"]
        torch.testing.assert_close(found["values"], expected["values"], rtol=1e-3, atol=1e-4, msg=name)
        for theirs, ours in zip(found["sums"], expected["sums"], strict=True):
            for name_of_examples in ("n", "correct", "kept"):  # other sums count calls, and fast mode makes fewer
                assert theirs.get(name_of_examples) == ours.get(name_of_examples)
            assert theirs.get("loss") == pytest.approx(ours.get("loss"), rel=1e-4)
