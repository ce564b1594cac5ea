"""The norm of what several members hold in pieces: whoever holds which, its bits are the same."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elastic.state.exact_norm import Pieces, norm

ROW = 1 << 15
CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
TYPES = st.sampled_from(DTYPES)
FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
ROUND = st.builds(math.ldexp, st.integers(-9, 9), st.integers(-130, 110))
"""Numbers whose squares often lie half way between two that are rounded to."""
NUMBERS = st.lists(FINITE | ROUND, max_size=40)


def norm_of(members: Iterable[Sequence[torch.Tensor]]) -> float:
    """Return the norm of what all members hold, who find it together."""
    held = [Pieces(tensors, CPU) for tensors in members]
    largest = torch.stack([one.largest() for one in held]).amax(0)
    return float(norm(largest, torch.stack([one.squares(largest) for one in held]).sum(0)))


def dealt(tensor: torch.Tensor, draw: random.Random) -> Iterator[list[torch.Tensor]]:
    """Yield what each of some members holds of a tensor: pieces of it, which may be empty, in any order."""
    order = torch.randperm(len(tensor), generator=torch.Generator().manual_seed(draw.getrandbits(32)))
    cuts = sorted(draw.choices(range(len(tensor) + 1), k=draw.randint(0, 9)))
    pieces = [tensor[order[a:b]] for a, b in itertools.pairwise([0, *cuts, len(tensor)])]
    members = draw.randint(1, 5)
    for member in range(members):
        yield pieces[member::members]


def exactly(tensor: torch.Tensor) -> float:
    """Return the norm, but for one rounding of its square and of itself."""
    square = sum((Fraction(value) ** 2 for value in tensor.tolist()), Fraction(0))
    shift = 2 * (square.numerator.bit_length() - square.denominator.bit_length() - 60 >> 1) if square else 0
    return math.ldexp(math.sqrt(int(square / Fraction(2) ** shift)), shift // 2)


@given(NUMBERS, TYPES, st.randoms(use_true_random=False))
def test_any_numbers_have_one_norm_however_they_are_dealt(
    values: list[float], dtype: torch.dtype, draw: random.Random
) -> None:
    held = torch.tensor(values, dtype=torch.float64).to(dtype)
    held = held[held.isfinite()]
    whole = norm_of([[held]])
    assert {norm_of(dealt(held, draw)) for _ in range(4)} == {whole}
    assert whole == pytest.approx(exactly(held), rel=2.0**-40, abs=0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("spread", [0, 4, 30])
def test_many_numbers_have_one_norm_however_they_are_dealt(dtype: torch.dtype, spread: int) -> None:
    """More than are looked at together: several rows, and of the last only a part."""
    draw, generator = random.Random(spread), torch.Generator().manual_seed(spread)
    held = torch.randn(9 * ROW + 1234, generator=generator, dtype=torch.float64)
    held *= 10.0 ** (spread * (torch.rand(len(held), generator=generator, dtype=torch.float64) - 0.5))
    held = held.clamp(-6e4, 6e4).to(dtype)
    whole = norm_of([[held]])
    assert whole == pytest.approx(float(held.double().norm()), rel=1e-12)
    assert norm_of(dealt(held, draw)) == whole
    held = held[torch.randperm(len(held), generator=generator)]
    assert norm_of([part] for part in torch.split(held, ROW + 1)) == whole
    square = held[: 4 * ROW].view(256, -1)
    assert (
        norm_of([[square.t()]]) == norm_of([part] for part in torch.split(square, 77)) == norm_of([[square.flatten()]])
    )


def test_its_bits_do_not_depend_on_threads() -> None:
    held, before = [torch.randn(7 * ROW + 5), torch.randn(3)], torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = norm_of([held])
        torch.set_num_threads(6)
        assert norm_of([held]) == one
    finally:
        torch.set_num_threads(before)


def test_tensors_of_several_types_are_one_whole() -> None:
    """Also where one member has fp64 among its own, and another has not."""
    held = [torch.randn(300, dtype=dtype) for dtype in DTYPES]
    assert norm_of([held]) == norm_of([one] for one in held) == norm_of([[one.double() for one in held]])
    assert norm_of([[torch.tensor([3 + 4j]).conj()]]) == 5


@pytest.mark.parametrize(
    "values",
    [
        [],
        [0.0, -0.0],
        [1.401298464324817e-45],
        [-1e-40, 0.0, 1e-45],
        [1e-30] * 1000,
        [3e38, 1.0, 1e-45],
        [3e38] * 1000,
        [2.0**127, 2.0**-149],
        [3.0, 4.0],
    ],
)
def test_extremes(values: list[float]) -> None:
    """Squares of most of these are no numbers of fp32."""
    held = torch.tensor(values, dtype=torch.float32)
    found = norm_of([[], *([one] for one in held)])
    assert found == norm_of([[], [held], []]) == pytest.approx(exactly(held), rel=2.0**-44, abs=0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "odd", [[math.inf], [-math.inf, math.inf], [math.nan], [-math.nan, math.inf], [math.inf, math.nan, -math.inf]]
)
def test_what_is_not_finite_is_as_in_torch(dtype: torch.dtype, odd: list[float]) -> None:
    held = torch.cat([torch.randn(ROW).to(dtype), torch.tensor(odd, dtype=dtype)])
    expected = float(torch.linalg.vector_norm(held))
    for parts in ([held], [held[:ROW], held[ROW:]], [held[ROW:], held[: ROW // 2], held[ROW // 2 : ROW]]):
        assert repr(norm_of([part] for part in parts)) == repr(expected)


@pytest.mark.parametrize(("value", "expected"), [(1e150, 1e150), (2.0**500, math.inf), (1e-140, 1e-140), (1e-160, 0.0)])
def test_fp64_has_bounds(value: float, expected: float) -> None:
    held = torch.tensor([value, 1e-200], dtype=torch.float64)
    assert norm_of([[held]]) == norm_of([[one] for one in held]) == pytest.approx(expected, rel=1e-12, abs=0)


def test_small_elements_count_beside_a_large_one() -> None:
    """Added to it one by one in fp32 they would vanish: each square is 2**-26 of the large one's."""
    held = torch.full((4 * ROW,), 2.0**-13)
    held[7] = 1.0
    assert norm_of([[held]]) == pytest.approx(math.sqrt(1 + (4 * ROW - 1) * 2.0**-26), rel=1e-12)


def test_rows_of_nothing_but_largest_elements_do_not_overflow() -> None:
    held = torch.full((5 * ROW,), 2 - 2.0**-23)
    assert norm_of([[held]]) == pytest.approx((2 - 2.0**-23) * math.sqrt(5 * ROW), rel=1e-12)


def test_a_square_of_fp64_is_rounded_by_itself() -> None:
    """In one operation with what it is added to it would not be half way, on some processors and GPUs."""
    assert norm_of([[torch.tensor([1 + 2.0**-46], dtype=torch.float64)]]) == 1
