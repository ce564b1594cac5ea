"""A test of tests/pure and of tests/one_process starts no process but a run's writer, and git for its manifest; what
does, stands in tests/processes."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from elastic_checkpoint.save.writer import WRITER_MODULE

_STARTS = {"os.fork", "os.forkpty", "os.posix_spawn", "os.system", "subprocess.Popen"}
_ALLOWED = (
    WRITER_MODULE,  # which a run starts once it has trained for two seconds, on a slow machine
    "'git', '--no-optional-locks'",  # asked for a run's manifest, where pytest has a script's name
    "'g++', '--version'",  # asked of each run's compiler, where another test of this process has compiled
    "'g++', '-v'",
)
_inside = False


@pytest.fixture(autouse=True)
def no_process_is_started() -> Iterator[None]:
    global _inside
    _inside = True
    yield
    _inside = False


def _refuse(event: str, arguments: tuple[object, ...]) -> None:
    if _inside and event in _STARTS and not any(one in str(arguments) for one in _ALLOWED):
        pytest.fail(f"{event}{arguments}: a test that starts a process stands in tests/processes")


sys.addaudithook(_refuse)
