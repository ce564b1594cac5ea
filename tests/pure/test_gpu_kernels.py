"""What exact mode switches on for a GPU ends with the run."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

from elastic.state.gpu_kernels import deterministic, explained


def settings() -> tuple[object, ...]:
    compiler = importlib.import_module("torch._inductor.config")
    memory = importlib.import_module("torch.utils.deterministic")
    mode = torch.get_deterministic_debug_mode()
    return mode, compiler.deterministic, memory.fill_uninitialized_memory, torch.backends.cudnn.benchmark


def test_what_is_switched_on_is_as_it_was_afterwards() -> None:
    """torch switches its compiler's flag on with it, and leaves that on when its own is switched off."""
    before = settings()
    within: list[tuple[object, ...]] = []

    def fails() -> None:
        with deterministic():
            within.append(settings())
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert within == [(2, True, False, False)]
    assert settings() == before


def test_one_who_is_to_be_warned_only_stays_so() -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with deterministic():
            assert torch.get_deterministic_debug_mode() == 1
        assert torch.get_deterministic_debug_mode() == 1
    finally:
        torch.use_deterministic_algorithms(False)
        compiler: Any = importlib.import_module("torch._inductor.config")
        compiler.deterministic = False


def test_an_operation_without_such_a_kernel_is_named() -> None:
    error = RuntimeError("grid_sampler_2d_backward_cuda does not have a deterministic implementation, but you set ...")
    assert str(explained(error)).startswith("grid_sampler_2d_backward_cuda has no deterministic kernel on a GPU")
    assert explained(RuntimeError("out of memory")) is None
