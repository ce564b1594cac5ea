"""Whether a stream goes on where its own state says that it stands: asked before a run trusts it.

Promises  what cannot go on exactly is refused by name: a stream without a state, one whose state is more than plain
          values, a shuffle buffer, which a loaded state drops, and what gives other examples after a state is loaded.
Leaves    which streams are asked, and when, to streams.py.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from elastic.errors import ConfigError
from elastic.state.randomness import seed_streams


def check_resumes(make: Callable[[], Any], worker: int) -> None:
    """Raise ConfigError unless a stream goes on where the state of another one says. Reads a few examples, twice."""
    one = make()
    check_kind(one, worker)
    reading = _seeded(one)
    if not list(_some(reading, 2)):
        return  # it is empty, which a read finds out
    state = state_of(one, worker)
    follows = list(_some(reading, 2))
    other = make()
    other.load_state_dict(json.loads(json.dumps(state)))
    if not _same(follows, list(_some(_seeded(other), 2))):
        raise _goes_on_elsewhere(one, worker, "after load_state_dict it gives other examples")


def check_kind(stream: Any, worker: int) -> None:
    """Raise ConfigError for a stream that is known not to go on from a state, without reading anything of it."""
    if not all(hasattr(stream, name) for name in ("__iter__", "state_dict", "load_state_dict")):
        raise ConfigError(
            f"stream {worker} is a {type(stream).__name__} without an iterator, state_dict or load_state_dict: what "
            "was read of it could not be known after a restart\n"
            "  next  give it these three, as torchdata's nodes and StatefulDataLoader have them"
        )
    if _buffers(stream):
        raise _goes_on_elsewhere(
            stream,
            worker,
            "shuffle(buffer_size=…) keeps examples in a buffer, which is dropped when a state is loaded: they would be "
            "lost",
        )


def state_of(stream: Any, worker: int) -> Any:
    """Return the stream's state. Raises ConfigError where that is more than JSON can say."""
    state = stream.state_dict()
    try:
        if json.loads(json.dumps(state)) == state:
            return state
    except (TypeError, ValueError):
        pass
    raise ConfigError(
        f"stream {worker} ({type(stream).__name__}) has a state that is not plain: numbers, texts, lists, and dicts by "
        "text\n  next  let its state_dict say where it stands in such values"
    )


def _buffers(stream: Any) -> bool:
    """Tell whether it is one of Hugging Face's that shuffles examples in a buffer."""
    # Its state leads back to the same examples until the first buffer is used up, and loses a whole one from there on
    # (datasets 5.2). One of a single example keeps none: so the order of shards is shuffled there.
    return any(
        type(stage).__name__ == "BufferShuffledExamplesIterable" and getattr(stage, "buffer_size", None) != 1
        for stage in stages_of(stream)
    )


def stages_of(stream: Any) -> Iterator[Any]:
    """Yield the stages of a Hugging Face dataset, the last one first; each acts on examples of those below it."""
    waiting = [getattr(stream, "_ex_iterable", None)]
    while waiting:
        if (stage := waiting.pop()) is not None:
            yield stage
            waiting += [getattr(stage, "ex_iterable", None), *getattr(stage, "ex_iterables", ())]  # one, or a mix


def _goes_on_elsewhere(stream: Any, worker: int, found: str) -> ConfigError:
    return ConfigError(
        f"stream {worker} ({type(stream).__name__}) does not go on where its state_dict says\n"
        f"  found  {found}\n"
        "  next   shuffle what lies in the files beforehand, or in an order with random access (elastic.orders)"
    )


def _same(one: Any, other: Any) -> bool:
    """Tell whether two examples are equal. What is no number (NaN) equals what is none."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        return bool(((one == other) | ((one != one) & (other != other))).all())
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        nothing = one.dtype.kind in "fc"
        return bool(one.dtype == other.dtype and np.array_equal(one, other, equal_nan=nothing))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    return bool(one == other)


def _seeded(stream: Iterable[Any]) -> Iterator[Any]:
    """Yield the stream's examples, each made with the same random numbers."""
    iterator = iter(stream)
    while True:
        seed_streams(0, None)
        try:
            yield next(iterator)
        except StopIteration:
            return


def _some(iterator: Iterator[Any], count: int) -> Iterator[Any]:
    for _ in range(count):
        try:
            yield next(iterator)
        except StopIteration:
            return
