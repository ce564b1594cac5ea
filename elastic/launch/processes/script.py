"""What a worker is to run, and where python would find it."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Script:
    """A script with its arguments; target: a path, or for `module` a name as for `python -m`."""

    target: str
    module: bool
    args: tuple[str, ...] = ()

    def command(self) -> list[str]:
        """Return it as on a command line, which `of_command` reads."""
        return [*(["-m"] if self.module else []), self.target, *self.args]

    @classmethod
    def of_command(cls, command: Sequence[str]) -> Script:
        module = command[0] == "-m"
        target, *args = command[1:] if module else command
        return cls(target, module, tuple(args))

    def search_path(self) -> str | None:
        """Return what python puts first in sys.path for it; None where it is told not to (-P, PYTHONSAFEPATH)."""
        if getattr(sys.flags, "safe_path", False):
            return None
        return os.getcwd() if self.module else os.path.dirname(os.path.realpath(self.target))


def spec_of(name: str) -> importlib.machinery.ModuleSpec | None:
    """Return the spec of what `python -m name` runs; import the packages above it, and raise what they raise."""
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{name}.__main__")
    return spec
