"""The measured times that plans and simulations rest on, each with where it is from. Pure but for reading a file.

figures.json holds the defaults, and a file of the user's replaces some of them (`elastic plan --measure` writes one):

    {"loss_s": {"value": 0.056, "source": "docs/benchmarks.md, Recovery", "date": "2026-11-22"}, ...}
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from elastic.errors import ConfigError

MEANINGS = {
    "loss_s": "elastic run: from a SIGKILL to the begin of the survivors' next step",
    "join_s": "elastic run: what the joining of a node costs the others",
    "start_s": "elastic run: from the command to the first step",
    "torchrun_restart_s": "plain torchrun: from a SIGKILL to the next step, of workers that all start again",
    "torchft_stall_s": "torchft: from the loss of a replica to the next step",
    "copy_bytes_per_s": "a copy of warm memory",
    "stall_copies": "for how many copies of the state training stands still for a save",
    "write_bytes_per_s": "a state written to storage by torch.save, until it is there",
    "upload_bytes_per_s": "a state saved in the background, until it is committed",
    "read_bytes_per_s": "a state read and verified",
    "batch_s": "one worker computes a whole batch of the measured model, while the others do, too",
    "link_bytes_per_s": "all-reduce between processes of one machine",
    "link_latency_s": "the same, of one message",
}


_OF_A_LINK = ("link_bytes_per_s", "link_latency_s")
_MOST = 1e18


@dataclass(frozen=True)
class Figure:
    """A measured value, with where and when it was measured."""

    value: float
    source: str
    date: str

    def __str__(self) -> str:
        return f"{self.source}, {self.date}"


Figures = Mapping[str, Figure]


def defaults() -> Figures:
    return parse((resources.files(__package__) / "figures.json").read_text(), "figures.json")


def read(file: Path | None) -> Figures:
    """Return the defaults, with what a file says instead. Raises ConfigError."""
    if file is None:
        return defaults()
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"--figures {file}: {error}\n  next  give a file that `elastic plan --measure FILE` wrote"
        ) from error
    return {**defaults(), **parse(text, f"--figures {file}")}


def parse(text: str, where: str) -> Figures:
    """Read figures from JSON. where: its name in errors. Raises ConfigError."""
    try:
        document = json.loads(text)
    except ValueError as error:
        raise ConfigError(
            f"{where}: no JSON: {error}; expected an object of figures, as `elastic plan --measure FILE` writes it"
        ) from None
    if not isinstance(document, dict):
        raise ConfigError(
            f"{where}: JSON, but of type {type(document).__name__}; expected an object of figures, as "
            "`elastic plan --measure FILE` writes it"
        )
    found = {name: _figure(name, one, where) for name, one in document.items()}
    for one, other in (_OF_A_LINK, _OF_A_LINK[::-1]):
        if one in found and other not in found:
            raise ConfigError(
                f"{where}: {one} without {other}; expected both, as `elastic plan --measure FILE` writes it"
            )
    return found


def _figure(name: str, document: Any, where: str) -> Figure:
    """Read one figure. Raises ConfigError."""
    if name not in MEANINGS:
        near = difflib.get_close_matches(name, MEANINGS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"expected some of {', '.join(MEANINGS)}"
        raise ConfigError(f"{where}: unknown figure {name!r}; {hint}")
    value = document.get("value") if isinstance(document, dict) else None
    least = 1.0 if name.endswith("_bytes_per_s") else 0.0
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= _MOST:
        expected = f'{{"value": a number from {least:g} to {_MOST:g}, "source": …, "date": …}}'
        raise ConfigError(f"{where}: {name} is {document!r}; expected {expected}")
    return Figure(float(value), str(document.get("source", where)), str(document.get("date", "no date")))
