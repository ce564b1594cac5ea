"""The script, and how it is python's `__main__`: what it and the modules that it imports see of the command line.

Promises  sys.argv, sys.path and the module `__main__` (its file, package, spec and loader) are what `python script.py
          args` or `python -m module args` has, from before the first import on: a module may read any of them while
          it is imported, in a worker and in the process that workers are forked from.
Leaves    sys.orig_argv: it says how this very process was started, and starts it again.
"""

from __future__ import annotations

import builtins
import importlib.machinery
import importlib.util
import io
import os
import runpy
import sys
import types
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


class MainModule:
    """The script's `__main__`: once made, it stands in sys.modules, and nothing of the script has run."""

    def __init__(self, script: Script) -> None:
        self.script = script
        search_path = script.search_path()
        if search_path is not None:
            sys.path[0] = search_path  # it was the current folder: this process was started with -m
        # What starts this process again in place (loop/portable.py) has to come back to here.
        sys.orig_argv = [sys.executable, "-m", "elastic.launch.processes.worker", *script.command()]
        sys.argv = ["-m" if script.module else script.target, *script.args]
        self.module = types.ModuleType("__main__")
        sys.modules["__main__"] = self.module
        self._path = os.path.abspath(script.target)  # an import may change the folder
        self.clear()
        if not script.module:
            self.module.__file__ = self._path
            self.module.__loader__ = importlib.machinery.SourceFileLoader("__main__", self._path)

    def clear(self) -> None:
        """Forget what the script has defined."""
        kept = ("__name__", "__doc__", "__package__", "__loader__", "__spec__", "__file__")
        names = self.module.__dict__
        for name in [name for name in names if name not in kept]:
            del names[name]
        names.update(__builtins__=builtins, __annotations__={}, __cached__=None)

    def find(self) -> tuple[str, str]:
        """Return the script's source and file; import the packages above a module. Raises what python would."""
        if not self.script.module:
            with open(self._path, "rb") as file:
                return importlib.util.decode_source(file.read()), self._path
        spec = spec_of(self.script.target)
        if spec is None or spec.origin is None:
            return "", ""
        source = getattr(spec.loader, "get_source", lambda _: None)(spec.name)
        sys.argv[0] = spec.origin
        main = self.module
        main.__file__, main.__package__, main.__loader__, main.__spec__ = spec.origin, spec.parent, spec.loader, spec
        return source or "", spec.origin

    def run(self) -> None:
        """Run the script from its first line. Raises what the script raises."""
        if self.script.module:
            # Private, and what `python -m` itself calls (CPython 3.10 to 3.14). The public run_module puts another
            # __main__ back when the script's last line has run, while threads and atexit functions still need it.
            sys.argv[0] = "-m"
            runpy._run_module_as_main(self.script.target)  # type: ignore[attr-defined]
            return
        with io.open_code(self._path) as file:
            code = compile(file.read(), self._path, "exec", dont_inherit=True)
        exec(code, self.module.__dict__)
