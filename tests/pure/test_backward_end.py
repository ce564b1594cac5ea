"""The one private name of torch that plain loops rest on: it must go on meaning what it means."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from elastic.group.backward_end import at_end_of_pass


def asked(model: nn.Module, function: Callable[[], None]) -> None:
    """Have `function` called at the end of the pass that brings the first parameter's gradient."""
    parameter = next(model.parameters())
    parameter.register_post_accumulate_grad_hook(lambda _: at_end_of_pass(function))  # type: ignore[no-untyped-call]


def test_it_comes_once_after_the_last_gradient_and_before_backward_returns() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    told: list[object] = []
    asked(model[2], lambda: told.append([parameter.grad is not None for parameter in model.parameters()]))

    model(torch.ones(5, 3)).sum().backward()

    assert told == [[True] * 4]


def test_it_does_not_come_where_the_pass_fails() -> None:
    first, second = nn.Linear(3, 4), nn.Linear(4, 2)
    model = nn.Sequential(first, second)
    told: list[str] = []

    def fails(_: object) -> None:
        raise ValueError("in the pass")

    asked(second, lambda: told.append("ended"))
    first.bias.register_hook(fails)  # type: ignore[no-untyped-call]

    with pytest.raises(ValueError, match="in the pass"):
        model(torch.ones(5, 3)).sum().backward()

    assert told == []


@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt])
def test_what_it_raises_backward_raises(kind: type[BaseException]) -> None:
    model = nn.Linear(3, 2)

    def raises() -> None:
        raise kind("at the end")

    asked(model, raises)

    with pytest.raises(kind, match="at the end"):
        model(torch.ones(5, 3)).sum().backward()
