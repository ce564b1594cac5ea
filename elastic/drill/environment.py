"""What a drill tells the processes of its run by their environment, and what is in no file.

Where a run lives may hold credentials. The rest of what a drill makes a run do is in its folder: inject/overrides.py.
"""

from __future__ import annotations

import json
import os
from typing import Any

DRILL_STORAGE = "ELASTIC_DRILL_STORAGE"  # JSON
DRILL_NODE = "ELASTIC_DRILL_NODE"  # a process id


def drill_storage() -> tuple[str | None, dict[str, Any] | None]:
    """Where the run is made to live, and with which options."""
    url, options = json.loads(os.environ.get(DRILL_STORAGE, "[null, null]"))
    return url, options


def drill_node() -> int | None:
    """The process id by which a drill knows this node, where it is a host with process ids of its own."""
    return int(os.environ[DRILL_NODE]) if DRILL_NODE in os.environ else None
