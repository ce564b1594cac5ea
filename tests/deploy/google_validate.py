"""Reads the body of a request as google-cloud-compute does, each field and each word: google_validate.py TYPE FILE."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import Any

from google.cloud import compute_v1


def check_words(message: Any) -> None:
    """Enums are strings in this API, and any word passes; the words are beside the message, as classes of its own."""
    kind = type(message)
    for name in kind.meta.fields:
        if not (value := getattr(message, name)):
            continue
        words = getattr(kind, "".join(part.capitalize() for part in name.split("_")), None)
        known = words.__members__ if isinstance(words, type) and issubclass(words, Enum) else {}
        if len(known) > 1 and value not in known:  # the first: undefined
            sys.exit(f"{name}: {value} is none of {', '.join(known)}")
        for part in value if hasattr(value, "append") else [value]:
            if hasattr(type(part), "meta"):
                check_words(part)


check_words(getattr(compute_v1, sys.argv[1]).from_json(Path(sys.argv[2]).read_text(), ignore_unknown_fields=False))
