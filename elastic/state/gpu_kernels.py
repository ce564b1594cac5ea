"""On a GPU exact mode computes with torch's deterministic kernels, and what has none is refused by name.

Where torch may choose, sums over many threads come in another order at each call (the gradient of a gather, of
attention), and cuDNN picks its convolutions by their speed that moment: the same shares would give other bits.
`torch.use_deterministic_algorithms` and what goes with it is switched on while a run is open, as a script would do it:
docs.pytorch.org/docs/stable/notes/randomness.html. One who has chosen `warn_only` keeps that: it is part of the run's
identity, and torch names each kernel whose bits may differ.

CUBLAS_WORKSPACE_CONFIG is left alone: torch gives each stream a workspace of its own, which is what it was asked for
(pytorch#161749), and reads the variable, if there is one, at each product of matrices (2026-11, H100: 40 us each).
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils.deterministic

from elastic.errors import StepError

_NO_KERNEL = "does not have a deterministic implementation"


@contextmanager
def deterministic() -> Iterator[None]:
    """Have torch, within the context, compute the same bits for the same inputs, or raise an error."""
    memory: Any = torch.utils.deterministic
    compiler: Any = importlib.import_module("torch._inductor.config")  # torch's switch sets its flag, too, for good
    benchmark, fills = torch.backends.cudnn.benchmark, memory.fill_uninitialized_memory
    chosen, compiles = torch.get_deterministic_debug_mode(), compiler.deterministic
    torch.backends.cudnn.benchmark = False
    if chosen == 0:
        memory.fill_uninitialized_memory = False  # a write more of all that is allocated
        torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = benchmark
        if chosen == 0:
            torch.set_deterministic_debug_mode(chosen)
            compiler.deterministic = compiles
            memory.fill_uninitialized_memory = fills


def settings() -> dict[str, Any]:
    """Return what else decides which kernels compute, and in which precision, without a look at the GPU."""
    cuda: Any = torch.backends.cuda
    cudnn: Any = torch.backends.cudnn
    return {
        "matmul": cuda.matmul.fp32_precision,
        "conv": cudnn.conv.fp32_precision,
        "rnn": cudnn.rnn.fp32_precision,
        "fp16_reduced": cuda.matmul.allow_fp16_reduced_precision_reduction,
        "bf16_reduced": cuda.matmul.allow_bf16_reduced_precision_reduction,
        "fp16_accumulation": cuda.matmul.allow_fp16_accumulation,
        "attention": [
            cuda.flash_sdp_enabled(),
            cuda.mem_efficient_sdp_enabled(),
            cuda.cudnn_sdp_enabled(),
            cuda.math_sdp_enabled(),
        ],
        "cudnn": cudnn.enabled,
        "math_attention_reduced": cuda.fp16_bf16_reduction_math_sdp_allowed(),
        "blas": str(cuda.preferred_blas_library()),
        "linalg": str(cuda.preferred_linalg_library()),
        "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
    }


def explained(error: BaseException) -> StepError | None:
    """Return an error with advice for an operation without a deterministic kernel; None for any other error."""
    if not isinstance(error, RuntimeError) or _NO_KERNEL not in str(error):
        return None
    operation = str(error).partition(_NO_KERNEL)[0].strip()
    return StepError(
        f"{operation} has no deterministic kernel on a GPU: each call may give other bits, and so may the run\n"
        "  state  what was committed before is whole\n"
        "  next   compute it on the CPU, or another way; or call torch.use_deterministic_algorithms(True, "
        'warn_only=True) before the Run, which then is exact but for such operations; or compute=Compute(mode="fast")'
    )
