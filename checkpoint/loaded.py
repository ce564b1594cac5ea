"""What a load gives back: the step and, with strict=False, what it left alone. The names are those of StateMismatch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

_SHOWN = 10  # names of each kind in the log
_NAME_SHOWN = 100  # characters of one


class Skipped(NamedTuple):
    """Names that only one side has; both empty where a state was loaded whole.

    missing     entries of the state that the checkpoint lacks: they hold what they held
    unexpected  entries of the checkpoint that the state lacks: they were not loaded
    """

    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()

    def line(self, step: int) -> str:
        """For the log."""
        parts = [
            f"{len(names)} {what}: {_some(names)}"
            for names, what in (
                (self.missing, "missing, which stay as they were"),
                (self.unexpected, "unexpected, which were not loaded"),
            )
            if names
        ]
        return f"step {step} was loaded but for {'; '.join(parts)}"


class Loaded(int):
    """The step that was loaded; a number like any other, which also knows what strict=False left alone, as
    torch's load_state_dict does.

    missing, unexpected  see `Skipped`; of a group, this rank's
    """

    missing: tuple[str, ...]
    unexpected: tuple[str, ...]

    def __new__(cls, step: int, skipped: Skipped) -> Loaded:
        self = super().__new__(cls, step)
        self.missing, self.unexpected = skipped
        return self

    def __reduce__(self) -> tuple[type[Loaded], tuple[int, Skipped]]:  # how it is copied, also to other processes
        return Loaded, (int(self), Skipped(self.missing, self.unexpected))


def _some(names: Sequence[str]) -> str:
    shown = [name if len(name) <= _NAME_SHOWN else f"{name[:_NAME_SHOWN]}..." for name in names[:_SHOWN]]
    return ", ".join(shown) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
