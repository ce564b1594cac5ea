"""A machine whose process 1 is a real systemd, on a host of tests/kit/hosts.py, started by user data as by cloud-init.

It has the host's network, and namespaces and a control group of its own. Of the units that this machine has, it sees
none but the few targets that it needs; where the units of a test say what is to run. Checked with systemd 252.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from elastic.drill.hosts.network import DIES_WITH_US, WITHIN_S, name, until
from tests.kit.hosts import Hosts

_SYSTEMD = Path("/lib/systemd/systemd")
_UNITS = Path("/lib/systemd/system")
_NEEDED = (
    *(f"{target}.target" for target in ("basic", "sysinit", "multi-user", "network", "network-online")),
    *(f"{target}.target" for target in ("shutdown", "umount", "final", "poweroff")),
    "systemd-poweroff.service",
)
_USER_DATA = """
[Unit]
Description=What this machine is told when it is started
[Service]
Type=oneshot
ExecStart=/bin/bash {user_data}
StandardOutput=append:{output}
StandardError=append:{output}
"""
_OUTPUT = "[Service]\nStandardOutput=append:{output}\nStandardError=append:{output}\nEnvironment={environment}\n"
_BOOT = """
set -e
echo $$ > "$1/cgroup.procs"
exec unshare --mount --pid --uts --ipc --cgroup --fork --kill-child sh -c '
    set -e
    mount --make-rprivate /
    mount -t proc proc /proc
    mount -t tmpfs tmpfs /sys/fs/cgroup
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    mount -t tmpfs tmpfs /run
    mount -t tmpfs tmpfs /dev/shm
    mount -t tmpfs tmpfs /var/tmp
    mount --bind "$2/units" /lib/systemd/system
    mount --bind "$2/nothing" /lib/systemd/system-generators
    mount --bind "$2/etc" /etc/systemd/system
    mount --bind "$2/hostname" /etc/hostname
    container=tests exec /lib/systemd/systemd --system --unit=multi-user.target --show-status=no
' boot "$@"
"""


def missing() -> str | None:
    """Why there can be no such machine here."""
    if not _SYSTEMD.exists():
        return "no systemd: apt-get install systemd"
    return None if _control_groups() is not None else "no control groups of version 2"


class Machine:
    """Boots when it is made, and runs these units; the last one is enabled by its user data.

    output  of user data and units
    environment  of all units, for what its image would hold
    """

    def __init__(
        self, hosts: Hosts, host: int, folder: Path, unit: str, user_data: str, *, environment: Mapping[str, str]
    ) -> None:
        self.output = folder / "output"
        groups = _control_groups()
        assert groups is not None
        self._group = groups / f"elastic-tests-{os.getpid()}-{host}-{folder.name}"
        etc = folder / "etc"
        for made in (etc / "multi-user.target.wants", etc / "elastic.service.d", folder / "units", folder / "nothing"):
            made.mkdir(parents=True)
        for needed in _NEEDED:
            shutil.copy(_UNITS / needed, folder / "units" / needed)
        (folder / "hostname").write_text(f"{name(host)}\n")
        (folder / "user-data").write_text(user_data)
        (etc / "elastic.service").write_text(unit)
        set_to = " ".join(f"{key}={value}" for key, value in environment.items())
        (etc / "elastic.service.d/output.conf").write_text(_OUTPUT.format(output=self.output, environment=set_to))
        (etc / "user-data.service").write_text(_USER_DATA.format(user_data=folder / "user-data", output=self.output))
        (etc / "multi-user.target.wants/user-data.service").symlink_to("../user-data.service")
        self._group.mkdir()
        self._process = subprocess.Popen(
            [*DIES_WITH_US, *hosts.inside(host), "sh", "-c", _BOOT, "sh", str(self._group), str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        hosts.open.callback(self.crash)

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def switched_itself_off(self) -> bool:
        """The kernel's word for it, of a process 1 that asks for it in a namespace."""
        return self._process.poll() == -signal.SIGINT

    def said(self) -> str:
        return self.output.read_text(errors="replace") if self.output.exists() else ""

    def crash(self) -> None:
        """All that runs there is killed, together. Harmless when repeated."""
        self._process.kill()
        self._process.wait(WITHIN_S)
        until(self._is_left, f"the end of {self._group}")

    def _is_left(self) -> bool:
        """Whether its control group could be removed, the innermost first."""
        with suppress(FileNotFoundError, OSError):
            for path, _, _ in os.walk(self._group, topdown=False):
                os.rmdir(path)
        return not self._group.exists()


def _control_groups() -> Path | None:
    """Where those of version 2 are mounted."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount, _, kind = line.partition(" - ")
        if kind.startswith("cgroup2 "):
            return Path(mount.split()[4])
    return None
