"""The nodes that join a run in a drill: started when the fault Join has happened, or standing ready until then.

The worker that sets a Join off may stand still until the node is there: it is let go here, once a worker of that node
has entered its Run, or when the node has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from elastic.drill.faults.base import Fault
from elastic.drill.faults.join import Join
from elastic.drill.folder import DrillFolder
from elastic.drill.machine.hosting import Node

_ENDS_S = 10.0


class JoiningNodes:
    """The nodes that join one run, over all its launches.

    start   starts a node of so many workers (None: as many as every other has) that waits for a file, if one is given
    ready   the next one stands ready, its imports done
    """

    def __init__(self, drill: DrillFolder, start: Callable[[int | None, Path | None], Node], *, ready: bool) -> None:
        self._drill = drill
        self._start = start
        self._ready = ready
        self._joined: set[int] = set()  # indices of faults
        self._standing: tuple[int, Node] | None = None  # ready for the fault of this index
        self._awaited: dict[int, Node] = {}  # by that index

    def begin(self, faults: Sequence[Fault], happened: Collection[int]) -> None:
        """Begin with a launch: nobody waits for a node yet, and the first one to join stands ready."""
        self._awaited = {}
        self._stand_ready(faults, happened)

    def look(self, faults: Sequence[Fault], happened: Collection[int]) -> list[Node]:
        """Return the nodes that join since the last look; let workers go on whose node has come, or has ended."""
        found = []
        for index in set(happened) - self._joined:
            fault = faults[index]
            if isinstance(fault, Join):
                self._joined.add(index)
                self._awaited[index] = self._join(index, fault)
                found.append(self._awaited[index])
        for index, node in list(self._awaited.items()):
            if self._drill.came(node.pid).exists() or node.poll() is not None:
                del self._awaited[index]
                self._drill.let_go(index).touch()
                self._stand_ready(faults, happened)  # of two nodes at once, one would hold up the other
        return found

    def dismiss(self) -> None:
        """End the node that stands ready."""
        if self._standing is not None:
            self._standing[1].kill()
            self._standing[1].wait(timeout=_ENDS_S)
            self._standing = None

    def _join(self, index: int, fault: Join) -> Node:
        """Call the node that stands ready for this fault; start one where none does."""
        if self._standing is None or self._standing[0] != index:
            return self._start(fault.workers, None)
        self._call(index).touch()
        node, self._standing = self._standing[1], None
        return node

    def _stand_ready(self, faults: Sequence[Fault], happened: Collection[int]) -> None:
        """Have a node stand ready for the first Join that has not happened, unless one does already."""
        waiting = [(at, fault) for at, fault in enumerate(faults) if isinstance(fault, Join) and at not in happened]
        if self._ready and self._standing is None and waiting:
            index, fault = waiting[0]
            self._standing = index, self._start(fault.workers, self._call(index))

    def _call(self, index: int) -> Path:
        """Return the file that calls the node of this fault."""
        return self._drill.path / f"join-{index}"
