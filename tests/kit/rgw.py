"""Ceph's RADOS Gateway, a real S3 server from Debian's packages: on free ports of loopback, objects in memory.

A guardian process starts ceph-mon, ceph-osd and radosgw and says where the server listens. When the tests end, or are
killed, it loses its standard input or gets SIGTERM from the kernel; then it kills the three, and removes their folder.
They die with it too, should it be killed itself.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import json
import os
import secrets
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.kit.s3 import S3Server

PACKAGES = "radosgw ceph-mon ceph-osd ceph-common"
HOW_TO_INSTALL = f"apt-get update && apt-get install -y --no-install-recommends {PACKAGES}"
_PROGRAMS = ("ceph-mon", "ceph-osd", "radosgw", "radosgw-admin", "ceph", "monmaptool")
_START_WITHIN_S = 240.0
_TRIES = 3  # another process may take the monitor's port between our looking and its binding
_DIES_WITH_US = ("setpriv", "--pdeathsig", "KILL")
_PR_SET_PDEATHSIG = 1

_CONF = """
[global]
fsid = {fsid}
mon host = v2:127.0.0.1:{mon_port}
mon initial members = a
public addr = 127.0.0.1
cluster addr = 127.0.0.1
ms bind msgr1 = false
auth cluster required = cephx
auth service required = cephx
auth client required = cephx
keyring = {folder}/keyring
mon data = {folder}/mon
osd data = {folder}/osd
run dir = {folder}
admin socket = {folder}/$name.asok
log file = {folder}/$name.log
osd objectstore = memstore
memstore device bytes = 4294967296
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 1
osd pool default pgp num = 1
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
osd class load list = *
osd class default list = *
mon allow pool size one = true
mon max pg per osd = 1000
paxos propose interval = 0.05
paxos min wait = 0.01
rgw thread pool size = 32
rgw enable usage log = false
rgw run sync thread = false
rgw enable quota threads = false
rgw enable lc threads = false
rgw enable gc threads = false
[client.rgw]
rgw frontends = beast endpoint=127.0.0.1:{s3_port}
"""


def missing() -> list[str]:
    """Ceph's programs that this machine lacks."""
    return [name for name in _PROGRAMS if shutil.which(name) is None]


