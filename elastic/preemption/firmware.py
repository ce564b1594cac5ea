"""Whose machine is this, as its firmware says? Nothing is asked of the network to find that out.

An address that means a metadata service in a cloud means anything, or nothing, elsewhere: so it is asked only where the
firmware names the cloud, as each source in sources/ knows its own. Where it cannot be read (gVisor hides it), a source
must be named.
Source: the same files are what cloud-init's ds-identify reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Firmware:
    """The names that this machine has from its firmware, and from Xen, in lower case; "" for what cannot be read."""

    vendor: str
    product: str
    bios: str
    chassis_tag: str
    xen: str


def firmware(sys: Path = Path("/sys")) -> Firmware:
    """Read what the firmware says. sys: where the kernel shows it."""
    dmi = sys / "class/dmi/id"
    return Firmware(
        vendor=_read(dmi / "sys_vendor"),
        product=_read(dmi / "product_name"),
        bios=_read(dmi / "bios_version"),
        chassis_tag=_read(dmi / "chassis_asset_tag"),
        xen=_read(sys / "hypervisor/uuid"),
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip().lower()
    except OSError:
        return ""
