"""The folder of one run in a drill: how its processes let each other know what has happened.

plan.json   the plan of faults
happened/   a file for each fault that has happened, made by whoever sets it off: only one process can. It holds the
            generation of the view that it happened in, and nothing where that is no view of this launch
struck/     a file for each fault whose work is done
let_go/     a file for each fault whose worker, which stands still, is to go on
came/       the pids of agents of whom a worker has entered its Run
failed/     a file for each failure of a worker by a fault, named by what it counts as and the step
ranks/      the pid of each rank of each view, where several workers are to be killed together
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from elastic.drill.machine.processes import marked

_COMING = "coming-"


@dataclass(frozen=True)
class DrillFolder:
    """The files by which processes of one run tell each other of faults, named by their index in the plan."""

    path: Path

    @property
    def plan(self) -> Path:
        return self.path / "plan.json"

    def begin_launch(self) -> None:
        """Make the folders, and forget the views of what has happened: they are none of the launch that begins."""
        for name in ("happened", "struck", "let_go", "came", "failed", "ranks", "logs"):
            (self.path / name).mkdir(parents=True, exist_ok=True)
        for index in self.happened():
            self.forget_view(index)

    def happened(self) -> dict[int, str]:
        """Return which faults have happened, by index, each with the generation that its file holds."""
        return {int(path.name): path.read_text() for path in (self.path / "happened").glob("[0-9]*")}

    def claim(self, index: int, generation: int) -> bool:
        """Put on record that this fault happens now; return False if it has happened before."""
        own = self.path / "happened" / f"{_COMING}{index}-{os.getpid()}"
        own.write_text(str(generation))
        try:
            os.link(own, self.path / "happened" / str(index))
        except FileExistsError:
            return False
        finally:
            own.unlink()
        return True

    def forget_view(self, index: int) -> None:
        """Let the next fault come in the view in which this one happened."""
        (self.path / "happened" / str(index)).write_text("")

    def struck(self, index: int) -> Path:
        """Return the file that says that this fault's work is done."""
        return self.path / "struck" / str(index)

    def let_go(self, index: int) -> Path:
        """Return the file that lets the worker go on which this fault has stopped."""
        return self.path / "let_go" / str(index)

    def came(self, agent: int) -> Path:
        """Return the file that the first worker of the agent with this pid makes."""
        return self.path / "came" / str(agent)

    def record_failure(self, failure: str, step: int) -> None:
        """Put on record that a worker fails in this way, at this step."""
        (self.path / "failed" / f"{failure}-{step}").touch()

    def failures(self, failure: str) -> list[int]:
        """Return the steps at which a worker has failed in this way."""
        return [int(path.name.rpartition("-")[2]) for path in (self.path / "failed").glob(f"{failure}-*")]

    def record_rank(self, generation: int, rank: int) -> None:
        """Put on record that this process has that rank in the view."""
        (self.path / "ranks" / f"{generation}-{rank}").write_text(str(os.getpid()))

    def alive_with_ranks(self, generation: int, ranks: Iterable[int]) -> list[int]:
        """Return the pids of the workers with these ranks that have come to the view, and still run."""
        paths = [self.path / "ranks" / f"{generation}-{rank}" for rank in ranks]
        return self.alive(int(path.read_text() or 0) for path in paths if path.exists())

    def alive(self, pids: Iterable[int]) -> list[int]:
        """Return those of these pids that still run and belong to the drill."""
        living = marked(self.path)
        return [pid for pid in pids if pid in living]
