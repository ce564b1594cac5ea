"""The sums of a step's gradients on one worker, however they are taken: to the bit those of the tree."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch

from elastic.errors import StepError
from elastic.group import layout as rules
from elastic.group.form import LocalGroup
from elastic.group.gradients import GradientSum
from elastic.group.tree import schedule

V = 8
SIZES = [(3, 5), (7,), (300, 300), (2, 2)]  # the third is a large one
Gradients = list["torch.Tensor | None"]


def given(share: int, *, some: bool) -> Gradients:
    """What a share gives. some: not every share gives each parameter one, and nobody the last."""
    draw = torch.Generator().manual_seed(share)
    values = [torch.randn(size, generator=draw) * 10.0 ** (share % 5 - 2) for size in SIZES]
    left_out = {share % len(SIZES), len(SIZES) - 1} if some else set()
    return [None if index in left_out else value for index, value in enumerate(values)]


def sums_along_the_tree(shares: int, *, some: bool) -> Gradients:
    def node(lo: int, hi: int, index: int) -> torch.Tensor | None:
        if lo >= min(hi, shares):
            return None
        if hi - lo == 1:
            return given(lo, some=some)[index]
        left, right = (node(a, b, index) for a, b in pairwise([lo, (lo + hi) // 2, hi]))
        return left + right if left is not None and right is not None else left if right is None else right

    return [node(0, V, index) for index in range(len(SIZES))]


def same(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    return one is other if one is None or other is None else torch.equal(one, other)


def backward(parameters: list[torch.nn.Parameter], wanted: Gradients) -> None:
    """A pass that gives these gradients."""
    parts = [(p * value).sum() for p, value in zip(parameters, wanted, strict=True) if value is not None]
    torch.autograd.backward(torch.stack(parts).sum())


@pytest.mark.parametrize("bucket_bytes", [1, 1 << 20])
@pytest.mark.parametrize("some", [False, True])
@pytest.mark.parametrize(("seen", "at_once"), [(False, True), (True, True), (False, False)])
def test_gradients_are_summed_along_the_tree_however_they_are_taken(
    bucket_bytes: int, some: bool, seen: bool, at_once: bool
) -> None:
    parameters = [torch.nn.Parameter(torch.zeros(size)) for size in SIZES]
    sums = GradientSum(parameters, ["p"] * 4, LocalGroup(), overlap=True, ordered=True, bucket_bytes=bucket_bytes)
    sums.open()
    for shares in (8, 3, 8, 5, 1):
        plan = schedule(V, shares, (range(shares),))
        sums.begin(plan, seen=seen)
        for share, merges in enumerate(plan.merges[0]):
            sums.begin_pass(merges, piece=0, pieces=1, last=share == shares - 1, at_once=at_once)
            backward(parameters, given(share, some=some))
            sums.end_pass()
        sums.finish(1)
        for parameter, total in zip(parameters, sums_along_the_tree(shares, some=some), strict=True):
            assert same(parameter.grad, total)
    sums.close()


def test_a_hook_may_keep_the_gradient_that_it_has_seen() -> None:
    """What follows is added to the partial sum in place, and autograd may do so itself."""
    parameters = [torch.nn.Parameter(torch.zeros(size)) for size in SIZES]
    kept: list[torch.Tensor] = []
    hook: Any = parameters[1].register_post_accumulate_grad_hook
    hook(lambda parameter: kept.append(parameter.grad))
    sums = GradientSum(parameters, ["p"] * 4, LocalGroup(), overlap=True, ordered=True, bucket_bytes=1)
    sums.open()
    plan = schedule(V, V, (range(V),))
    sums.begin(plan, seen=True)
    for share, merges in enumerate(plan.merges[0]):
        sums.begin_pass(merges, piece=0, pieces=1, last=share == V - 1, at_once=True)
        backward(parameters, given(share, some=False))
        sums.end_pass()
    sums.close()
    assert all(same(kept[share], given(share, some=False)[1]) for share in range(V))


@pytest.mark.parametrize("weights", [[1] * V, [2, 3, 1, 5, 2, 2, 4, 1]], ids=["sums", "means"])
@pytest.mark.parametrize("numel", [6, 300 * 300], ids=["small", "large"])
def test_parameters_that_are_given_views_of_one_gradient_each_have_their_own(weights: list[int], numel: int) -> None:
    """Torch gives them so where both are viewed and then added (pytorch#34082)."""
    one, other = (torch.nn.Parameter(torch.zeros(numel)) for _ in range(2))
    sums = GradientSum([one, other], ["one", "other"], LocalGroup(), overlap=True, ordered=True, bucket_bytes=1)
    sums.open()
    draw = torch.Generator().manual_seed(3)
    inputs = torch.randint(-9, 9, (V, 1, numel), generator=draw).float()  # whose sums are exact in any order
    plan = schedule(V, V, (range(V),))
    sums.begin(plan, seen=False)
    for share, merges in enumerate(plan.merges[0]):
        plain = weights[share] == 1 and len({*weights}) == 1
        sums.begin_pass(merges, piece=0, pieces=1, last=share == V - 1, weight=weights[share], at_once=plain)
        torch.autograd.backward((inputs[share] * (one.view(1, -1) + other.view(1, -1))).sum())
        sums.end_pass()
    sums.finish(1)
    sums.close()
    expected = (inputs * torch.tensor(weights).view(V, 1, 1)).sum(0).view(-1)
    assert same(one.grad, expected)
    assert same(other.grad, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_weight_counts_before_a_gradient_is_added(dtype: torch.dtype) -> None:
    parameters = [torch.nn.Parameter(torch.zeros(size, dtype=dtype)) for size in SIZES]
    sums = GradientSum(parameters, ["p"] * 4, LocalGroup(), overlap=True, ordered=True, bucket_bytes=1)
    sums.open()
    plan = schedule(2, 2, (range(2),))
    sums.begin(plan, seen=False)
    wanted = [[one.to(dtype) for one in given(share, some=False) if one is not None] for share in range(2)]
    for share, weight in enumerate((3, 5)):
        sums.begin_pass(plan.merges[0][share], piece=0, pieces=1, last=share == 1, weight=weight)
        backward(parameters, [*wanted[share]])
        sums.end_pass()
    sums.finish(1)
    sums.close()
    for parameter, one, other in zip(parameters, *wanted, strict=True):
        assert same(parameter.grad, (one.float() * 3 + other.float() * 5).to(dtype))


def test_hooks_of_small_parameters_are_there_in_the_last_pass_alone() -> None:
    """Each costs every pass a call of the interpreter."""
    parameters = [torch.nn.Parameter(torch.zeros(size)) for size in SIZES]
    sums = GradientSum(parameters, ["p"] * 4, LocalGroup(), overlap=True, ordered=True, bucket_bytes=1)
    sums.open()
    plan = schedule(V, V, (range(V),))
    listening: list[int] = []
    for _ in range(2):
        sums.begin(plan, seen=False)
        for share, merges in enumerate(plan.merges[0]):
            sums.begin_pass(merges, piece=0, pieces=1, last=share == V - 1, at_once=True)
            listening.append(len(sums._hooks))
            backward(parameters, given(share, some=False))
            sums.end_pass()
        sums.finish(1)
    sums.close()
    assert listening == [*[1] * (V - 1), 4] * 2


def test_a_sparse_gradient_is_refused_by_name() -> None:
    table = torch.nn.Embedding(4, 2, sparse=True)
    sums = GradientSum(list(table.parameters()), ["table"], LocalGroup(), overlap=True, ordered=True, bucket_bytes=1)
    sums.open()
    sums.begin(schedule(2, 2, (range(2),)), seen=False)
    sums.begin_pass(0, piece=0, pieces=1, last=False, at_once=True)
    torch.autograd.backward(table(torch.tensor([1])).sum())
    with pytest.raises(StepError, match="the gradient of table is sparse"):
        sums.end_pass()
    sums.close()


def test_small_parameters_are_few_enough_to_be_still_near_when_the_pass_ends() -> None:
    small = rules._small([1 << 17, 1 << 16, 10, *[1 << 15] * 40])

    assert 0 not in small
    assert 2 in small
    assert len(small) == 1 + (1 << 20) // (1 << 15) - 1
