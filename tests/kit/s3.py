"""A real S3 server for tests: moto in a process of its own, on a port that the kernel picks, gone with the tests."""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import s3fs

_START_WITHIN_S = 60.0

# The server dies with the process that started it, even if that one is killed: PR_SET_PDEATHSIG, SIGKILL.
_PROGRAM = """
import ctypes
ctypes.CDLL(None).prctl(1, 9)
from moto.server import main
main(["--host", "127.0.0.1", "--port", "0"])
"""


@dataclass(frozen=True)
class S3Server:
    """Where the server listens, and how to reach it."""

    endpoint_url: str
    key: str = "AKIATESTKEY"
    secret: str = field(default="a-secret-of-the-tests", repr=False)

    @property
    def options(self) -> dict[str, Any]:
        return {"endpoint_url": self.endpoint_url, "key": self.key, "secret": self.secret}

    def new_bucket(self, name: str) -> str:
        """Creates the bucket and returns its URL."""
        s3fs.S3FileSystem(**self.options).mkdir(name)
        return f"s3://{name}"


@contextlib.contextmanager
def s3_server() -> Iterator[S3Server]:
    """Runs the server for as long as the block lasts."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", _PROGRAM],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
    )
    try:
        yield S3Server(_announced_url(process))
    finally:
        process.kill()
        process.communicate(timeout=30)


def _announced_url(process: subprocess.Popen[bytes]) -> str:
    """Waits until the server says where it listens. Raises with its output if it does not."""
    assert process.stdout is not None
    deadline, said = time.monotonic() + _START_WITHIN_S, b""
    with selectors.DefaultSelector() as ready:
        ready.register(process.stdout, selectors.EVENT_READ)
        while not (found := re.search(rb"Running on (http://127\.0\.0\.1:\d+)", said)):
            if not ready.select(max(0.0, deadline - time.monotonic())) or not (
                more := os.read(process.stdout.fileno(), 65536)
            ):
                raise TimeoutError(f"moto did not start within {_START_WITHIN_S:g} s; it said: {said.decode()!r}")
            said += more
    return found[1].decode()
