"""Two nodes whose URLs are folders of their own: the storage is no witness of who goes on, whatever lies in them."""

from __future__ import annotations

import socket
from pathlib import Path

from elastic_checkpoint import Checkpointer
from tests.kit.launch import Launch

WITHIN_S = 240.0
PROGRAM = Path(__file__).parents[1] / "kit" / "programs" / "small.py"


def test_a_folder_that_has_a_history_of_its_own_is_not_taken_for_the_coordinator_s(tmp_path: Path) -> None:
    """It has a claim of that number, and newer ones, where the other node is the coordinator, as either may be. Two
    sides of a cut network would each take the next claim of its own folder, and both go on."""
    for node in ("one", "two"):
        (tmp_path / node).mkdir()
    for _ in range(3):
        with Checkpointer(tmp_path / "two" / "run") as earlier:
            earlier.claim()
    port = free_port()
    meet = ["--nnodes=2:2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=unshared"]
    command = ["run", *meet, PROGRAM, "/proc/self/cwd/run", "--steps=4"]  # one URL, and a folder of each node's own
    with Launch("elastic", command, cwd=tmp_path / "one") as one:
        one.wait_for(lambda: is_open(port), "a place to meet", within_s=WITHIN_S)
        with Launch("elastic", command, cwd=tmp_path / "two") as two:
            said = one.succeed(within_s=WITHIN_S) + two.succeed(within_s=WITHIN_S)
    assert "does not see the claim that rank 0 wrote" in said
    assert "the folder is not shared" in said


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
