"""Three nodes, of which the first that comes to a moment is killed there, as the run forms."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from elastic.events.reading import read_events
from tests.kit.agents import meet
from tests.kit.launch import Launch
from tests.kit.programs.dies_forming import MOMENTS, STORE

pytestmark = pytest.mark.nightly(sample=1, of="losses while a run forms")

WITHIN_S = 240.0
SMALL = Path(__file__).parents[1] / "kit" / "programs" / "small.py"
# torch's own wait for whoever is lost would not end within this test; and all three are in its round
CONF = "--rdzv-conf=read_timeout=900,last_call_timeout={last_call}"


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.nightly(sample=2)
@pytest.mark.parametrize(
    ("moment", "by_url"),
    [(moment, by_url) for moment in MOMENTS for by_url in (True, False) if by_url or moment != STORE],
)
def test_those_who_are_left_go_on_together_and_wait_for_nobody(
    stack: ExitStack, tmp_path: Path, moment: str, by_url: bool
) -> None:
    """They waited for a minute, or parted: one trained alone, and the other one came a minute and a half later."""
    url, was_killed = tmp_path / "run", tmp_path / "killed"
    flags = meet("2:3" if moment == STORE else "1:3")
    if by_url:
        flags[2] = f"--rdzv-endpoint={url}"
    else:
        host, port = flags[2].partition("=")[2].split(":")
        stays = TCPStore(host, int(port), is_master=True, wait_for_workers=False, timeout=timedelta(seconds=WITHIN_S))
        stack.callback(stays.num_keys)
    flags.append(CONF.format(last_call=1 if moment == STORE else 900))
    args = [moment, was_killed, "run", "--no-status", *flags, SMALL, url, "--steps=6"]
    nodes = [stack.enter_context(Launch("tests.kit.programs.dies_forming", args)) for _ in range(3)]
    assert statuses(nodes) == [-9, 0, 0], [node.output for node in nodes]
    assert first_view(url) == 2


def test_a_node_that_comes_in_the_place_of_one_that_was_lost_is_all_that_the_others_wait_for(
    stack: ExitStack, tmp_path: Path
) -> None:
    """They had met, and waited for its hub until their time was up."""
    url, was_killed = tmp_path / "run", tmp_path / "killed"
    flags = ["--nnodes=3:3", "--rdzv-backend=c10d", f"--rdzv-endpoint={url}", "--rdzv-id=meeting"]
    args = ["has met the others", was_killed, "run", "--no-status", *flags, SMALL, url, "--steps=6"]
    nodes = [stack.enter_context(Launch("tests.kit.programs.dies_forming", args)) for _ in range(3)]
    deadline = time.monotonic() + WITHIN_S
    while not was_killed.exists():
        assert time.monotonic() < deadline, [node.output for node in nodes]
        time.sleep(0.05)
    nodes.append(stack.enter_context(Launch("tests.kit.programs.dies_forming", args)))
    assert statuses(nodes) == [-9, 0, 0, 0], [node.output for node in nodes]
    assert first_view(url) == 3


STORE_ALONE = """
import sys, time
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", int(sys.argv[1]), is_master=True, wait_for_workers=False)
print("here", flush=True)
time.sleep(600)
"""


def test_a_node_that_is_told_to_leave_does_so_though_the_store_is_silent(stack: ExitStack, tmp_path: Path) -> None:
    """Its main thread waited within torch for a machine without power, and it was killed once its minute was over."""
    (tmp_path / "store.py").write_text(STORE_ALONE)
    flags = meet("2:2")
    endpoint = flags[2].partition("=")[2]
    command = [sys.executable, str(tmp_path / "store.py"), endpoint.partition(":")[2]]
    store = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
    stack.callback(store.kill)
    assert store.stdout is not None
    assert store.stdout.readline() == b"here\n"
    node = stack.enter_context(Launch("elastic", ["run", "--no-status", *flags, SMALL, tmp_path / "run"]))
    node.wait_for(lambda: f"waiting at {endpoint}" in node.output, "the rendezvous", within_s=WITHIN_S)
    store.send_signal(signal.SIGSTOP)
    time.sleep(1)  # it has asked the store by then, ten times over
    node.send(signal.SIGTERM)
    assert node.finish(within_s=WITHIN_S) == 0, node.output
    assert "has left (SIGTERM) before it was in the run" in node.output


def statuses(nodes: list[Launch]) -> list[int]:
    """Of all, once they have ended."""
    deadline = time.monotonic() + WITHIN_S
    while any(node.process.poll() is None for node in nodes):
        assert time.monotonic() < deadline, [node.output for node in nodes]
        time.sleep(0.05)
    return sorted(node.process.poll() or 0 for node in nodes)


def first_view(url: Path) -> int:
    """How many workers it had."""
    formed = [event for event in read_events(url) if event["event"] == "view_formed"]
    return len(formed[0]["workers"])
