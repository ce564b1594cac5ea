"""Reads a task as `sky jobs launch` does, and validates its resources: sky_validate.py TASK.yaml. In SkyPilot's own
environment, and in a home of its own, where two lines of a catalogue keep it from asking the network."""

from __future__ import annotations

import sys
from pathlib import Path

CATALOG = Path.home() / ".sky" / "catalogs" / "v8" / "common"
CATALOG.mkdir(parents=True, exist_ok=True)
(CATALOG / "accelerators.csv").write_text("AcceleratorName,Clouds\nL4,AWS\n")
(CATALOG / "metadata.csv").write_text("GPU,MemoryGB,Manufacturer\nL4,24,NVIDIA\n")
KNOWN = {"strategy", "max_restarts_on_errors", "recover_on_exit_codes"}  # it passes others over

import sky  # noqa: E402  # it reads the catalogue as it is imported

for resources in sky.Task.from_yaml(sys.argv[1]).resources:
    resources.validate()
    if unknown := set(resources.job_recovery or {}) - KNOWN:
        sys.exit(f"job_recovery has no {', '.join(sorted(unknown))}")
