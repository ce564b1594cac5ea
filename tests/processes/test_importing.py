"""Modules that ask for GPUs while they are imported: forks can use them all the same. It takes a fork to see that."""

from __future__ import annotations

import importlib
import os

import pytest

from elastic.launch.importing import NVML_CHECK, Importing


def test_modules_may_ask_for_gpus_and_leave_forks_able_to_use_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """`DEVICE = "cuda" if torch.cuda.is_available() else "cpu"` stands in many modules: torch asks the driver's library
    then, and the variable that makes it do so is gone when workers are forked. One that the user has set stays."""
    monkeypatch.delenv(NVML_CHECK, raising=False)
    with Importing(cuda=True) as importing:
        importlib.import_module("torch").cuda.is_available()
        assert os.environ[NVML_CHECK] == "1"
    assert NVML_CHECK not in os.environ
    assert importing.found() is None  # asks a fork of this process whether it could use CUDA

    monkeypatch.setenv(NVML_CHECK, "0")
    with Importing(cuda=True):
        assert os.environ[NVML_CHECK] == "0"
    assert os.environ[NVML_CHECK] == "0"
    with Importing(cuda=False):
        assert os.environ[NVML_CHECK] == "0"
