"""What a drill tells the processes of its run: where it lives, how often it saves, whom it waits for.

A file in the drill's folder tells it, and the environment what is to be in no file: where a run lives may hold
credentials.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DRILL_NODE = "ELASTIC_DRILL_NODE"  # a process id
_STORAGE = "ELASTIC_DRILL_STORAGE"  # JSON
_FILE = "overrides.json"


def drill_node() -> int | None:
    """Return the process id by which a drill knows this node, where it is a host with process ids of its own."""
    return int(os.environ[DRILL_NODE]) if DRILL_NODE in os.environ else None


@dataclass(frozen=True)
class Overrides:
    """The settings of a run that a drill decides, whatever the script says.

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
        """Write these for the workers of the drill in `folder`, but for what `environment` tells them."""
        said = {name: getattr(self, name) for name in ("save_every", "joins_await_s", "steps", "cross_check")}
        (folder / _FILE).write_text(json.dumps(said))

    def environment(self) -> dict[str, str]:
        """Return the variables that tell workers the run's URL and storage options."""
        options = dict(self.storage_options) if self.storage_options is not None else None
        return {_STORAGE: json.dumps([self.url, options])}

    @classmethod
    def read(cls, folder: Path) -> Overrides:
        """Return, in a worker, what the drill in `folder` decides; nothing where it wrote no file."""
        try:
            said = json.loads((folder / _FILE).read_text())
        except FileNotFoundError:
            return cls()
        url, options = json.loads(os.environ.get(_STORAGE, "[null, null]"))
        return cls(**said, url=url, storage_options=options)
