"""What a drill makes a run do, whatever its script says: where it lives, how often it saves, whom it waits for.

It reaches the workers as a file in the drill's folder; where the run lives, which may tell credentials, in their
environment alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elastic.drill.environment import DRILL_STORAGE, drill_storage

_FILE = "overrides.json"


@dataclass(frozen=True)
class Overrides:
    """
    url              where the run lives; None: where the script says
    storage_options  for that URL
    save_every       as Run has it; None: what the script says
    steps            the run is stopped after so many; None: where the script ends
    cross_check      as Run has it; None: what the script says, unless that is None
    joins_await_s    a node that joins is waited for at its moment, so long at most; 0: the run goes on meanwhile
    """

    url: str | None = field(default=None, repr=False)
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    save_every: str | None = None
    joins_await_s: float = 0.0
    steps: int | None = None
    cross_check: float | None = None

    def write(self, folder: Path) -> None:
        """For the workers of the drill in `folder`, who have `environment` as well."""
        said = {name: getattr(self, name) for name in ("save_every", "joins_await_s", "steps", "cross_check")}
        (folder / _FILE).write_text(json.dumps(said))

    def environment(self) -> dict[str, str]:
        options = dict(self.storage_options) if self.storage_options is not None else None
        return {DRILL_STORAGE: json.dumps([self.url, options])}

    @classmethod
    def read(cls, folder: Path) -> Overrides:
        """In a worker."""
        try:
            said = json.loads((folder / _FILE).read_text())
        except FileNotFoundError:
            return cls()
        url, options = drill_storage()
        return cls(**said, url=url, storage_options=options)
