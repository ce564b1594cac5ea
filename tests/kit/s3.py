"""A real S3 server for tests: moto in a process of its own, on a port that the kernel picks, gone with the tests."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, Any

import s3fs

_START_WITHIN_S = 240.0

# The server dies with the process that started it, even if that one is killed: PR_SET_PDEATHSIG, SIGKILL. Of two puts
# that must not write over anything, S3 refuses one; moto looks, and then writes: on a busy machine both may win.
_PROGRAM = """
import ctypes
import threading
ctypes.CDLL(None).prctl(1, 9)
from moto.s3.responses import S3Response
from moto.server import main
put, one_at_a_time = S3Response.put_object, threading.Lock()
def put_object(self):
    with one_at_a_time:
        return put(self)
S3Response.put_object = put_object
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
    with tempfile.TemporaryFile() as said:  # not a pipe, which is full after some 700 requests, and stops the server
        process = subprocess.Popen(
            [sys.executable, "-u", "-c", _PROGRAM], stdout=said, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
        )
        try:
            yield S3Server(_announced_url(process, said))
        finally:
            process.kill()
            process.wait(timeout=30)


def _announced_url(process: subprocess.Popen[bytes], said: IO[bytes]) -> str:
    """Waits until the server says where it listens. Raises with its output if it does not."""
    deadline = time.monotonic() + _START_WITHIN_S
    while True:
        text = os.pread(said.fileno(), 65536, 0)
        if found := re.search(rb"Running on (http://127\.0\.0\.1:\d+)", text):
            return found[1].decode()
        if process.poll() is not None or time.monotonic() > deadline:
            raise TimeoutError(f"moto did not start within {_START_WITHIN_S:g} s; it said: {text.decode()!r}")
        time.sleep(0.05)
