"""Random generators across a fork: a worker's are what its own imports would have made them.

Python's, NumPy's and torch's generators are seeded from the system's entropy when they are loaded. Forks of one process
would all go on from there, and must not; but a module that seeds them while it is imported (`torch.manual_seed(0)`
above a model) means every process that imports it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import pickle
import random
import sys
from collections.abc import Callable, Sequence
from types import ModuleType


def _of_numpy() -> object:
    """Return the whole state, as bytes that can be compared."""
    return pickle.dumps(sys.modules["numpy.random"].get_state())


def _of_torch() -> object:
    """Return the seed: another one after manual_seed or a state that was set, not after a draw."""
    return sys.modules["torch"].default_generator.initial_seed()


_STATES: dict[str, Callable[[], object]] = {"random": random.getstate, "numpy.random": _of_numpy, "torch": _of_torch}
"""By the module that has the generator. Equal as long as nobody has seeded it."""


class Generators(importlib.abc.MetaPathFinder):
    """Watches generators from before the imports to `settle` in each fork; one only drawn from may count as seeded."""

    def __init__(self) -> None:
        self._at_load = {name: of() for name, of in _STATES.items() if name in sys.modules}
        self._python = random.getstate()
        sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Have a module with a generator looked at as soon as it is loaded; python asks this before it loads one."""
        if name not in _STATES or name in self._at_load:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Then(spec.loader, lambda: self._at_load.setdefault(name, _STATES[name]()))
        return spec

    def imported(self) -> None:
        """Stop watching, as the imports are over."""
        sys.meta_path.remove(self)
        self._python = random.getstate()

    def settle(self) -> None:
        """Seed anew, in a fork, the generators that no import has seeded."""
        untouched = {name for name, state in self._at_load.items() if _STATES[name]() == state}
        if self._python != self._at_load["random"]:
            random.setstate(self._python)  # python itself seeds it anew in each fork
        if "numpy.random" in untouched:
            sys.modules["numpy.random"].seed()
        if "torch" in untouched:
            sys.modules["torch"].default_generator.seed()


class _Then(importlib.abc.Loader):
    """A loader that lets the module's own one load it, and calls `loaded` when it has run."""

    def __init__(self, loader: importlib.abc.Loader, loaded: Callable[[], object]) -> None:
        self._loader = loader
        self._loaded = loaded

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._loaded()
