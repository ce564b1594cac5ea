"""What is encoded comes back exactly: value, type, order, dtype, shape, bits. What cannot is refused by its path."""

from __future__ import annotations

import enum
import json
import math
import struct
from collections import Counter, OrderedDict, defaultdict, namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_checkpoint import UnsupportedValue, decode, digest, encode
from elastic_checkpoint.format.tensors import DTYPES, flat_bytes, writable_bytes


def round_trip(tree: Any) -> Any:
    """Through JSON text, as a manifest or a message to a peer does."""
    document, tensors = encode(tree)
    return decode(json.loads(json.dumps(document, allow_nan=False)), tensors)


def same(one: Any, other: Any) -> bool:
    """Equality to the bit and the type, in which NaN equals itself and 0.0 differs from -0.0."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return struct.pack(">d", one) == struct.pack(">d", other)
    if isinstance(one, complex):
        return same(one.real, other.real) and same(one.imag, other.imag)
    if isinstance(one, torch.Tensor):
        return (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride()) and bytes(
            flat_bytes(one)
        ) == bytes(flat_bytes(other))
    if isinstance(one, np.ndarray | np.generic):
        return (one.dtype.str, one.shape, one.tobytes()) == (other.dtype.str, other.shape, other.tobytes())
    if isinstance(one, dict):
        return len(one) == len(other) and all(
            same(a, b) and same(one[a], other[b]) for a, b in zip(one, other, strict=True)
        )
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)


plain = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=-(2**200), max_value=2**200)
    | st.floats()
    | st.complex_numbers()
    | st.text(st.characters())
    | st.binary()
)
keys = st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.tuples(st.integers(), st.text())
trees = st.recursive(
    plain | st.sets(st.integers() | st.text()) | st.frozensets(st.binary()),
    lambda inside: (
        st.lists(inside)
        | st.lists(inside).map(tuple)
        | st.dictionaries(st.text() | st.just("!"), inside)
        | st.dictionaries(keys, inside)
        | st.dictionaries(st.text(), inside).map(OrderedDict)
    ),
    max_leaves=20,
)


@settings(max_examples=100, deadline=None)
@given(trees)
def test_every_plain_tree_comes_back_exactly(tree: Any) -> None:
    assert same(round_trip(tree), tree)


@settings(max_examples=200, deadline=None)
@given(
    name=st.sampled_from(sorted(DTYPES)),
    shape=st.lists(st.integers(0, 4), max_size=4),
    seed=st.integers(0, 2**32 - 1),
    order=st.randoms(use_true_random=False),
    cut=st.booleans(),
)
@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_every_bit_of_every_dtype_shape_and_layout_comes_back(
    name: str, shape: list[int], seed: int, order: Any, cut: bool
) -> None:
    """Any bits, NaN payloads too; permuted axes keep their layout, other strides become contiguous."""
    tensor = torch.empty(shape, dtype=DTYPES[name])
    bits = np.random.default_rng(seed).integers(0, 2 if name == "bool" else 256, tensor.nbytes, dtype=np.uint8)
    writable_bytes(tensor)[:] = bits
    axes = list(range(len(shape)))
    order.shuffle(axes)
    tensor = tensor.permute(axes)
    if cut and tensor.dim() and tensor.shape[-1] > 2:
        tensor = tensor[..., ::2]

    back = round_trip({"x": tensor})["x"]

    assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
    assert bytes(flat_bytes(back)) == bytes(flat_bytes(tensor))
    if tensor.numel() and not cut:
        assert back.stride() == tensor.stride()


def test_rarer_values_come_back_with_their_type() -> None:
    tree = {
        "counter": Counter({10: 2, 30: 1}),  # MultiStepLR's milestones
        "size": torch.Size([2, 3]),
        "dtype": torch.bfloat16,
        "device": torch.device("cuda", 1),
        "scalars": [
            np.float32(0.1),
            np.int64(7),
            np.bool_(True),
            np.complex64(1j),
            np.str_("ä"),
            np.datetime64("2026-01-01"),
        ],
        "arrays": [
            np.arange(6, dtype=">i2").reshape(2, 3),
            np.array(3.5),
            np.zeros((0, 4), np.float32),
            np.asfortranarray(np.arange(6.0).reshape(2, 3)),
            np.array(["a", "bc"]),
            np.array([True, False]),
        ],
        "bytes": [b"\x00\xff", bytearray(b"xyz")],
        "lone surrogates": "\ud83d\ude00",
        "huge": 10**5000,
        "python": __import__("random").Random(3).getstate(),
        "numpy": np.random.RandomState(3).get_state(),
    }
    back = round_trip(tree)
    back["arrays"][3] = np.asfortranarray(back["arrays"][3])
    assert same(back, tree)


def test_tied_tensors_are_kept_once_and_stay_tied() -> None:
    shared = torch.randn(3, 4)
    document, tensors = encode({"embedding": shared, "head": shared.view(3, 4), "part": shared[0]})
    back = decode(document, tensors)

    assert list(tensors) == ["embedding", "part"]
    assert back["embedding"] is back["head"]
    assert round_trip([torch.empty(0), torch.empty(0)])[0] is not round_trip([torch.empty(0)])[0]


def test_names_that_would_collide_are_kept_apart() -> None:
    tree = {"a.b": {"c": torch.zeros(1)}, "a": {"b.c": torch.ones(1)}, "": torch.ones(2)}
    document, tensors = encode(tree)
    assert list(tensors) == ["a.b.c", "a.b.c#2", "value"]
    assert same(decode(document, tensors), tree)


def test_a_module_an_optimizer_and_a_scheduler_are_saved_as_their_state_dicts() -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    model[0].weight = torch.nn.Parameter(torch.randn(4, 3, 3, 3).to(memory_format=torch.channels_last))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(2, 3, 8, 8)).sum().backward()
    optimizer.step()
    back = round_trip({"model": model, "optimizer": optimizer})

    assert same(back["model"], model.state_dict())
    assert vars(back["model"]) == vars(model.state_dict())  # the layers' versions
    assert same(back["optimizer"], optimizer.state_dict())
    assert digest(back) == digest({"model": model, "optimizer": optimizer})


class Colour(enum.IntEnum):
    RED = 1


class Stubborn(dict[str, int]):
    pass


Point = namedtuple("Point", "x y")
CYCLE: list[Any] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    ("value", "advice"),
    [
        (Colour.RED, r"\.value"),
        (defaultdict(list), r"dict\(\.\.\.\)"),
        (Point(1, 2), r"_asdict\(\)"),
        (Stubborn(), "plain value"),
        (lambda: 0, "is code"),
        (object(), "state_dict"),
        (CYCLE, "holds itself"),
        (torch.zeros(2, device="meta"), "dense tensor with data"),
        (torch.zeros(2).to_sparse(), "to_dense"),
        (np.array([object()]), "dtype object"),
        (np.zeros(2, dtype=[("a", "i4")]), "dtype"),
        (np.longdouble(1), "no fixed meaning"),
        (torch.nn.parameter.UninitializedParameter(), "run a forward pass first"),
        (torch.nn.parameter.UninitializedBuffer(), "run a forward pass first"),
    ],
)
def test_what_has_no_exact_form_is_refused_with_its_path_and_a_way_out(value: Any, advice: str) -> None:
    with pytest.raises(UnsupportedValue, match=advice) as caught:
        encode({"optimizer": {"param_groups": [{"foo": value}]}})
    assert caught.value.path.startswith("optimizer.param_groups[0].foo")
    assert caught.value.type in str(caught.value)


def test_the_digest_knows_names_dtypes_shapes_and_bits_and_nothing_else() -> None:
    weight = torch.arange(6.0).reshape(2, 3)
    base = digest({"w": weight, "b": torch.zeros(2), "lr": 0.1})

    assert base == digest(OrderedDict(lr=0.2, b=torch.zeros(2), w=weight.t().contiguous().t()))  # order, layout, plain
    assert base != digest({"v": weight, "b": torch.zeros(2)})
    assert base != digest({"w": weight.reshape(3, 2), "b": torch.zeros(2)})
    assert base != digest({"w": weight.view(torch.int32), "b": torch.zeros(2)})
    assert base != digest({"w": weight, "b": -torch.zeros(2)})
    assert (
        digest({"w": weight}) == "7f6fa4e0179201af1016139aca82a917d3b0e4edf66e2fa985a82628a58197c8"
    )  # stable over versions


def test_floats_that_json_lacks_keep_their_bits() -> None:
    payload = struct.unpack(">d", bytes.fromhex("7ff8000000000123"))[0]
    back = round_trip([payload, -math.inf, -0.0, 5e-324])
    assert struct.pack(">d", back[0]).hex() == "7ff8000000000123"
    assert same(back[1:], [-math.inf, -0.0, 5e-324])
