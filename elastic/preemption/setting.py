"""Which sources of notices are watched: `--notices`, ELASTIC_NOTICES, `Preemption(notices=)`.

auto       what this machine is found to have: a cloud, by its firmware; slurm, inside a job
none       only signals
name       this source, found or not
name:rest  the same, and what it is to do or where it is; see `of` of the source's class in sources/
command:…  a line for the shell, up to the end of the setting

Several are separated by commas.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path

from elastic.errors import ConfigError
from elastic.membership import environment
from elastic.preemption.firmware import firmware
from elastic.preemption.sources.registry import KINDS, VARIABLES
from elastic.preemption.sources.source import Source

_AUTO, _NONE = "auto", "none"


def sources(setting: str, environ: Mapping[str, str] | None = None, *, sys: Path = Path("/sys")) -> list[Source]:
    """Make a new source of each kind that is asked for. Raises ConfigError.

    environ  default: this process's; of either a source gets what it says that it reads
    sys      where the kernel shows the firmware
    """
    read = environment.beginning_with(VARIABLES, environ)
    parts = list(_parts(setting))
    if (_NONE, "") in parts and len(parts) > 1:
        raise ConfigError(f"notices={setting!r}: none stands alone")
    names = {name for name, _ in parts}
    found = [(name, "") for name in _found(read, sys) if name not in names] if _AUTO in names else []
    return [_source(name, rest, read, setting) for name, rest in (*parts, *found) if name not in (_AUTO, _NONE)]


def found_by_auto() -> str:
    """Return what `auto` looks for, for people to read."""
    kinds = [kind for kind in KINDS.values() if kind.found is not None]
    alike = ((where, [kind.name for kind in group]) for where, group in groupby(kinds, lambda kind: kind.found))
    return ", ".join(f"{', '.join(names)} ({where})" for where, names in alike)


def _parts(setting: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the rest of each source in a setting."""
    remaining = setting.strip()
    while remaining:
        if remaining.startswith("command:"):
            yield "command", remaining.removeprefix("command:").strip()
            return
        part, _, remaining = remaining.partition(",")
        name, _, rest = part.strip().partition(":")
        yield name, rest.strip()
        remaining = remaining.strip()


def _found(environ: Mapping[str, str], sys: Path) -> list[str]:
    machine = firmware(sys)
    return [name for name, kind in KINDS.items() if kind.is_here(machine, environ)]


def _source(name: str, rest: str, environ: Mapping[str, str], setting: str) -> Source:
    """Make a source by its name. Raises ConfigError, with what is expected."""
    kind = KINDS.get(name)
    if kind is None or (kind.needs and not rest):
        forms = (f"{one.name}:{one.needs}" if one.needs else one.name for one in KINDS.values())
        expected = ", ".join((_AUTO, _NONE, *forms))
        raise ConfigError(f"notices={setting!r}: {name or setting!r} is no source of notices; expected of {expected}")
    try:
        return kind.of(rest, environ)
    except ConfigError as wrong:
        raise ConfigError(f"notices={setting!r}: {wrong}") from None
