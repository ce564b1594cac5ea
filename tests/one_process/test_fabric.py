"""Fabric in a run: what it would do by itself is refused by name."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from elastic.errors import ConfigError

pytest.importorskip("lightning")

from elastic.integrations.fabric import Fabric  # which imports it


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"strategy": "ddp"}, r"Fabric\(strategy\) is for a launch of Fabric's own"),
        ({"devices": 2, "num_nodes": 2}, r"Fabric\(devices, num_nodes\)"),
        ({"accelerator": "cpu"}, r"Fabric\(accelerator\)"),
        ({"precision": "16-mixed"}, "precision='16-mixed' scales losses"),
        ({"precision": 16}, "precision=16 scales losses"),
    ],
)
def test_what_is_the_runs_is_refused(given: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        Fabric(**given)


def test_half_the_precision_that_needs_no_scaler_is_taken() -> None:
    assert Fabric(precision="bf16-mixed").world_size == 1


def test_a_loop_that_has_followed_no_run_is_told_so_once() -> None:
    fabric = Fabric()
    weight = torch.nn.Parameter(torch.ones(1))
    with pytest.warns(UserWarning, match=r"fabric\.follow\(run\) was not called"):
        fabric.backward(weight.sum())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fabric.backward(weight.sum())
