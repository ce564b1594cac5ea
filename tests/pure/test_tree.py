"""The tree is the arithmetic's identity: every mapping of shares to ranks must add in its order."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from elastic.group.tree import Schedule, schedule


def expression(lo: int, hi: int, shares: int) -> str:
    """The fixed tree written out, straight from its definition."""
    if lo >= min(hi, shares):
        return ""
    if hi - lo == 1:
        return str(lo)
    middle = (lo + hi) // 2
    left, right = expression(lo, middle, shares), expression(middle, hi, shares)
    return f"({left}+{right})" if left and right else left or right


def carried_out(plan: Schedule, blocks: tuple[range, ...]) -> str:
    """What ranks that follow `plan` really add, as an expression."""
    rows: list[str] = []
    for block, merges in zip(blocks, plan.merges, strict=True):
        stack: list[str] = []
        for share, count in zip(block, merges, strict=True):
            stack.append(str(share))
            for _ in range(count):
                right = stack.pop()
                stack.append(f"({stack.pop()}+{right})")
        rows += stack
    for into, out_of in plan.joins:
        rows[into] = f"({rows[into]}+{rows[out_of]})"
    return rows[0]


def near_equal(shares: int, world_size: int) -> tuple[range, ...]:
    return tuple(range(r * shares // world_size, (r + 1) * shares // world_size) for r in range(world_size))


@pytest.mark.parametrize("virtual_workers", range(1, 33))
def test_every_world_size_adds_in_the_order_of_the_one_tree(virtual_workers: int) -> None:
    """Exhaustive for V up to 32: short batches, world sizes that divide V or not, idle ranks."""
    for shares in range(1, virtual_workers + 1):
        expected = expression(0, virtual_workers, shares)
        for world_size in range(1, virtual_workers + 1):
            blocks = near_equal(shares, world_size)
            plan = schedule(virtual_workers, shares, blocks)
            assert carried_out(plan, blocks) == expected
            assert sum(plan.rows) == len(plan.joins) + 1


def test_any_cut_into_blocks_adds_in_the_same_order() -> None:
    """Load is shared by speed too, so blocks need not be near-equal: all cuts for V = 9, random ones for 32."""
    cuts = [c for k in range(4) for c in itertools.combinations_with_replacement(range(10), k)]
    rng = random.Random(5)
    cases = [(9, c) for c in cuts] + [(32, sorted(rng.choices(range(33), k=rng.randrange(1, 9)))) for _ in range(500)]
    for virtual_workers, cut in cases:
        bounds = [0, *cut, virtual_workers]
        blocks = tuple(range(a, b) for a, b in itertools.pairwise(bounds))
        plan = schedule(virtual_workers, virtual_workers, blocks)
        assert carried_out(plan, blocks) == expression(0, virtual_workers, virtual_workers)


def test_a_rank_never_holds_more_partial_sums_than_documented() -> None:
    """Memory: at most log2(V) + 1 extra copies of the gradients on a rank that holds one subtree or all of them."""
    for virtual_workers in range(1, 65):
        (merges,) = schedule(virtual_workers, virtual_workers, (range(virtual_workers),)).merges
        depth, highest = 0, 0
        for count in merges:
            depth += 1
            highest = max(highest, depth)
            depth -= count
        assert depth == 1
        assert highest <= math.ceil(math.log2(virtual_workers)) + 1
