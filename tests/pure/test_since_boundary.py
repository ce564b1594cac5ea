"""What a script has changed since a boundary that a resume would change once more."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from elastic.state.since_boundary import SinceBoundary
from elastic.state.train_state import TrainState
from elastic.state.trained import Trained


class Average:
    """gives: its own tensor, or a copy"""

    def __init__(self, gives: str) -> None:
        self.mean, self.count, self.gives = torch.zeros(3), 0, gives

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean.clone() if self.gives == "a copy" else self.mean, "count": self.count}


@pytest.mark.parametrize("gives", ["its own", "a copy"])
def test_values_and_tensors_are_seen_to_change_and_reads_are_none(gives: str) -> None:
    average, weight = Average(gives), torch.nn.Parameter(torch.zeros(2))
    since = SinceBoundary({"extra.average": average}, lambda: [weight])
    assert since.changed() == [], "nothing was noted"
    since.note()
    assert average.mean.sum() + weight.sum() == 0
    assert since.changed() == []
    average.mean += 1
    assert since.changed() == ["extra.average"]
    since.note()
    assert since.changed() == []
    average.count += 1
    assert since.changed() == ["extra.average"]
    since.note()
    with torch.no_grad():
        weight.mul_(0.9)
    assert since.changed() == ["weights"]


def test_at_the_beginning_of_an_epoch_what_has_changed_has_a_name_and_modes_are_no_change() -> None:
    """A script calls model.train() there, and was told of `learning rates or buffers`."""
    norm = torch.nn.BatchNorm1d(2)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), norm).eval()
    models, optimizers = {"model": model}, {"optimizer": torch.optim.SGD(model[0].parameters(), lr=0.1)}
    trained = Trained(models, optimizers, check=lambda: None)
    state = TrainState(
        trained=trained, models=models, optimizers=optimizers, schedulers={}, scaler=None, extra={}, health=None
    )
    state.begin_loop()
    since = state.since_boundary
    since.note(state.noting())
    model.train()
    model[0].bias.requires_grad_(False)
    assert since.changed() == []
    optimizers["optimizer"].param_groups[0]["lr"] = 0.05
    optimizers["optimizer"].add_param_group({"params": [*norm.parameters()]})
    norm.get_buffer("running_mean").add_(1)
    assert since.changed() == ["the groups of optimizer", "the options of optimizer", "buffer model.1.running_mean"]
