"""Modules that ask for GPUs while they are imported: forks can use them all the same. It takes a fork to see that."""

from __future__ import annotations

import importlib
import os

import pytest

from elastic.launch.fork_server.importing import ARROW_MALLOC, NVML_CHECK, Importing


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


def test_the_allocator_of_pyarrow_starts_no_thread_that_a_fork_would_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    """`import datasets` made the fork server unfit, and each replacement a fresh interpreter."""
    monkeypatch.delenv(ARROW_MALLOC, raising=False)
    with Importing(cuda=False) as importing:
        assert os.environ[ARROW_MALLOC] == "background_thread:false"
    assert ARROW_MALLOC not in os.environ
    assert importing.found() is None

    monkeypatch.setenv(ARROW_MALLOC, "narenas:1")
    with Importing(cuda=False):
        assert os.environ[ARROW_MALLOC] == "narenas:1"
    assert os.environ[ARROW_MALLOC] == "narenas:1"
