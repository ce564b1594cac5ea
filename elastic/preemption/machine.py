"""Which cloud's machine is this, as its firmware says? Nothing is asked of the network to find that out.

An address that means a metadata service in a cloud means anything, or nothing, elsewhere: so it is asked only where the
firmware names the cloud. Where it cannot be read (gVisor hides it), a source must be named.
Source: the same files are what cloud-init's ds-identify reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_AZURE_TAG = "7783-7084-3265-9085-8269-3286-77"


def clouds(sys: Path = Path("/sys")) -> list[str]:
    """The names of sources, as in the setting."""
    return list(_clouds(sys))


def _clouds(sys: Path) -> Iterator[str]:
    dmi = sys / "class/dmi/id"
    vendor = _read(dmi / "sys_vendor")
    on_xen = _read(sys / "hypervisor/uuid").startswith("ec2") or "amazon" in _read(dmi / "bios_version")
    if vendor == "amazon ec2" or on_xen:
        yield "ec2"
    if vendor == "google" or _read(dmi / "product_name").startswith("google"):
        yield "gcp"
    if vendor == "microsoft corporation" and _read(dmi / "chassis_asset_tag") == _AZURE_TAG:
        yield "azure"


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip().lower()
    except OSError:
        return ""
