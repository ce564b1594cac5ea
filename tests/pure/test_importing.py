"""What a module does while it is imported, and forks must not share, is found and named."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
import threading
from pathlib import Path

import pytest
import torch

from elastic.launch.fork_server.importing import RANK_VARIABLES, WORKER_VARIABLES, Importing
from elastic_checkpoint import linux


def imported(folder: Path, name: str, source: str, monkeypatch: pytest.MonkeyPatch) -> Importing:
    (folder / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(str(folder))
    for variable in (*RANK_VARIABLES, *WORKER_VARIABLES):
        monkeypatch.delenv(variable, raising=False)
    with Importing(cuda=False) as importing:  # what forks lose of CUDA is asked in a fork: tests/processes
        try:
            monkeypatch.setitem(sys.modules, "kept_by_a_test", importlib.import_module(name))
        except KeyError:
            pass
        finally:
            sys.modules.pop(name, None)
    return importing


@pytest.mark.parametrize(
    ("source", "variable"),
    [
        ("import os; rank = os.environ.get('LOCAL_RANK', 0)", "LOCAL_RANK"),
        ("import os; rank = os.getenv('RANK')", "RANK"),
        ("import os; alone = 'WORLD_SIZE' not in os.environ", "WORLD_SIZE"),
        ("from os import environ; rank = int(environ['LOCAL_RANK'])", "LOCAL_RANK"),
        ("import os; os.environ.setdefault('MASTER_ADDR', 'localhost')", "MASTER_ADDR"),
        ("import os\nclass Config:\n    rank: int = int(os.environ.get('RANK', '0'))", "RANK"),
        ("import os\ndef of():\n    return os.environ.get('RANK')\nRANK = of()", "RANK"),
        ("import os; ENV = dict(os.environ)", "and keeps the whole environment"),
        ("import os; ENV = os.environ.copy()", "and keeps the whole environment"),
        ("import os; ENV = {k.lower(): v for k, v in os.environ.items()}", "and keeps the whole environment"),
        ("import os; ENV = list(os.environ.values()); ENV.append(ENV)", "and keeps the whole environment"),
    ],
)
def test_a_module_that_reads_a_rank_variable_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, variable: str
) -> None:
    """What it computes from there is each worker's own: one process must not read it for all."""
    found = imported(tmp_path, "reader_probe", source, monkeypatch).found()
    assert found is not None
    assert f"reader_probe ({tmp_path / 'reader_probe.py'}, line" in found
    assert f"reads {variable}" in found
    os.environ.get("RANK")  # watched no more
    assert Importing(cuda=False).found() is None


@pytest.mark.parametrize("makes", ["tempfile.mkdtemp()", "tempfile.TemporaryDirectory()"])
def test_a_module_that_makes_a_temporary_folder_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, makes: str
) -> None:
    """The first worker that ended, or left, took it away from all others, and from those that were forked later."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    kept: list[object] = []
    monkeypatch.setattr(sys, "kept_by_a_test", kept, raising=False)
    source = f"import sys, tempfile; sys.kept_by_a_test.append({makes})"
    importing = imported(tmp_path, "folder_probe", source, monkeypatch)
    (folder,) = (tmp_path / "tmp").iterdir()
    found = importing.found()
    assert found is not None
    assert f"folder_probe ({tmp_path / 'folder_probe.py'}, line 1) makes the temporary folder {folder}" in found
    assert not folder.exists()
    assert importing.found() is None

    source = "import tempfile\nwith tempfile.TemporaryDirectory(): pass"
    assert imported(tmp_path, "passing_probe", source, monkeypatch).found() is None


def test_what_forks_would_share_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two forks that read one open file move each other's place in it, and train on other examples."""
    data = tmp_path / "examples"
    data.write_bytes(b"1234")
    kept: list[object] = []
    monkeypatch.setattr(sys, "kept_by_a_test", kept, raising=False)
    source = f"import sys; sys.kept_by_a_test.append(open({str(data)!r}, 'rb'))"
    found = imported(tmp_path, "file_probe", source, monkeypatch).found()
    assert found is not None
    assert f"opens {data}" in found
    kept[0].close()  # type: ignore[attr-defined]

    log = f"import sys; sys.kept_by_a_test.append(open({str(tmp_path / 'log')!r}, 'a'))"
    assert imported(tmp_path, "log_probe", log, monkeypatch).found() is None
    kept[1].close()  # type: ignore[attr-defined]

    over = threading.Event()
    monkeypatch.setattr(sys, "over_by_a_test", over, raising=False)
    source = "import sys, threading; threading.Thread(target=sys.over_by_a_test.wait, name='mine').start()"
    found = imported(tmp_path, "thread_probe", source, monkeypatch).found()
    over.set()
    assert found is not None
    assert "starts threads: " in found
    assert "mine" in found


@pytest.mark.parametrize(
    "source",
    [
        "import os; MINE = {k: v for k, v in os.environ.items() if k.startswith('MINE_')}",
        "import os\nfor name in os.environ:\n    if name.startswith('MINE_'): print(os.environ[name])",
        "import os; before = dict(os.environ); os.environ.update(before); del before",
        "import os; names = list(os.environ)",
        "import os\nbefore = dict(os.environ)\nos.environ.clear()\nos.environ.update(before)\nbefore = None",
    ],
)
def test_a_module_that_looks_through_all_variables_and_keeps_none_is_not_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    """fsspec and tqdm do, whom most of what people import brings along: wherever they are installed. Each worker, and
    each replacement, imported all of it afresh."""
    variables = dict(os.environ)
    assert imported(tmp_path, "looking_probe", source, monkeypatch).found() is None
    assert variables.keys() - os.environ.keys() <= {*RANK_VARIABLES, *WORKER_VARIABLES}
    assert os.environ.keys() <= variables.keys()


def test_torch_still_knows_whether_a_fork_can_use_cuda() -> None:
    """It is private to torch: launch/fork_server/importing.py would take every process for lost, or none."""
    assert torch.cuda._is_in_bad_fork() is False


@pytest.mark.parametrize(
    ("device", "shared"), [("/dev/nvidiactl", False), ("/dev/nvidia0", False), ("/dev/nvidia-uvm", True)]
)
def test_counting_gpus_is_harmless_and_initialising_them_is_not(
    device: str, shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch knows of its own CUDA alone; another library's (cupy, jax) opens the driver's memory, too."""
    (tmp_path / "opened").touch()
    with Importing(cuda=False) as importing, (tmp_path / "opened").open() as stands_for_it:
        names = linux.descriptors()
        monkeypatch.setattr(linux, "descriptors", lambda: {**names, stands_for_it.fileno(): device})
        found = importing.found()
    assert (found is not None and device in found) == shared, found
