"""What a fork server forked from its agent had loaded before the script asked for it, and where that would show.

The agent has loaded torch for itself, as its workers would, so its fork has it at once, where a fresh interpreter takes
a second and a half of a processor. In `python script.py` the script's first statements come before torch, and decide
two things about it: what it finds in the environment, and which of several modules of one name it imports.

Promises  `shows()` names what the script has done, or has beside it, that would have made a difference; `may_show()`
          says whether what it has not done yet may.
Leaves    what follows from that to process.py: a fresh interpreter, in which everything comes in the script's order.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable

_OWN = ("__main__", "__mp_main__", "elastic", "elastic_checkpoint")
_OTHERS = ("TOKENIZERS_", "HF_", "TRANSFORMERS_", "DATASETS_", "WANDB_", "MLFLOW_", "COMET_", "TENSORBOARD_", "MPL")
"""Variables that are no concern of torch, nor of what torch imports."""

# by form alone: who only seems to set something gets a fresh interpreter, and starts a second later
_SETS = re.compile(
    r"environ\s*(\[.*\]\s*\+?=(?!=)|\|=|\.(setdefault|update|pop|clear))|del .*environ|putenv|sys\.path\b"
)
_IMPORTS = re.compile(r"\s*(?:from|import)\s+(\w+)")


class Preloaded:
    """What was loaded before; made before anything of the script is looked at."""

    def __init__(self) -> None:
        self._path = set(sys.path)
        self._from = os.path.abspath(sys.path[0]) if sys.path else ""
        self._folders = {
            name: _folder_of(os.path.abspath(file))
            for name, module in list(sys.modules.items())
            if "." not in name and name not in _OWN and (file := getattr(module, "__file__", None)) is not None
        }

    def shows(self, variables: Iterable[str]) -> str | None:
        """Return in words where it shows; None: it does not, so far.

        variables  that the script, or what it imports, has set or removed
        """
        for variable in variables:
            if not variable.startswith(_OTHERS):
                return f"{variable} is set, which may have been meant for torch"
        if self._from not in map(os.path.abspath, sys.path):
            for name, folder in self._folders.items():
                if folder == self._from:
                    return f"{name} would not be loaded from {folder}"
        for folder in [one for one in sys.path if one not in self._path]:
            self._path.add(folder)
            if (own := self._shadowed(folder)) is not None:
                return f"{folder} has a module {own} of its own"
        return None

    def may_show(self, lines: Iterable[str]) -> bool:
        """Return whether lines of the script, left to the workers, may set what a module looks at that is loaded here.

        Whatever is not loaded here may set something as it is imported, ahead of torch.

        lines  before which the script has not asked for torch
        """
        known, asked_for = {*sys.stdlib_module_names, *self._folders, *_OWN}, False
        for line in lines:
            found = _IMPORTS.match(line)
            if _SETS.search(line) or (found is not None and not asked_for and found[1] not in known):
                return True
            asked_for = asked_for or line.startswith(("import torch", "from torch"))
        return False

    def _shadowed(self, folder: str) -> str | None:
        """Return the name of a loaded module that python would have found there first."""
        try:
            entries = list(os.scandir(folder))
        except OSError:
            return None
        for entry in entries:
            name, dot, _ = entry.name.partition(".")
            if self._folders.get(name, os.path.abspath(folder)) == os.path.abspath(folder):
                continue
            if dot or os.path.isfile(os.path.join(entry.path, "__init__.py")):
                return name
        return None


def _folder_of(file: str) -> str:
    """Return the folder in which python found the module."""
    folder, name = os.path.split(file)
    return os.path.dirname(folder) if name.startswith("__init__.") else folder
