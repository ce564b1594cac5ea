"""The moments inside a backward pass and an update are where they say: half of it is done, the other half is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from elastic.drill.inject import hooks

Made = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))


def test_inside_a_backward_pass_half_of_the_parameters_have_a_gradient() -> None:
    """A worker killed there has sent some buckets and owes the others."""
    net = model()
    seen: list[list[bool]] = []
    hooks.backward(
        [torch.optim.SGD(net.parameters())], lambda: seen.append([p.grad is not None for p in net.parameters()])
    )
    for _ in range(2):
        net(torch.ones(2, 4)).sum().backward()

    (once,) = seen
    assert (sum(once), once[:2], once[4:]) == (3, [False, False], [True, True])


@pytest.mark.parametrize(
    "make",
    [
        lambda parameters: torch.optim.AdamW(parameters, foreach=False),
        lambda parameters: torch.optim.SGD(parameters, momentum=0.9, foreach=False),
    ],
    ids=["AdamW", "SGD"],
)
def test_inside_an_update_half_of_the_parameters_are_written(make: Made) -> None:
    """A worker killed there leaves a state that is neither the old nor the new one."""
    net = model()
    parameters = list(net.parameters())
    optimizer = make(parameters)
    before = [parameter.detach().clone() for parameter in parameters]
    seen: list[int] = []

    def look() -> None:
        seen.append(sum(not torch.equal(p, old) for p, old in zip(parameters, before, strict=True)))

    hooks.update([optimizer], look)
    for _ in range(2):
        net(torch.ones(2, 4)).sum().backward()
        optimizer.step()

    assert seen == [3]


@pytest.mark.parametrize("implementation", [{"foreach": True}, {"fused": True}])
def test_an_update_that_writes_everything_at_once_is_hit_after_that(implementation: dict[str, Any]) -> None:
    """There is no moment between the parameters then, but there is one before the step returns."""
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), **implementation)
    seen: list[bool] = []
    hooks.update([optimizer], lambda: seen.append(True))
    net(torch.ones(2, 4)).sum().backward()
    optimizer.step()

    assert seen == [True]


def test_inside_an_exchange_a_collective_has_been_started() -> None:
    from elastic.group.form import Work

    calls: list[str] = []

    class Started:
        def wait(self) -> None:
            calls.append("waited")

    untouched = Work.wait
    hooks.exchange(lambda: calls.append("hit"))
    Work(Started(), "all-reduce", None).wait()
    Work(Started(), "all-reduce", None).wait()

    assert calls == ["hit", "waited", "waited"]
    assert Work.wait is untouched
