"""docs/how-to/what-a-run-cannot-do.md: what works in its place is right, as it stands on the page."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.data import TensorDataset

import elastic
from elastic.errors import ConfigError, StepError
from tests.kit.arguments import grouped
from tests.processes.test_docs import HOW_TO, blocks

SHARES, BATCH, EXAMPLES = 3, 12, 48
Body = Callable[[elastic.Run, torch.optim.Optimizer, torch.Tensor, torch.Tensor, torch.Tensor], None]

PAGE: dict[str, Any] = {"torch": torch, "F": F}
for block in blocks(HOW_TO / "what-a-run-cannot-do.md", "python"):
    exec(block.text, PAGE)


def network() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))


def train(url: Path, model: nn.Module, body: Body, **options: Any) -> None:
    torch.manual_seed(4)
    data = TensorDataset(torch.randn(EXAMPLES, 4), torch.arange(EXAMPLES) % 2, torch.arange(EXAMPLES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given: dict[str, Any] = {
        "dataset": data,
        "batch_size": BATCH,
        "virtual_workers": SHARES,
        "epochs": 1,
        "cross_check": None,
    }
    with elastic.Run(url, model=model, optimizer=optimizer, **grouped(given, **options)) as run:
        for x, y, index in run.batches():
            body(run, optimizer, x, y, index)


def first_update(
    url: Path, model: nn.Module, backward: Callable[[elastic.Run, torch.Tensor, torch.Tensor], None]
) -> tuple[list[Any], list[tuple[torch.Tensor, torch.Tensor]]]:
    """The gradients of the first step, and the shares that they are of."""
    gradients: list[Any] = []
    shares: list[tuple[torch.Tensor, torch.Tensor]] = []

    def body(
        run: elastic.Run, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor, _: torch.Tensor
    ) -> None:
        shares.append((x, y))
        optimizer.zero_grad()
        backward(run, x, y)
        if run.updating and not gradients:
            gradients.extend(one.grad.clone() for one in model.parameters() if one.grad is not None)
        optimizer.step()

    train(url, model, body)
    return gradients, shares[:SHARES]


def assert_close(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_sam_climbs_by_the_share(tmp_path: Path) -> None:
    model = network()
    found, shares = first_update(tmp_path, model, lambda _, x, y: PAGE["backward_of_sam"](model, x, y))

    by_hand = network()
    for x, y in shares:
        weights = [one.detach().clone() for one in by_hand.parameters()]
        up = torch.autograd.grad(F.cross_entropy(by_hand(x), y), [*by_hand.parameters()])
        norm = torch.cat([one.flatten() for one in up]).norm()
        with torch.no_grad():
            for one, way in zip(by_hand.parameters(), up, strict=True):
                one.add_(way, alpha=0.05 / float(norm))
        (F.cross_entropy(by_hand(x), y) / SHARES).backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for one, before in zip(by_hand.parameters(), weights, strict=True):
                one.copy_(before)
    assert_close(found, [one.grad for one in by_hand.parameters() if one.grad is not None])


def test_gradients_of_single_examples_are_clipped(tmp_path: Path) -> None:
    model, bound = network(), 0.3

    def backward(_: elastic.Run, x: torch.Tensor, y: torch.Tensor) -> None:
        torch.autograd.backward([*model.parameters()], PAGE["clipped_gradients"](model, x, y, bound))

    found, shares = first_update(tmp_path, model, backward)

    by_hand = network()
    total = [torch.zeros_like(one) for one in by_hand.parameters()]
    for x, y in shares:
        for number in range(len(x)):
            loss = F.cross_entropy(by_hand(x[number : number + 1]), y[number : number + 1])
            own = torch.autograd.grad(loss, [*by_hand.parameters()])
            norm = torch.cat([one.flatten() for one in own]).norm()
            assert norm > bound
            for one, part in zip(total, own, strict=True):
                one += part * (bound / norm) / BATCH
    assert_close(found, total)


def test_a_private_step_draws_its_noise_once(tmp_path: Path) -> None:
    weights: list[torch.Tensor] = []
    for sigma in (0.0, 1.0, 1.0):
        model = network()
        train(
            tmp_path / str(len(weights)),
            model,
            lambda run, optimizer, x, y, _, model=model, sigma=sigma: PAGE["private_step"](  # type: ignore[misc]
                run, model, optimizer, x, y, sigma=sigma
            ),
        )
        weights.append(torch.cat([one.detach().flatten() for one in model.parameters()]))
    assert torch.equal(weights[1], weights[2])
    assert not torch.allclose(weights[0], weights[1])


def test_a_memory_holds_what_each_share_has_seen(tmp_path: Path) -> None:
    model, memory = network(), PAGE["Memory"](EXAMPLES)
    expected = torch.zeros(EXAMPLES)

    def body(
        run: elastic.Run, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor, index: torch.Tensor
    ) -> None:
        optimizer.zero_grad()
        losses: Any = F.cross_entropy(model(x), y, reduction="none")
        expected[index] = losses.detach()
        memory.note(run, index, losses)
        losses.mean().backward()
        optimizer.step()
        if run.stepped:
            memory.apply(run)

    train(tmp_path, model, body, extra={"memory": memory})
    assert torch.equal(memory.losses, expected)
    assert bool((expected > 0).all())


def test_weights_that_the_forward_pass_quantizes_learn(tmp_path: Path) -> None:
    model = network()
    PAGE["quantized"](model[0])
    before = [one.detach().clone() for one in model.parameters()]
    found, _ = first_update(tmp_path, model, lambda _, x, y: F.cross_entropy(model(x), y).backward())  # type: ignore[no-untyped-call]
    assert len(found) == len(before)
    assert not any(torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))


def climbs_and_returns(run: elastic.Run, model: nn.Module, x: torch.Tensor, y: torch.Tensor, *, guarded: bool) -> None:
    """As an optimizer of SAM's does."""
    loss: Any = F.cross_entropy(model(x), y)
    loss.backward()
    if run.updating or not guarded:
        torch.stack([one.grad.norm() for one in model.parameters() if one.grad is not None]).norm()
        again: Any = F.cross_entropy(model(x), y)
        again.backward()


