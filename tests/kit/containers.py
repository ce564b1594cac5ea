"""Images and containers of a test's own: nothing of theirs is seen, or left, among this machine's.

An image's base is made of Debian's packages, for no registry is asked. Needs root, buildah, podman, mmdebstrap, and
runc, which takes control groups of both versions at once.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PROGRAMS = ("buildah", "podman", "runc", "mmdebstrap")
_BASE = ("python3-venv", "ca-certificates", "libgomp1")
_CERTIFICATES = "/etc/ssl/certs"
# Those that a container gets otherwise are above what a machine without the right to raise its own has.
LIMITS = ("--ulimit", "nofile=16384:16384", "--ulimit", "nproc=16384:16384")


def missing() -> str | None:
    """Why there can be none here."""
    lacking = [program for program in _PROGRAMS if shutil.which(program) is None]
    if lacking:
        return f"no {', '.join(lacking)}: apt-get install --no-install-recommends {' '.join(_PROGRAMS)} iptables"
    return None if os.geteuid() == 0 else "needs root"


class Containers:
    """A store of images and containers in this folder. podman: a program that has it, for others that call podman"""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._storage = ["--root", str(folder / "images"), "--runroot", str(folder / "run")]
        self.podman = folder / "podman"
        how = [*self._storage, "--network-config-dir", str(folder / "networks"), "--runtime", "runc"]
        settings = folder / "containers.conf"
        settings.write_text('[engine]\nlock_type = "file"\n')  # or a file of podman's stays in /dev/shm
        self.podman.write_text(f'#!/bin/sh\nCONTAINERS_CONF={settings} exec podman {" ".join(how)} "$@"\n')
        self.podman.chmod(0o755)

    def make_base(self, name: str, suite: str = "bookworm") -> None:
        packed = self._folder / "base.tar"
        _run("mmdebstrap", "--variant=minbase", f"--include={','.join(_BASE)}", suite, str(packed))
        _run(str(self.podman), "import", "--quiet", str(packed), name)
        packed.unlink()

    def build(self, file: Path, context: Path, name: str, *, base: str) -> None:
        """pip finds packages where it finds them here."""
        arguments = [f"--build-arg=BASE={base}"]
        volumes = [f"--volume={_CERTIFICATES}:{_CERTIFICATES}:ro"]
        if wheels := os.environ.get("PIP_FIND_LINKS"):
            arguments.append(f"--build-arg=PIP_FIND_LINKS={wheels}")
            volumes += [f"--volume={wheels}:{wheels}:ro"] if Path(wheels).is_dir() else []
        how = ["--isolation=chroot", "--network=host", *arguments, *volumes]
        _run("buildah", *self._storage, "build", *how, f"--file={file}", f"--tag={name}", str(context))

    def run(self, *arguments: str, within_s: float = 600) -> str:
        """A container's output, once it has ended with 0."""
        return _run(str(self.podman), "run", "--rm", *LIMITS, *arguments, within_s=within_s)

    def start(self, name: str, *arguments: str) -> None:
        _run(str(self.podman), "run", "--detach", f"--name={name}", *LIMITS, *arguments)

    def ask(self, *command: str) -> str:
        """What podman says."""
        return _run(str(self.podman), *command).strip()

    def status(self, name: str) -> int | None:
        """Of a container's first process; None: it runs."""
        state, status = self.ask("inspect", "--format={{.State.Status}} {{.State.ExitCode}}", name).split()
        return int(status) if state == "exited" else None


@contextmanager
def containers() -> Iterator[Containers]:
    with tempfile.TemporaryDirectory(prefix="elastic-containers-", dir="/var/tmp") as folder:
        made = Containers(Path(folder))
        try:
            yield made
        finally:
            made.ask("rm", "--all", "--force", "--time=0")


def _run(*command: str, within_s: float = 1800) -> str:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=within_s, check=False
    )
    said = f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    assert done.returncode == 0, f"status {done.returncode} of {said}"
    return done.stdout