@contextlib.contextmanager
def rgw_server() -> Iterator[S3Server]:
    """Runs the server for as long as the block lasts. Raises RuntimeError with Ceph's output if it does not start."""
    guardian = subprocess.Popen(
        [sys.executable, "-m", "tests.kit.rgw"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C ends the tests; the guardian then cleans up
        cwd=Path(__file__).parents[2],
    )
    try:
        assert guardian.stdout is not None
        with selectors.DefaultSelector() as ready:
            ready.register(guardian.stdout, selectors.EVENT_READ)
            if not ready.select(_START_WITHIN_S):
                raise TimeoutError(f"Ceph did not start within {_START_WITHIN_S:g} s")
        told = json.loads(guardian.stdout.readline() or '{"error": "the guardian died"}')
        if "error" in told:
            raise RuntimeError(f"Ceph's RADOS Gateway did not start:\n{told['error']}")
        yield S3Server(**told)
    finally:
        guardian.terminate()  # its standard input does not end as long as another child of ours has it open
        guardian.communicate(timeout=60)


class _Cluster:
    """One monitor, one object store in memory and one gateway, in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fsid = str(uuid.uuid4())
        self.mon_port, self.s3_port = _free_ports(2)
        self.daemons: list[subprocess.Popen[bytes]] = []
        self.environment = {**os.environ, "CEPH_CONF": str(folder / "ceph.conf")}

    def start(self) -> dict[str, str]:
        """Returns the fields of an `S3Server` when it answers."""
        self._configure()
        monmap = ["monmaptool", "--create", "--fsid", self.fsid]
        self._run(*monmap, "--addv", "a", f"[v2:127.0.0.1:{self.mon_port}]", self.folder / "monmap")
        keyring: list[str | Path] = ["--keyring", self.folder / "keyring"]
        self._run("ceph-mon", "-i", "a", "--mkfs", "--monmap", self.folder / "monmap", *keyring)
        self._daemon("ceph-mon", "-i", "a", "-f")
        osd = str(uuid.uuid4())
        self._run("ceph", "osd", "new", osd)  # waits for the monitor
        self._run("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", osd)
        self._daemon("ceph-osd", "-i", "0", "-f")
        self._daemon("radosgw", "-n", "client.rgw", "-f")
        user = ["user", "create", "--uid=tests", "--display-name=tests", "--gen-access-key", "--gen-secret"]
        [keys] = json.loads(self._run("radosgw-admin", *user))["keys"]
        self._until(self._answers, "the gateway to answer")
        return {
            "endpoint_url": f"http://127.0.0.1:{self.s3_port}",
            "key": keys["access_key"],
            "secret": keys["secret_key"],
        }

    def stop(self) -> None:
        for daemon in self.daemons:
            daemon.kill()
        for daemon in self.daemons:
            daemon.wait(timeout=30)

    def said(self) -> str:
        """The last words of every daemon."""
        logs = sorted(self.folder.glob("*.out"))
        return "\n".join(f"{log.name}: {log.read_text(errors='replace')[-2000:]}" for log in logs)

    def _configure(self) -> None:
        for name in ("mon", "osd"):
            (self.folder / name).mkdir()
        conf = _CONF.format(fsid=self.fsid, mon_port=self.mon_port, s3_port=self.s3_port, folder=self.folder)
        (self.folder / "ceph.conf").write_text(conf)
        users = {"mon.": ("mon",), **dict.fromkeys(("client.admin", "osd.0", "client.rgw"), ("mon", "osd", "mgr"))}
        keyring = ""
        for user, rights in users.items():
            caps = "".join(f'\tcaps {right} = "allow *"\n' for right in rights)
            keyring += f"[{user}]\n\tkey = {_cephx_key()}\n{caps}"
        (self.folder / "keyring").write_text(keyring)

    def _run(self, *command: str | Path) -> bytes:
        done = subprocess.run(
            [*_DIES_WITH_US, *command],
            env=self.environment,
            capture_output=True,
            timeout=_START_WITHIN_S,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{command[0]} {command[1]}: exit {done.returncode}\n{done.stderr.decode()[-2000:]}")
        return done.stdout

    def _daemon(self, *command: str) -> None:
        with open(self.folder / f"{command[0]}.out", "wb") as out:
            process = subprocess.Popen(
                [*_DIES_WITH_US, *command],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        self.daemons.append(process)

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _START_WITHIN_S
        while not condition():
            if any(daemon.poll() is not None for daemon in self.daemons):
                raise RuntimeError(f"a daemon ended while we waited for {what}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"waited {_START_WITHIN_S:g} s for {what}")
            time.sleep(0.05)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.s3_port), timeout=5):
                return True
        except OSError:
            return False


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


def _cephx_key() -> str:
    """A cephx secret as `ceph-authtool` makes it: type 1, time of creation, length, 16 random bytes."""
    return base64.b64encode(struct.pack("<hiih", 1, int(time.time()), 0, 16) + secrets.token_bytes(16)).decode()


def _guard() -> None:
    """Runs a cluster until standard input ends or SIGTERM comes; see the file's promise."""

    cleaning = False

    def leave(*_: Any) -> None:
        if not cleaning:
            raise SystemExit

    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    error = ""
    for _ in range(_TRIES):
        folder = Path(tempfile.mkdtemp(prefix="rgw-"))
        cluster = _Cluster(folder)
        cleaning = False
        try:
            try:
                try:
                    told = cluster.start()
                except (RuntimeError, OSError, subprocess.TimeoutExpired) as failed:
                    error = f"{failed}\n{cluster.said()}"
                    continue
                print(json.dumps(told), flush=True)
                sys.stdin.read()
                return
            finally:
                cleaning = True  # the signal may come right here, with the end of standard input
        finally:
            cleaning = True
            cluster.stop()
            shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps({"error": error}), flush=True)


if __name__ == "__main__":
    _guard()
