"""Whoever forks a worker from a process with torch in it must notice a script that could tell."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from elastic.launch.fork_server.preloaded import Preloaded


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The script's; it stands where python puts it."""
    monkeypatch.setattr(sys, "path", ["/bin", *sys.path])
    return tmp_path


def at_the_script(folder: Path) -> Preloaded:
    made = Preloaded()
    sys.path[0] = str(folder)
    return made


def test_a_script_with_modules_of_its_own_names_shows_nothing(folder: Path) -> None:
    (folder / "my_model.py").write_text("")
    (folder / "torch").mkdir()  # results, say: without an __init__.py python passes it over
    assert at_the_script(folder).shows([]) is None


@pytest.mark.parametrize("own", ["numpy.py", "typing_extensions.py", "torch/__init__.py", "numpy.cpython-311.so"])
def test_a_module_that_the_script_would_have_found_first_shows(folder: Path, own: str) -> None:
    import numpy
    import torch
    import typing_extensions

    assert [numpy, torch, typing_extensions]
    (folder / own).parent.mkdir(exist_ok=True)
    (folder / own).write_text("")
    found = at_the_script(folder).shows([])
    assert found == f"{folder} has a module {own.partition('.')[0].partition('/')[0]} of its own"


def test_folders_that_the_script_adds_are_looked_at_too(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    more = tmp_path_factory.mktemp("more")
    (more / "numpy.py").write_text("")
    loaded = at_the_script(folder)
    assert loaded.shows([]) is None
    sys.path.insert(0, str(more))
    assert loaded.shows([]) == f"{more} has a module numpy of its own"


def test_what_was_loaded_from_the_folder_where_the_agent_was_started_shows(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`python -m elastic run` looks in the current folder first, and python in the folder of the script alone."""
    here = tmp_path_factory.mktemp("here")
    (here / "met_by_accident.py").write_text("")
    monkeypatch.syspath_prepend(here)
    import met_by_accident  # type: ignore[import-not-found]

    assert met_by_accident
    monkeypatch.setattr(sys, "path", [str(here), *sys.path[1:]])
    assert at_the_script(folder).shows([]) == f"met_by_accident would not be loaded from {here}"
    del sys.modules["met_by_accident"]


@pytest.mark.parametrize("variable", ["OMP_NUM_THREADS", "MKL_CBWR", "TORCH_LOGS", "ATEN_CPU_CAPABILITY", "ANY_OTHER"])
def test_a_variable_that_torch_might_read_shows(folder: Path, variable: str) -> None:
    assert at_the_script(folder).shows([variable]) == f"{variable} is set, which may have been meant for torch"


def test_variables_of_other_libraries_do_not_show(folder: Path) -> None:
    assert at_the_script(folder).shows(["TOKENIZERS_PARALLELISM", "HF_HUB_OFFLINE", "WANDB_MODE"]) is None


@pytest.mark.parametrize(
    ("line", "shows"),
    [
        ("os.environ['OMP_NUM_THREADS'] = str(cores())", True),
        ("environ |= {'OMP_NUM_THREADS': count}", True),
        ("os.environ.setdefault('OMP_NUM_THREADS', count)", True),
        ("del os.environ['OMP_NUM_THREADS']", True),
        ("sys.path[:0] = folders()", True),
        ("rank = int(os.environ['LOCAL_RANK'])", False),
        ("if os.environ.get('OMP_NUM_THREADS') == '2':", False),
        ("import settings_of_ours", True),
        ("    from settings_of_ours import threads", True),
        ("import json", False),
        ("import torch\nimport settings_of_ours", False),
    ],
)
def test_what_a_worker_may_set_before_it_asks_for_torch_shows_in_the_source(
    folder: Path, line: str, shows: bool
) -> None:
    assert at_the_script(folder).may_show(["import os", *line.splitlines()]) is shows


def test_a_folder_that_is_not_there_is_no_error(folder: Path) -> None:
    assert at_the_script(folder / "nowhere").shows([]) is None
