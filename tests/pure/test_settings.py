"""Whether two ranks' optimizers are set alike: by what, and how a difference is said."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import nn

from elastic.state.settings import difference, digest, settings, settings_of


def adam(**given: Any) -> dict[str, torch.optim.Optimizer]:
    layer = nn.Linear(2, 2)
    groups: list[dict[str, Any]] = [{"params": [layer.weight]}, {"params": [layer.bias], "weight_decay": 0.0}]
    return {"optimizer": torch.optim.AdamW(groups, **given)}


def one_number(value: Any) -> dict[str, torch.optim.Optimizer]:
    made = adam()
    made["optimizer"].param_groups[1]["lr"] = value
    return made


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (adam(lr=1e-3 * (1 + 2**-52)), "lr of 'optimizer', group 0: 0.001 here and 0.0010000000000000002 there"),
        (adam(betas=(0.9, 0.99)), "betas of 'optimizer', group 0"),
        (adam(weight_decay=0.0), "weight_decay of 'optimizer', group 0: 0.01 here and 0 there"),
        (one_number(torch.tensor(0.5)), "lr of 'optimizer', group 1: 0.001 here and 0.5 there"),
        (one_number(None), "lr of 'optimizer', group 1: 0.001 here and none there"),
    ],
)  # fmt: skip
def test_any_number_that_differs_is_seen_and_named(other: Any, said: str) -> None:
    """In its last bit, too: from there on the weights differ."""
    assert digest(adam()) != digest(other)
    found = difference(settings(adam()), json.loads(json.dumps(settings(other))))
    assert found[0].startswith(said), found


def test_a_state_that_has_travelled_is_set_alike() -> None:
    """Loaded from another's: keys in another order, lists for tuples, 1.0 for 1."""
    here, there = adam(lr=1), adam()
    state = json.loads(json.dumps(here["optimizer"].state_dict(), sort_keys=True))
    for group in state["param_groups"]:
        group["lr"] = 1.0
    there["optimizer"].load_state_dict(state)

    assert list(there["optimizer"].param_groups[0]) != list(here["optimizer"].param_groups[0])
    assert digest(here) == digest(there)
    assert difference(settings(here), settings(there)) == []


def test_what_a_plateau_was_told_is_compared_before_it_lowers_a_rate() -> None:
    """By the loss of a worker's own last share, say: rates went apart epochs later, and at one worker never."""

    def told(loss: float) -> Any:
        optimizers = adam()
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizers["optimizer"])
        plateau.step(loss)
        return settings_of(optimizers, {"plateau": plateau, "other": object()})

    assert digest(told(0.5)) == digest(told(0.5))
    assert digest(told(0.5)) != digest(told(0.25))
    found = difference(settings(told(0.5)), json.loads(json.dumps(settings(told(0.25)))))
    assert found == ["best of 'extra.plateau': 0.5 here and 0.25 there"]
