"""An event as it is read: a record, as JSON gives it."""

from __future__ import annotations

from typing import Any

Event = dict[str, Any]
