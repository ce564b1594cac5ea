"""What a worker says last, where its script has failed; and what everyone says who speaks of a worker.

Apart from messages.py, which takes 45 types more: the process that says this has loaded no more of elastic than it
takes to run a script.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from elastic.membership.messages.wire import WireError
from elastic_checkpoint.net.codec import Vocabulary

ME = "me"  # of a worker, to its agent, which knows who speaks and puts the worker's id there
NAME_MAX = 512  # characters, of a worker's id or a node's name


@dataclass(frozen=True, kw_only=True)
class OfWorker:
    """worker  who says it, or of whom its agent does"""

    worker: str

    def __post_init__(self) -> None:
        check_name(self.worker)


@dataclass(frozen=True, kw_only=True)
class Failed(OfWorker):
    error: str
    trace: str = ""
    step: int | None = None
    shown: bool = False


FAILURE: Mapping[str, type] = {"failed": Failed}
as_message = Vocabulary(FAILURE).as_message


def check_name(name: str) -> None:
    """Raises WireError."""
    if not 0 < len(name) <= NAME_MAX:
        raise WireError(f"a name of {len(name)} characters")
