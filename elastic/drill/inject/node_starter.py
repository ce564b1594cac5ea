"""How the nodes of a drill's run are started: each one's command, environment and process."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from elastic.drill.environment import Overrides
from elastic.drill.machine import processes
from elastic.drill.machine.hosting import Node, NodeHosting
from elastic.errors import ConfigError
from elastic.launch.string_hashes import VARIABLE as HASHES
from elastic.membership.environment import NOTICES
from elastic_checkpoint.net.secret import VARIABLE, generated_secret

TEMPORARY_MAX = 64  # characters of a TMPDIR

Launcher = Literal["elastic", "torchrun"]


@dataclass(kw_only=True)
class NodeStarter:
    """Starts the nodes of one run, in all its launches. Fields that are not told here are explained in Cluster.

    script    with its arguments, as for python
    launches  so far
    found_at  the run's folder, where nodes find the others once the first, at which they met, is gone; None: nowhere
    """

    script: Sequence[str]
    folder: Path
    workers: int | None
    launcher: Launcher
    nodes: int
    nodes_max: int
    replica_size: int
    restarts: int
    options: Sequence[str]
    env: Mapping[str, str]
    observed: bool
    overrides: Overrides
    hosting: NodeHosting
    found_at: str | None
    launches: int = 0
    _secret: str = field(default_factory=generated_secret, repr=False)

    def begin(self) -> None:
        """Begin the next launch: its TMPDIR, what its workers are told, and an empty output."""
        self.launches += 1
        self._make_temporary()
        self.overrides.write(self.folder)
        self.output.write_bytes(b"")
        self.hosting.begin()

    def node(self, *, first: bool, workers: int | None = None, called: Path | None = None) -> Node:
        """Start a node of this launch, and return its launcher.

        first    of its launch. It hosts torchrun's rendezvous store: were it whoever comes first, a node that leaves
                 might take it along, and nobody can join any more
        workers  of this node; None: as many as every other has
        called   it waits for this file, its imports done
        """
        command = self._command(workers)
        if called is not None:
            at = command.index("run")
            command = [command[0], "-m", "elastic.drill.inject.latecomer", str(called), *command[at + 1 :]]
        meeting = {"PET_RDZV_CONF": f"is_host={int(first)}"} if self.nodes_max > 1 else {}
        return self.hosting.start(command, env={**self._environment(), **meeting}, output=self.output)

    @property
    def output(self) -> Path:
        """Return the file that takes what this launch prints."""
        return self.folder / f"output-{self.launches}.txt"

    def remove_temporary(self) -> None:
        """Remove the launches' TMPDIR where it lies outside the drill's folder."""
        if self._temporary.is_symlink():
            shutil.rmtree(self._temporary.resolve(), ignore_errors=True)
            self._temporary.unlink()

    @property
    def _temporary(self) -> Path:
        return self.folder / "tmp"

    def _command(self, workers: int | None) -> list[str]:
        """Return the command of a node. Raises ConfigError if workers cannot be spread evenly over the nodes."""
        if self.workers is None:
            return [sys.executable, *self.script]
        per_node, rest = divmod(self.workers, self.nodes)
        if rest:
            raise ConfigError(f"{self.workers} workers cannot be spread evenly over {self.nodes} nodes")
        if self.nodes_max == 1:
            meet = ["--standalone"]
        else:
            nodes = str(self.nodes) if self.nodes == self.nodes_max else f"1:{self.nodes_max}"
            endpoint = ",".join(at for at in (self.hosting.endpoint, self.found_at) if at is not None)
            meet = [f"--nnodes={nodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}"]
            meet += [f"--rdzv-id=launch-{self.launches}"]
        module = ["elastic", "run"] if self.launcher == "elastic" else ["torch.distributed.run"]
        flags = [*meet, f"--nproc-per-node={workers or per_node}", f"--max-restarts={self.restarts}"]
        flags += [f"--replica-size={self.replica_size}"] if self.replica_size > 1 else []
        flags += [f"--log-dir={self.folder / 'logs'}", *self.options]
        return [sys.executable, "-m", *module, *flags, *self.script]

    def _environment(self) -> dict[str, str]:
        """Return the environment of this launch's nodes; `env` beats all else."""
        drill = {processes.MARK: str(self.folder), "TMPDIR": str(self._temporary.resolve()), "PYTHONUNBUFFERED": "1"}
        torchrun = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}  # its shared store keeps a dead round's keys
        by = f"elastic.drill.inject.injector:observer:{self.folder}"
        observer = {"ELASTIC_OBSERVER": by} if self.observed else {}
        no_others = {NOTICES: "none"}  # what goes wrong is the plan's, and not a cloud's
        of_the_run = {**drill, **torchrun, **observer, **no_others, **self.overrides.environment()}
        alike = {HASHES: "0"} if self.launcher == "elastic" else {}  # for latecomers, which are no `elastic run`
        return {VARIABLE: self._secret, **alike, **os.environ, **of_the_run, **self.hosting.environment(), **self.env}

    def _make_temporary(self) -> None:
        """Make the launch's TMPDIR, for multiprocessing's sockets too, whose paths may have 108 characters."""
        if self._temporary.exists():
            return
        if len(str(self._temporary)) <= TEMPORARY_MAX:
            self._temporary.mkdir()
        else:
            shortest = min((tempfile.gettempdir(), "/tmp"), key=len)
            self._temporary.symlink_to(tempfile.mkdtemp(prefix="drill-", dir=shortest))
