"""What one look found, and what to do about it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any


class Verdict(str, Enum):
    """The verdict of a look. NOTE: runs work, and somebody may want to know."""

    OK = "ok"
    NOTE = "note"
    WRONG = "wrong"


@dataclass(frozen=True)
class Finding:
    """The finding of one look, with what to do about it.

    name   what was looked at
    found  in words
    next   what to do; "" where nothing is to be done
    """

    name: str
    verdict: Verdict
    found: str
    next: str = ""

    def facts(self) -> dict[str, Any]:
        """Return the facts as JSON has them."""
        return {**asdict(self), "verdict": self.verdict.value}


def of_error(name: str, error: BaseException, advice: str = "") -> Finding:
    """Make a finding of an error of ours, whose last lines tell what to do; `advice` where they do not."""
    said, _, after = (str(error) or type(error).__name__).partition("\n  next ")
    # The state that it left is that of a look.
    found = "\n".join(line for line in said.splitlines() if not line.startswith("  state "))
    return Finding(name, Verdict.WRONG, found, " ".join(after.split()) or advice)