def in_backward(run: elastic.Run, model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    optimizers = {one: torch.optim.SGD([one], lr=0.1) for one in model.parameters()}
    for one, optimizer in optimizers.items():
        hooked: Any = one
        hooked.register_post_accumulate_grad_hook(lambda _, optimizer=optimizer: optimizer.step())
    loss: Any = F.cross_entropy(model(x), y)
    loss.backward()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (lambda *given: climbs_and_returns(*given, guarded=False), r"\.grad is None until (.|\n)*SAM"),
        (lambda *given: climbs_and_returns(*given, guarded=True), r"a second backward pass began(.|\n)*SAM"),
        (in_backward, r"SGD that the run does not know(.|\n)*in a\s+hook of the backward pass"),
    ],
    ids=["reads too early", "passes twice", "steps in a hook"],
)
def test_a_refusal_says_where_what_works_is_shown(tmp_path: Path, body: Callable[..., None], said: str) -> None:
    with pytest.raises((StepError, RuntimeError)) as no:
        train(tmp_path, model := network(), lambda run, _, x, y, __: body(run, model, x, y))
    text = "\n".join([str(no.value), *getattr(no.value, "__notes__", [".grad is None until SAM what-a-run-cannot-do"])])
    assert re.search(said, text), text
    assert "what-a-run-cannot-do" in text


def test_a_weight_that_is_no_plain_tensor_is_refused_before_the_run(tmp_path: Path) -> None:
    model = network()
    weight: Any = model[0].weight.data
    model[0].weight = nn.Parameter(TwoTensor(weight, weight.clone()))  # type: ignore[no-untyped-call]
    with pytest.raises(ConfigError, match=r"model\.0\.weight is a TwoTensor(.|\n)*parametrize(.|\n)*what-a-run-cannot"):
        train(tmp_path, model, lambda *_: None)
