"""Who gives the state to whom, and which bytes: the parts of loop/restoring/transfer.py that need no group."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elastic.loop.restoring.transfer import Roles, _described, _flat, _layout, _pack, _ranges, _unpack, roles
from elastic.loop.run_state import StateSummary

KINDS = [
    StateSummary(step=step, agreements=agreements, torn=torn, rewinds=rewinds, steady=steady)
    for step in (None, 0, 1)
    for agreements in (0, 1)
    for torn in (False, True)
    for rewinds in (False, True)
    for steady in ((False, True) if rewinds and not agreements else (False,))
]
VIEWS = [list(view) for size in (1, 2, 3) for view in product(KINDS, repeat=size)]


def holds(summary: StateSummary) -> bool:
    return summary.step is not None and not summary.torn


def progress(summary: StateSummary) -> tuple[int, int]:
    return (-1 if summary.step is None else summary.step), summary.agreements


def decided() -> list[tuple[list[StateSummary], Roles]]:
    return [(view, found) for view in VIEWS if (found := roles(view)) is not None]


def test_the_state_comes_from_storage_exactly_when_nobody_holds_a_whole_one() -> None:
    for view in VIEWS:
        assert (roles(view) is None) == (not any(holds(summary) for summary in view))


def test_everybody_ends_where_the_donors_stand() -> None:
    """At their step, with whole bytes, knowing what they know: whoever gets nothing has it already."""
    for view, found in decided():
        best = progress(view[found.donors[0]])
        for rank, summary in enumerate(view):
            whole = holds(summary) and progress(summary)[0] == best[0]
            assert whole or rank in found.need_state
            assert (whole and progress(summary) == best) or rank in found.need_side_state
            assert not (rank in found.donors and (rank in found.need_state or rank in found.need_side_state))
            assert rank in found.need_side_state or rank not in found.need_state


def test_who_lost_a_steps_exchange_gets_its_state_as_the_update_left_it_or_nothing() -> None:
    for view, found in decided():
        behind = {rank for rank in found.need_state if view[rank].step is not None}
        assert found.rewound == bool(behind)
        if found.rewound and not found.stranded:
            assert all(view[rank].rewinds for rank in found.donors)
        assert set(found.stranded) <= behind


def test_weights_follow_to_newcomers_alone_and_from_those_whose_scripts_leave_them_alone() -> None:
    """Who lost a step's exchange goes on in the midst of that step, where the donors stand behind its update."""
    assert any(found.follows for _, found in decided())
    for view, found in decided():
        if found.follows:
            assert found.need_state
            assert all(view[rank].step is None for rank in found.need_state)
            assert all(view[rank].steady for rank in found.donors)


def test_nobody_is_stranded_while_one_of_the_farthest_can_rewind() -> None:
    for view, found in decided():
        farthest = progress(view[found.donors[0]])
        can = any(holds(summary) and progress(summary) == farthest and summary.rewinds for summary in view)
        assert not (found.stranded and can)


def test_the_decision_is_the_same_on_every_rank_whatever_their_order() -> None:
    """It depends on nothing but the summaries: the roles of a permuted view are the permuted roles."""
    for view, found in decided():
        turned = roles([*view[1:], view[0]])
        assert turned is not None
        for mine, theirs in ((found.need_state, turned.need_state), (found.need_side_state, turned.need_side_state)):
            assert {(rank - 1) % len(view) for rank in mine} == set(theirs)
        assert {(rank - 1) % len(view) for rank in found.donors} == set(turned.donors)


DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.complex64),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
]


@st.composite
def states(draw: st.DrawFn) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for i in range(draw(st.integers(0, 5))):
        dtype = draw(st.sampled_from(DTYPES))
        shape = draw(st.sampled_from([(), (0,), (1,), (3,), (2, 0, 3), (5, 7), (33,), (64, 2)]))
        numel = torch.Size(shape).numel()
        raw = torch.randint(0, 2 if dtype is torch.bool else 256, (numel * dtype.itemsize,), dtype=torch.uint8)
        tensor = raw.view(dtype).reshape(shape)
        tensors[f"t{i}"] = tensor.t() if draw(st.booleans()) and len(shape) == 2 else tensor
    return tensors


@given(states(), st.integers(1, 5), st.sampled_from([64, 128, 1 << 20]))
def test_the_donors_pieces_together_are_the_state_bit_by_bit(
    tensors: dict[str, torch.Tensor], donors: int, piece: int
) -> None:
    """Every dtype, empty and transposed tensors, and pieces that begin and end anywhere in a tensor."""
    layout, total = _layout({name: _described(tensor) for name, tensor in tensors.items()})
    given = {name: _flat(tensor) for name, tensor in tensors.items()}
    into = {name: span.empty() for name, span in layout.items()}
    flats_into = {name: _flat(tensor) for name, tensor in into.items()}
    covered = 0
    for start, stop in _ranges(total, donors):
        for low in range(start, stop, piece):
            data = torch.empty(min(piece, stop - low), dtype=torch.uint8)
            _pack(data, given, layout, low, low + len(data))
            _unpack(data, flats_into, layout, low, low + len(data))
            covered += len(data)

    assert covered == total
    for name, tensor in tensors.items():
        assert (into[name].dtype, into[name].shape) == (tensor.dtype, tensor.shape)
        assert raw_bytes(into[name]) == raw_bytes(tensor)


def raw_bytes(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())


def test_what_fills_its_memory_in_any_order_travels_without_a_copy() -> None:
    """A model in channels_last would be copied whole by each donor, while all wait; and it arrives as it lay."""
    images = torch.randn(4, 3, 5, 5).to(memory_format=torch.channels_last)
    gaps = torch.randn(4, 6)[:, ::2]

    assert _flat(images).data_ptr() == images.data_ptr()
    assert _flat(gaps).data_ptr() != gaps.data_ptr()
    layout, _ = _layout({"images": _described(images), "gaps": _described(gaps)})
    assert layout["images"].empty().stride() == images.stride()
    assert layout["gaps"].empty().is_contiguous()


@pytest.mark.parametrize("sizes", [[], [1], [64], [65], [1, 64, 63], [0, 0, 3]])
def test_tensors_lie_aligned_and_apart(sizes: list[int]) -> None:
    layout, total = _layout({f"t{i}": ["uint8", [size], [1]] for i, size in enumerate(sizes)})
    spans = list(layout.values())
    assert all(span.offset % 64 == 0 for span in spans)
    assert all(before.offset + before.nbytes <= after.offset for before, after in pairwise(spans))
    assert all(span.offset + span.nbytes <= total for span in spans)


def test_a_torn_state_is_never_given() -> None:
    for view, found in decided():
        assert found.donors
        assert all(holds(view[rank]) for rank in found.donors)
