"""What several tests of workers ask for."""

from __future__ import annotations

import contextlib
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic.drill.machine import processes
from elastic.drill.machine.leftovers import Snapshot
from tests.kit.agents import WITHIN_S, Run
from tests.kit.launch import POLL_S, Launch
from tests.kit.ranks import agent_store


@pytest.fixture
def port() -> Iterator[int]:
    """Of a store as torchrun's agent hosts one."""
    with agent_store() as port:
        yield port


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """run(source, *flags, args=[...]): the script of that source under `elastic run`. Nothing may be left of it."""
    launches: list[Launch] = []
    (tmp_path / "tmp").mkdir()
    before = Snapshot.take(tmp_path)
    seen: set[int] = set()
    with contextlib.ExitStack() as stack:

        def start(source: str, *flags: str, args: tuple[str, ...] = (), env: dict[str, str] | None = None) -> Launch:
            script = tmp_path / "script.py"
            script.write_text(textwrap.dedent(source))
            environ = {"TMPDIR": str(tmp_path / "tmp"), **(env or {})}
            launch = Launch("elastic", ["run", *flags, script, *args], env=environ)
            launches.append(stack.enter_context(launch))
            return launch

        yield start
        for launch in launches:
            launch.finish(within_s=WITHIN_S)
            seen.update(launch.pids)
            deadline = time.monotonic() + 10
            while (left := launch.pids) and time.monotonic() < deadline:
                time.sleep(POLL_S)
            assert not left, [processes.describe(pid) for pid in left]
    assert before.new(tmp_path, seen) == []
