"""Switches a planted bug on in every process of a launch: through the environment, and python's import machinery.

    environment(bug)  ->  PYTHONPATH begins with outside/, whose sitecustomize calls `plant` at every start of python
      ->  a finder waits for the modules that the bug patches  ->  patched right after their import, before anyone uses
          them; what is forked later inherits it

The run's own comparison of its workers is off in all of them: it is the judge that must notice. Nothing else is
imported: a process that does not need torch does not get it. A place that no longer exists raises.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.kit.planted.bug import Bug, Patch
from tests.kit.planted.catalogue import CATALOGUE

BUG, MARKS = "PLANTED_BUG", "PLANTED_MARKS"
OUTSIDE = Path(__file__).parent / "outside"
ROOT = Path(__file__).parents[3]


COMPARISON = (
    Patch("elastic.state.replica:Replica.digest", lambda right, act: lambda self, step: 1),
    Patch("elastic.state.replica:Replica.parts", lambda right, act: lambda self: {}),
)


class Unplantable(Exception):
    """What a bug patches is not there any more: the catalogue has to follow the product."""


def environment(bug: Bug, marks: Path) -> dict[str, str]:
    """What a launch needs in its environment so that the bug is in all of its processes.

    marks  an empty folder, in which each process leaves a file once the bug has acted there
    """
    path = os.pathsep.join(filter(None, [str(OUTSIDE), str(ROOT), os.environ.get("PYTHONPATH")]))
    return {"PYTHONPATH": path, BUG: bug.name, MARKS: str(marks)}


def plant(name: str) -> None:
    """In this process, for modules that are not imported yet."""
    bug = CATALOGUE[name]
    marks, acted = Path(os.environ[MARKS]), set[int]()

    def act() -> None:
        if os.getpid() not in acted:
            acted.add(os.getpid())
            (marks / f"{name}-{os.getpid()}").touch()

    patches = (*bug.patches, *COMPARISON)
    modules = {patch.module for patch in patches}
    late = sorted(modules & sys.modules.keys())
    if late:
        raise Unplantable(f"{name}: {', '.join(late)} is imported before it can be patched")
    sys.meta_path.insert(0, _Finder(name, patches, modules, act))


def parent_of(module: ModuleType, patch: Patch) -> Any:
    """What holds the function. Raises Unplantable."""
    holder: Any = module
    for name in patch.path:
        parent = holder
        if name not in vars(parent):
            has = sorted(vars(parent))
            raise Unplantable(f"{patch.target}: {parent.__name__} has no {name} of its own; it has {has}")
        holder = vars(parent)[name]
    return parent


class _Finder(MetaPathFinder):
    def __init__(self, name: str, patches: Sequence[Patch], modules: set[str], act: Any) -> None:
        self._name = name
        self._patches = patches
        self._modules = modules
        self._act = act

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._modules:
            return None
        self._modules.discard(fullname)
        spec = find_spec(fullname)  # by the others: it comes by here no more
        if spec is None or spec.loader is None:
            raise Unplantable(f"{self._name}: there is no module {fullname}")
        spec.loader = _Patching(spec.loader, self._patches, self._act)
        return spec


class _Patching(Loader):
    """Executes a module, and then patches it."""

    def __init__(self, loader: Loader, patches: Sequence[Patch], act: Any) -> None:
        self._loader = loader
        self._patches = patches
        self._act = act

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        for patch in self._patches:
            if patch.module == module.__name__:
                parent, name = parent_of(module, patch), patch.path[-1]
                setattr(parent, name, patch.make(vars(parent)[name], self._act))
