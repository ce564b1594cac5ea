"""Saving and loading by this process alone. `Checkpointer` comes here where there is no group (distributed.py)."""

from __future__ import annotations

import os
import weakref

from elastic_checkpoint.format.document import Tree
from elastic_checkpoint.load.into_state import LoadRules, load_alone
from elastic_checkpoint.load.loaded import Loaded
from elastic_checkpoint.net.codec import Message
from elastic_checkpoint.runs.history import Log
from elastic_checkpoint.save.in_flight import Rules
from elastic_checkpoint.save.pipeline import SavePipeline
from elastic_checkpoint.save.planner import Planner
from elastic_checkpoint.save.ranks import OneRank
from elastic_checkpoint.storage import Storage


class LocalProcess:
    """A forked child shares neither memory nor writer process with its parent: its saves are its own."""

    def __init__(self, storage: Storage, opening: Message | str, rules: Rules, planner: Planner, *, log: Log) -> None:
        """Save by this process alone; opening: what a writer process opens, or why there cannot be one."""
        self._storage, self._opening, self._rules, self._planner, self._log = storage, opening, rules, planner, log
        self._pipeline: SavePipeline | None = None
        self._pid = 0
        self._let_go: weakref.finalize[[], LocalProcess] | None = None

    @property
    def saves(self) -> SavePipeline | None:
        """Return the saves of this process; None where it has made none."""
        return self._pipeline if self._pid == os.getpid() else None

    def pipeline(self) -> SavePipeline:
        """Return what saves are made with."""
        found = self.saves
        if found is None:
            found = SavePipeline(OneRank(self._planner), self._storage, self._opening, self._rules, log=self._log)
            self._pipeline, self._pid = found, os.getpid()
            self._let_go = weakref.finalize(self, found.let_go)
        return found

    def load(self, state: Tree, rules: LoadRules) -> Loaded:
        """Load as `load_alone` says."""
        return load_alone(self._storage, state, rules)

    def close(self, *, finish: bool) -> None:
        """Finish what is staged, or leaves it to the writer process. Idempotent."""
        if (saves := self.saves) is not None:
            saves.close() if finish else saves.let_go()
