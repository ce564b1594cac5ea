"""A run's arguments as tests write them: flat, whichever group of `elastic.Run` each belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elastic.config.argument_groups import GROUPS, PLACES


def grouped(flat: Mapping[str, Any] | None = None, /, **more: Any) -> dict[str, Any]:
    """Return what `Run` takes: arguments of a group in their group, all others as they are."""
    flat = {**(flat or {}), **more}
    given = {name: value for name, value in flat.items() if name not in PLACES}
    for argument, group in GROUPS.items():
        own = {name: value for name, value in flat.items() if PLACES.get(name, "").startswith(f"{argument}=")}
        if own:
            given[argument] = group(**own)
    return given
