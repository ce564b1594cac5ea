"""Views break one after the other, and nobody is lost: when has the run to end? Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

_VIEWS = 3  # that broke alike, and another one would, too


@dataclass(frozen=True)
class Standstill:
    """Views in which the very same workers lost each other at the very same place, one after the other."""

    workers: tuple[str, ...] = ()
    step: int = -1
    views: int = 0

    def broken(self, workers: tuple[str, ...], step: int) -> Standstill:
        """Return it with one more broken view of these workers; all are here again, and none is past `step`."""
        again = set(workers) == set(self.workers) and step == self.step
        return Standstill(workers, step, self.views + 1 if again else 1)

    @property
    def is_one(self) -> bool:
        """Return whether another view would not help."""
        return self.views >= _VIEWS  # a lost connection does not come again and again while nobody is lost

    def sentence(self, workers: Iterable[str]) -> str:
        """Return for people why the run ends; workers: of each, where it is."""
        doing = "".join(f"  {worker}\n" for worker in workers)
        return (
            f"{self.views} views in a row broke at step {self.step}, and no worker was lost\n"
            f"{doing}"
            "  state  what was done is saved by the worker that is farthest, if its state is whole\n"
            "  next   the workers' own lines say what their exchanges failed of: a network that drops connections "
            "between\n         them, say, or an exchange that takes longer than timeout_s"
        )
