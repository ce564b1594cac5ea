"""What a script has changed since a boundary that a resume would change once more."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from elastic.state.since_boundary import SinceBoundary


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
