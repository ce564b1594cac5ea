"""Streams are derived from where they are used: equal there, unrelated elsewhere."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest
import torch

from elastic.errors import ConfigError
from elastic.state.randomness import (
    after_seed,
    before_seed,
    derive,
    end_seed,
    evaluated_seed,
    example_seed,
    outside_seed,
    seed,
    seed_streams,
    share_seed,
    start_seed,
)


def draws() -> tuple[list[float], list[float], list[float]]:
    return [random.random() for _ in range(8)], np.random.rand(8).tolist(), torch.rand(8, dtype=torch.float64).tolist()


def test_derived_values_are_the_same_on_every_platform_and_in_every_version() -> None:
    """They stand in for saved generator states: a run resumed after an upgrade must draw what it would have drawn."""
    assert derive() == 2286759851003736386
    assert derive(0) == 12359104573221969892
    assert derive(-1) == 18100868841992779886
    assert derive("elastic", 2**70) == 12062994895205169020
    assert derive("é", "x") == 8398830868474530960
    assert example_seed(0, 1, 2) == 17533396784904998489
    assert share_seed(0, 1, 0, 2, 0) == 13678279011819871370
    assert outside_seed(0, 1, 0) == 2130647907706012233
    assert start_seed(0) == 11854170632789959902
    assert before_seed(0, 1) == 13788295212831572599
    assert after_seed(0, 1) == 2707803868884640197
    assert evaluated_seed(0, 1, 2) == 3469498536829963475
    assert end_seed(0) == 5783303334883555464


def test_no_two_keys_meet_by_their_spelling() -> None:
    """('a', 11) and ('a1', 1) are different places; so are 1 and '1', and a string that looks encoded."""
    keys: list[tuple[int | str, ...]] = [
        (), ("",), ("", ""), (0,), ("0",), (-1,), (1,), ("1",), (1, 1), (11,), ("a", 11), ("a1", 1), ("a", 1, 1),
        ("i1;",), ("i1;", 1), ("s1:a;",), ("a", "a"), ("aa",), ("é",), ("e",), (2**64,), (2**64 + 1,),
    ]  # fmt: skip
    assert len({derive(*key) for key in keys}) == len(keys)


def test_places_of_one_run_do_not_share_a_stream() -> None:
    """Two shares with one dropout mask, or two epochs with one augmentation, would be silent."""
    positions = list(itertools.product(range(6), repeat=4))
    seeds = [share_seed(a, b, c, d, 0) for a, b, c, d in positions]
    seeds += [example_seed(a, b, c) for a, b, c in itertools.product(range(6), repeat=3)]
    seeds += [outside_seed(a, b, c) for a, b, c in itertools.product(range(6), repeat=3)]
    seeds += [evaluated_seed(a, b, c) for a, b, c in itertools.product(range(6), [None, *range(6)], range(6))]
    seeds += [seed(a, b) for seed in (before_seed, after_seed) for a, b in itertools.product(range(6), repeat=2)]
    seeds += [seed(a) for seed in (start_seed, end_seed) for a in range(6)]
    assert len(set(seeds)) == len(seeds)
    assert len({value & 0xFFFFFFFF for value in seeds}) == len(seeds)  # torch's CPU generator sees these bits,
    assert len({value >> 32 for value in seeds}) == len(seeds)  # NumPy's these


def test_a_stream_is_repeated_from_any_state() -> None:
    """A step is redone after half of it was drawn, with a spare normal number still in the drawer."""
    value = share_seed(1, 2, 0, 3, 0)
    seed_streams(value, None)
    first = draws()
    random.gauss(0, 1)
    np.random.randn(1)
    torch.randn(3)
    seed_streams(value, torch.device("cpu"))

    assert draws() == first
    seed_streams(value, None)
    assert random.gauss(0, 1) == pytest.approx(random.Random(value).gauss(0, 1), abs=0)
    assert draws() != first


def test_seed_starts_all_generators_as_torch_manual_seed_does() -> None:
    """A script that changes from torch.manual_seed to elastic.seed builds the same model."""
    torch.manual_seed(3)
    weights = torch.nn.Linear(4, 4).weight.detach().clone()
    seed(3)
    first = draws()
    seed(3)
    assert draws() == first
    seed(3)
    assert torch.equal(torch.nn.Linear(4, 4).weight, weights)
    seed(2**63 - 1)


@pytest.mark.parametrize("wrong", [-1, 2**63, 1.0, "0", None, True])
def test_a_seed_that_is_none_is_refused(wrong: Any) -> None:
    """True and 1.0 would work by accident, and would be another run's seed in its identity."""
    with pytest.raises(ConfigError, match="seed = "):
        seed(wrong)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a machine with a CUDA GPU")
def test_a_gpus_stream_is_seeded_too() -> None:
    """Dropout on the GPU draws from the GPU's own generator."""
    device = torch.device("cuda")
    seed_streams(5, device)
    first = torch.rand(8, device=device)
    seed_streams(5, device)
    assert torch.equal(torch.rand(8, device=device), first)
