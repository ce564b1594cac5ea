"""What a load gives back: the step, what strict=False left alone, and what was cast. The names are StateMismatch's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

_SHOWN = 10  # names of each kind in the log


_NAME_SHOWN = 100  # characters of one


class Skipped(NamedTuple):
    """Names that only one side has, and of what was cast; all empty where a state was loaded as it was saved.

    missing     entries of the state that the checkpoint lacks: they hold what they held
    unexpected  entries of the checkpoint that the state lacks: they were not loaded
    cast        name -> such as "float32 to bfloat16"
    """

    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    cast: Mapping[str, str] = MappingProxyType({})

    def line(self, step: int) -> str:
        """Return a line for the log that says what was left alone or cast."""
        parts = [
            f"{len(names)} {what}: {_some(names)}"
            for names, what in (
                (self.missing, "missing, which stay as they were"),
                (self.unexpected, "unexpected, which were not loaded"),
            )
            if names
        ]
        clauses = [f"but for {'; '.join(parts)}"] if parts else []
        if self.cast:
            clauses.append(
                f"with {len(self.cast)} cast: {_some([f'{name} ({how})' for name, how in self.cast.items()])}"
            )
        return f"step {step} was loaded {'; '.join(clauses)}"


class Loaded(int):
    """The step that was loaded; a number like any other, which also knows what was left alone and what was cast.

    What strict=False left alone it names as torch's load_state_dict does.

    Attributes:
        missing: Names of entries of the state that the checkpoint lacks: they hold what they held.
        unexpected: Names of entries of the checkpoint that the state lacks: they were not loaded.
        cast: Name -> such as "float32 to bfloat16". All three of this rank, where a group has loaded.
    """

    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    cast: dict[str, str]

    def __new__(cls, step: int, skipped: Skipped) -> Loaded:
        self = super().__new__(cls, step)
        self.missing, self.unexpected = skipped.missing, skipped.unexpected
        self.cast = dict(skipped.cast)
        return self

    def __reduce__(self) -> tuple[type[Loaded], tuple[int, Skipped]]:  # how it is copied, also to other processes
        return Loaded, (int(self), Skipped(self.missing, self.unexpected, self.cast))


def _some(names: Sequence[str]) -> str:
    """Return the first few names, each cut, and how many more there are."""
    shown = [name if len(name) <= _NAME_SHOWN else f"{name[:_NAME_SHOWN]}..." for name in names[:_SHOWN]]
    return ", ".join(shown) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
