"""From a launch to its manifest, part by part. What cannot be had is absent, with the reason; nothing here raises.

One rule removes what is confidential, from the manifest and from the files beside it: storage/redact.py. It knows the
run's URL and storage options, all of the environment, and the command lines.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elastic.config import Config
from elastic.manifest import arguments, machine, packages, source
from elastic.manifest.files import FOLDER, FORMAT, VERSION
from elastic.manifest.source import LARGEST, Unknown
from elastic.membership import environment, launchers
from elastic.membership.environment import Launch
from elastic_checkpoint import linux
from elastic_checkpoint.storage import Scrubber, redact
from elastic_checkpoint.storage.redact import without_literals

_OF_LIBRARIES = (
    *("PYTHON", "TORCH", "PYTORCH", "ATEN_", "CUDA", "CUBLAS", "CUDNN", "NVIDIA_", "NCCL_", "GLOO_", "HIP_", "ROCR_"),
    *("OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "ONEDNN_", "DNNL_", "TRITON_", "AOT_", "LD_", "MALLOC_", "GLIBC_"),
    *("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TOKENIZERS_", "TZ", "LANG", "LC_"),
)
_OF_ELASTIC = ("ACCEPT", "GRACE_S", "HANG_S", "IMAGE", "NOTICES", "REPLICA", "RESCUE", "URL", "VIRTUAL_WORKERS")
_OF_LAUNCHERS = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "ELASTIC_JOB", "ELASTIC_SEVERAL_NODES", "TORCHELASTIC_", "PET_")
_OF_JOBS = ("SLURM_JOB_", "SLURM_NNODES", "OMPI_COMM_WORLD_", "KUBERNETES_SERVICE_HOST", "JOB_COMPLETION_INDEX")


@dataclass(frozen=True, kw_only=True)
class Launched:
    """What the coordinator knows of its launch, as it has claimed the run's storage.

    claim    its document
    workers  of the view, by rank
    argv, orig_argv  as sys has them
    """

    config: Config
    launch: Launch
    identity: Mapping[str, Any]
    worker_id: str
    claim: Mapping[str, Any]
    workers: Sequence[str]
    argv: Sequence[str]
    orig_argv: Sequence[str]


class Collecting:
    """Makes a manifest, and the files beside it: key -> bytes."""

    def __init__(self, launched: Launched, hurry: threading.Event, environ: Mapping[str, str] | None = None) -> None:
        self._of = launched
        self._hurry = hurry
        self._environ = environment.beginning_with([""], environ)
        self._launcher = self._above()
        config = launched.config
        commands = launched.argv, launched.orig_argv, self._launcher or ()
        self._named = environment.named_values(launched.launch, *commands, environ=self._environ)
        self._scrub = Scrubber(config.url, config.storage_options, self._named)
        self.files: dict[str, bytes] = {}

    def manifest(self) -> dict[str, Any]:
        """Collect, and return the manifest."""
        of, absent = self._of, dict[str, str]()
        config = of.config
        resumed = of.claim.get("resumed_from")
        parts: dict[str, Callable[[], Any]] = {
            "arguments": lambda: {"given": arguments.given(config), "resolved": arguments.resolved(config)},
            "identity": lambda: {name: value for name, value in of.identity.items() if name != "url"},
            "data": self._data,
            "script": self._script,
            "command": lambda: {"worker": list(of.orig_argv), "launcher": self._launcher},
            "git": self._git,
            "packages": self._packages,
            "python": lambda: machine.python(self._environ),
            "torch": machine.torch_build,
            "machine": machine.machine,
            "launcher": self._launch,
            "container": lambda: _known(machine.container(self._environ), "nothing says that there is one"),
            "environment": self._environment,
        }
        found: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "run": {
                "url": redact(config.url),
                "claim": of.claim["claim"],
                "resumed_from": {name: resumed[name] for name in ("claim", "step")} if resumed else None,
                "t": time.time(),
                "worker": of.worker_id,
                "world_size": len(of.workers),
                "workers": list(of.workers),
            },
        }
        for name, part in parts.items():
            try:
                found[name] = part()
            except Unknown as unknown:
                absent[name] = str(unknown)
            except Exception as failure:  # whatever a library, a disk or the script's own objects do
                absent[name] = f"{type(failure).__name__}: {failure}"
        return dict(self._scrub.document({**found, "absent": absent}))

    def _data(self) -> dict[str, Any]:
        config, identity = self._of.config, self._of.identity
        kind = type(config.dataset)
        found = {
            "kind": f"{kind.__module__}.{kind.__qualname__}",
            "length": config.plan.dataset_length,
            "order": config.plan.order_identity,
        }
        return {**found, **({"identity": identity["dataset"]} if "dataset" in identity else {})}

    def _script(self) -> dict[str, Any]:
        found, text = source.script(self._of.argv)
        return {**found, "copy": self._file(text, Path(found["path"]).suffix or ".py")}

    def _git(self) -> dict[str, Any]:
        found, changes = source.repository(Path(source.script(self._of.argv)[0]["path"]), self._hurry)
        return found if changes is None else {**found, "diff": self._file(changes, ".diff")}

    def _packages(self) -> dict[str, Any]:
        text, versions = packages.lock()
        return {"lock": self._file(text.encode(), ".txt"), "versions": versions}

    def _launch(self) -> dict[str, Any]:
        launch = self._of.launch
        name = "elastic run" if launch.channel is not None else launch.launcher
        own = next((one.variables for one in launchers.LAUNCHERS if one.name == name), ())
        return {
            "name": name,
            "job": launch.job,
            "restart": launch.restart,
            "replica_size": launch.replica_size,
            "variables": environment.beginning_with([*own, *_OF_LAUNCHERS, *_OF_JOBS], self._environ),
        }

    def _above(self) -> list[str] | None:
        """Return the command line of the process that has launched this one, if one has."""
        if self._of.launch.channel is None and self._of.launch.launcher is None:
            return None
        return linux.command_line(os.getppid()).decode(errors="replace").rstrip("\0").split("\0")

    def _environment(self) -> dict[str, str]:
        names = [*_OF_LIBRARIES, *(f"ELASTIC_{name}" for name in _OF_ELASTIC)]
        return dict(sorted(environment.beginning_with(names, self._environ).items()))

    def _file(self, data: bytes, suffix: str) -> dict[str, Any]:
        """Keep a file, and return where; its name is its hash, so that launches share those that are equal."""
        text = data[:LARGEST].decode("utf-8", "surrogateescape")
        without, literals = without_literals(text)
        scrub = Scrubber(self._of.config.url, self._of.config.storage_options, [*self._named, *literals])
        kept = scrub(without).encode("utf-8", "surrogateescape")
        digest = hashlib.sha256(kept).hexdigest()
        key = f"{FOLDER}/{digest[:16]}{suffix}"
        self.files[key] = kept
        whole, altered = len(data) <= LARGEST, kept != data[:LARGEST]
        return {"file": key, "sha256": digest, "bytes": len(kept), "whole": whole, "altered": altered}


def _known(found: dict[str, Any] | None, why: str) -> dict[str, Any]:
    """Return what was found. Raises Unknown where nothing was."""
    if found is None:
        raise Unknown(why)
    return found
