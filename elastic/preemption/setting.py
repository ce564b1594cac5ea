"""Which sources of notices are watched: `--notices`, ELASTIC_NOTICES, `Preemption(notices=)`.

auto              what this machine is found to have: ec2, gcp or azure, by its firmware; slurm, inside a job
none              only signals
ec2,gcp,azure     these, found or not; ec2:http://HOST:PORT at another address; azure:acknowledge
slurm, slurm:300  the end of the allocation, and to leave 300 s before it
file:/path        a file that is there while the node is to leave
command:…         a line for the shell, up to the end of the setting
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

from elastic.errors import ConfigError
from elastic.preemption.machine import clouds
from elastic.preemption.sources.azure import Azure
from elastic.preemption.sources.command import Command
from elastic.preemption.sources.ec2 import Ec2
from elastic.preemption.sources.file import File
from elastic.preemption.sources.gcp import Gcp
from elastic.preemption.sources.metadata import LINK_LOCAL, MetadataService
from elastic.preemption.sources.slurm import LEAD_S, Slurm
from elastic.preemption.sources.source import Source

AUTO = "auto"
_NAMES = "auto, none, ec2, gcp, azure, slurm, file:PATH, command:LINE"


def sources(setting: str, environ: Mapping[str, str], *, sys: Path = Path("/sys")) -> list[Source]:
    """A new one of each that is asked for. sys: where the kernel shows the firmware. Raises ConfigError."""
    parts = list(_parts(setting))
    if ("none", "") in parts and len(parts) > 1:
        raise ConfigError(f"notices={setting!r}: none stands alone")
    names = {name for name, _ in parts}
    found = [(name, "") for name in (*clouds(sys), *_in_job(environ)) if name not in names] if "auto" in names else []
    return [_source(name, rest, environ, setting) for name, rest in (*parts, *found) if name not in ("auto", "none")]


def _parts(setting: str) -> Iterator[tuple[str, str]]:
    left = setting.strip()
    while left:
        if left.startswith("command:"):
            yield "command", left.removeprefix("command:").strip()
            return
        part, _, left = left.partition(",")
        name, _, rest = part.strip().partition(":")
        yield name, rest.strip()
        left = left.strip()


def _in_job(environ: Mapping[str, str]) -> list[str]:
    return ["slurm"] if environ.get("SLURM_JOB_ID") else []


def _source(name: str, rest: str, environ: Mapping[str, str], setting: str) -> Source:
    match name:
        case "ec2":
            return Ec2(
                MetadataService(rest or environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", "").rstrip("/") or LINK_LOCAL)
            )
        case "gcp":
            host = environ.get("GCE_METADATA_HOST")
            return Gcp(MetadataService(rest or (f"http://{host}" if host else LINK_LOCAL)))
        case "azure":
            address, acknowledge = rest.removesuffix("acknowledge").rstrip("+"), rest.endswith("acknowledge")
            return Azure(MetadataService(address or LINK_LOCAL), acknowledge=acknowledge)
        case "slurm":
            return Slurm(environ, lead_s=_seconds(rest, setting) if rest else LEAD_S)
        case "file" if rest:
            return File(rest)
        case "command" if rest:
            return Command(rest)
    raise ConfigError(f"notices={setting!r}: {name or setting!r} is no source of notices; expected of {_NAMES}")


def _seconds(text: str, setting: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ConfigError(f"notices={setting!r}: slurm:{text}; expected seconds before the end, above 0")
    return seconds
