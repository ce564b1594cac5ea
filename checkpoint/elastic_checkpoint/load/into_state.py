"""Loads the newest whole checkpoint into a state, by one process alone (group/load.py: by several ranks together)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from elastic_checkpoint.format.document import Tree
from elastic_checkpoint.format.marks import Resolver
from elastic_checkpoint.format.names import CommitId
from elastic_checkpoint.load.apply import apply
from elastic_checkpoint.load.cast import Cast
from elastic_checkpoint.load.integrity import Search
from elastic_checkpoint.load.loaded import Loaded
from elastic_checkpoint.load.reader import read_commit
from elastic_checkpoint.runs.history import Log
from elastic_checkpoint.storage import Storage


@dataclass(frozen=True)
class LoadRules:
    """How one `load` goes: which checkpoint, and what becomes of what does not fit.

    resized  what becomes of values of each rank where other ranks are here; see `Resolver`
    prepare  is called on every rank before anything is read
    search   makes the search for a checkpoint that is whole, of this step or of any; rank 0 searches
    loaded   is called on rank 0 with what was loaded, and what the newest commit was then
    """

    step: int | None
    strict: bool
    cast: Cast
    resized: str
    log: Log
    prepare: Callable[[], None]
    search: Callable[[int | None], Search]
    loaded: Callable[[CommitId, CommitId], None]


def load_alone(storage: Storage, state: Tree, rules: LoadRules) -> Loaded:
    """Load the newest whole checkpoint into the state; return its step. Raises as the search does, or StateMismatch."""
    rules.prepare()
    search = rules.search(rules.step)
    checkpoint = search.first_whole(functools.partial(read_commit, storage, shared=True))
    resolver = Resolver(0, 1, rules.resized)
    tree = resolver.resolve(checkpoint.tree)
    skipped = apply(state, tree, strict=rules.strict, cast=rules.cast, kept=resolver.kept)
    if any(skipped):
        rules.log(skipped.line(checkpoint.step))
    assert search.newest is not None
    rules.loaded(checkpoint.commit.id, search.newest)
    return Loaded(checkpoint.step, skipped)
