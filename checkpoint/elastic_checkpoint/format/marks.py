"""Which entries of a state may differ from rank to rank, and what becomes of them. All others are one value for all.

    per_rank   each rank's own value is saved, and given back to that rank
    rank0      rank 0's value is saved, and given back to all. Buffers of modules count among these: DDP itself gives
               rank 0's to all ranks at the next forward, and BatchNorm's differ until then

An entry is named by its path (`rng`, `loader.position`, `optimizer.state[0].exp_avg`), which means all that is below it
too; `*` stands for any text: `model.*.running_*`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from elastic_checkpoint.errors import CheckpointError, StateMismatch
from elastic_checkpoint.format.document import Document, Tree, child

_RUNNING = {"running_mean", "running_var", "num_batches_tracked"}  # also where a module comes as its state_dict()


class PerRank(tuple[Any, ...]):
    """One value of each rank that saved, by rank; stands where the entry was."""


class Patterns:
    """Patterns of the paths of entries, as the file's promise says."""

    def __init__(self, texts: Iterable[str], name: str) -> None:
        """Check the patterns; name: of the argument that they were given as."""
        self.texts = tuple([texts] if isinstance(texts, str) else texts)
        wrong = [text for text in self.texts if type(text) is not str or not text]
        if wrong:
            raise CheckpointError(f"{name}= takes paths of entries, such as 'rng' or 'model.*.running_*'; got {wrong}")
        alternatives = "|".join(re.escape(text).replace(r"\*", ".*") for text in self.texts)
        self._match = re.compile(rf"(?:{alternatives})(?:[.\[].*)?", re.DOTALL).fullmatch if self.texts else None

    def __bool__(self) -> bool:
        return bool(self.texts)

    def match(self, path: str) -> bool:
        return self._match is not None and self._match(path) is not None


@dataclass
class Marks:
    """What one rank's encoding of a state notes of such entries.

    own       path -> the document of this rank's own value
    nodes     path -> the node of the document that stands for it
    rank0     names of tensors of which rank 0's are saved, since `rank0` names them
    buffers   and since they are buffers
    """

    per_rank_paths: Patterns
    rank0_paths: Patterns
    rank: int = 0
    own: dict[str, Document] = field(default_factory=dict)
    nodes: dict[str, dict[str, Any]] = field(default_factory=dict)
    own_tensors: set[str] = field(default_factory=set)
    rank0: set[str] = field(default_factory=set)
    buffers: set[str] = field(default_factory=set)
    buffer_paths: set[str] = field(default_factory=set)

    def note_tensor(self, name: str, path: str) -> None:
        if self.rank0_paths.match(path):
            self.rank0.add(name)
        elif path in self.buffer_paths or path.rpartition(".")[2] in _RUNNING:
            self.buffers.add(name)

    def join(self, owns: Sequence[dict[str, Document]]) -> None:
        """Put all ranks' own values into this rank's document. Raises CheckpointError where one lacks an entry."""
        for rank, one in enumerate(owns):
            if one.keys() != self.nodes.keys():
                odd = sorted(one.keys() ^ self.nodes.keys())
                raise CheckpointError(
                    f"per_rank= names entries that some ranks lack: {', '.join(odd[:5])} "
                    f"{'is' if len(odd) == 1 else 'are'} on rank 0 or on rank {rank} alone\n"
                    "  state  nothing was saved\n  next   give all ranks a state of the same form; None is a value, too"
                )
        for path, node in self.nodes.items():
            node["items"] = [one[path] for one in owns]


class Resolver:
    """Gives a rank its own part of a tree that was saved.

    kept   paths that were left out, because another number of ranks saved them and `resized` is "keep"
    """

    def __init__(self, rank: int, size: int, resized: str) -> None:
        self._rank, self._size, self._resized = rank, size, resized
        self.kept: list[str] = []
        self._refused: dict[str, str] = {}

    def resolve(self, tree: Tree) -> Tree:
        """Return the tree, changed in place. Raises StateMismatch that names what another number of ranks saved."""
        found = self._visit(tree, "")
        if self._refused:
            lines = "\n".join(f"  {path}: {what}" for path, what in list(self._refused.items())[:20])
            raise StateMismatch(
                f"the checkpoint holds values of each rank, and other ranks are here: {len(self._refused)} entries\n"
                f"{lines}\n"
                "  state  nothing was changed\n"
                f"  next   load on as many ranks; or make the Checkpointer with per_rank_resized='keep', which leaves "
                "these\n         entries as they are here; or take those that you want from read().tree",
                missing=[],
                unexpected=[],
                misshaped=self._refused,
            )
        return found

    def _visit(self, tree: Tree, path: str) -> Tree:
        if isinstance(tree, PerRank):
            if len(tree) == self._size:
                return tree[self._rank]
            what = f"saved by {len(tree)} rank{'s' * (len(tree) != 1)}, here {self._size}"
            if self._resized == "keep":
                self.kept.append(path)
            else:
                self._refused[path] = what
            return KEPT
        if isinstance(tree, dict):
            for key, value in list(tree.items()):
                tree[key] = self._visit(value, child(path, key))
        elif isinstance(tree, list):
            tree[:] = [self._visit(value, child(path, index)) for index, value in enumerate(tree)]
        elif type(tree) is tuple:
            return tuple(self._visit(value, child(path, index)) for index, value in enumerate(tree))
        return tree


class _Kept:
    """Stands for what is not to be loaded."""


KEPT = _Kept()
