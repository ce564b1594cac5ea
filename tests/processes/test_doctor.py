"""`elastic doctor` finds what is wrong with a machine, in its own line, and says what to do."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from elastic.__main__ import main
from tests.kit.doctor import doctor, wrong
from tests.kit.hosts import off_by, preloaded

pytestmark = pytest.mark.nightly(sample=4, of="what doctor finds")

LINES = [
    *("python", "torch", "devices", "memory", "/dev/shm", "open files"),
    *("interface", "ports", "other nodes", "storage", "exclusive creation", "clock", "launcher"),
]


def test_a_healthy_machine_has_a_line_for_each_look_and_nothing_is_left_of_them(tmp_path: Path) -> None:
    """At a URL that is new, and at one that is not."""
    status, found = doctor(str(tmp_path / "runs" / "new"), "--port-range=20000-30000")
    assert list(found) == LINES
    assert wrong(found) == []
    assert status == 0
    assert list(tmp_path.iterdir()) == []

    (tmp_path / "mine.txt").touch()
    assert doctor(str(tmp_path))[0] == 0
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize(
    "arguments", [["--ports"], ["--port-range=7"], ["a", "b"], ["--rdzv-endpoint=h1:70000000"]], ids=" ".join
)
def test_wrong_usage_is_status_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["doctor", *arguments])
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert said.err.startswith("elastic doctor: ")
    assert said.out == ""


def test_a_full_dev_shm() -> None:
    """A tmpfs of 1 MB lies over it, as in a container that was given so much."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("needs root, and util-linux")
    mounted = 'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$@"'
    status, found = doctor(within=["unshare", "--mount", "sh", "-c", mounted, "sh"])
    assert status == 1
    assert wrong(found) == ["/dev/shm"]
    assert "No space left" in found["/dev/shm"]["found"]
    assert "--shm-size" in found["/dev/shm"]["next"]


def test_too_few_open_files() -> None:
    status, found = doctor(within=["sh", "-c", 'ulimit -n 256 && exec "$@"', "sh"])
    assert status == 1
    assert wrong(found) == ["open files"]
    assert "256" in found["open files"]["found"]
    assert "ulimit -n" in found["open files"]["next"]


def test_a_clock_an_hour_off_and_a_folder(tmp_path: Path) -> None:
    """A folder's files have the kernel's time; on a network mount, the server's."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler, for a clock that is wrong")
    (offset := tmp_path / "offset").write_bytes(off_by(-3600))
    status, found = doctor(str(tmp_path / "run"), preload=preloaded(tmp_path, offset))
    assert status == 1
    assert wrong(found) == ["clock"]
    assert re.search("(59 min 5. s|1 h) behind the storage's", found["clock"]["found"])
    assert "clock" in found["clock"]["next"]


def test_a_folder_that_takes_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    status, found = doctor(str(tmp_path / "file" / "run"))
    assert status == 1
    assert wrong(found) == ["storage"]
    assert "a file lies where a folder is needed" in found["storage"]["next"]
    assert "exclusive creation" not in found


def test_ports_that_are_taken() -> None:
    """Two of the range, of three that an agent may take."""
    status, found = doctor("--port-range=24680-24681")
    assert status == 1
    assert wrong(found) == ["ports"]
    assert "an agent takes two ports" in found["ports"]["next"]


def test_an_address_that_is_not_this_machines() -> None:
    status, found = doctor("--local-addr=192.0.2.77")
    assert status == 1
    assert wrong(found) == ["interface"]
    assert "this machine has" in found["interface"]["found"]
    assert "ports" not in found


def test_a_launcher_and_its_variables(tmp_path: Path) -> None:
    """Half a set; a whole one, of two who would meet nowhere; and one whose run has a URL."""
    half = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "ELASTIC_URL": ""}
    whole = {**half, "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}

    status, found = doctor(env=half)
    assert (status, wrong(found)) == (1, ["launcher"])
    assert "OMPI_COMM_WORLD_LOCAL_RANK" in found["launcher"]["found"]

    status, found = doctor(env=whole)
    assert (status, wrong(found)) == (1, ["launcher"])
    assert "ELASTIC_URL" in found["launcher"]["next"]

    status, found = doctor(env={**whole, "ELASTIC_URL": str(tmp_path)})
    assert (status, wrong(found)) == (0, [])
    assert found["launcher"]["found"].startswith("Open MPI: rank 1 of 2; OMPI_COMM_WORLD_LOCAL_RANK=0 ")
