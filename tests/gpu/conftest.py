"""Where the tests of this folder train: DEVICE, by default this machine's GPUs. DEVICE=cpu rehearses them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

DEVICE = os.environ.get("DEVICE") or "cuda"


@pytest.fixture(scope="session", autouse=True)
def device() -> torch.device:
    if DEVICE == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a machine with a CUDA GPU")
    return torch.device(DEVICE)


@pytest.fixture(scope="session")
def elastic_script() -> Path:
    return Path(__file__).parent / "program.py"
