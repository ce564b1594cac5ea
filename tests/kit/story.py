"""The events of runs that kept every promise, told without running anything. What the judge's tests start from.

A story has its own little arithmetic of who reads what; sums and weights are names that only depend on the step.
"""

from __future__ import annotations

from typing import Any

from elastic.events.digests import digest_of_indices
from elastic.events.event import Event
from elastic.state.health import merged


class Story:
    """length examples, batch per step, shares per step; a save every `save_every` steps and at the end.

    replica_size: so many workers hold one copy of the state together
    """

    def __init__(
        self,
        *,
        length: int = 20,
        batch: int = 6,
        shares: int = 4,
        save_every: int = 2,
        last_batch: str = "short",
        replica_size: int = 1,
    ) -> None:
        self.events: list[Event] = []
        self.length, self.batch, self.shares, self.save_every = length, batch, shares, save_every
        self.last_batch = last_batch
        self.replica_size = replica_size
        self.saved: tuple[int | None, int] = (None, 0)
        self.step = 0
        self._claim = 0
        self._generation = 0
        self._workers: list[str] = []
        self._born = 0
        self._passed: list[list[int]] = []
        self._saved_passed: list[list[int]] = []

    def launch(self, workers: int) -> Story:
        """New processes, a new claim, and the state of the last save."""
        self._claim += 1
        self._generation = 0
        self._workers = []
        self._form(workers)
        source = None if self.saved[0] is None else {"claim": self.saved[0], "step": self.saved[1], "nonce": "n"}
        self._emit(0, "claimed", claim=self._claim, resumed_from=source)
        self.step = self.saved[1]
        self._passed = list(self._saved_passed)
        for rank in range(workers):
            loaded = {"epoch": self.step // self.steps_per_epoch, "from_claim": self.saved[0], "digest": self.digest}
            loaded |= self._says()
            self._emit(rank, "loaded", claim=self._claim, step=self.step, **loaded)
        if self.saved[0] is None:
            self._save()
        return self

    def shrink(self, workers: int) -> Story:
        """The first `workers` workers go on in a new generation, with the state that they have."""
        self._generation += 1
        self._workers = self._workers[:workers]
        self._form(workers)
        return self

    def claim_under_way(self, workers: int) -> Story:
        """The first `workers` workers go on under the next claim, with the state that they have: hosts were lost."""
        self._claim += 1
        self.shrink(workers)
        source = None if self.saved[0] is None else {"claim": self.saved[0], "step": self.saved[1], "nonce": "n"}
        self._emit(0, "claimed", claim=self._claim, resumed_from=source)
        return self

    def regroup(self, stay: list[int], *, newcomers: int = 0, behind: tuple[int, ...] = ()) -> Story:
        """`elastic run`: these ranks go on in the next view, with new workers after them. These of the new ranks, and
        the newcomers, take the state from the others."""
        self._generation += 1
        self._workers = [self._workers[rank] for rank in stay]
        self._form(len(stay) + newcomers)
        for rank in (*behind, *range(len(stay), len(stay) + newcomers)):
            where = {"step": self.step, "epoch": self.step // self.steps_per_epoch, "from_claim": self._claim}
            self._emit(rank, "loaded", **where, **self._says())
        return self

    def leave(self, rank: int, on: str | None = None) -> Story:
        """on: what it was told"""
        if on is not None:
            self._emit(rank, "notice", signal=on)
        self._emit(rank, "left", step=self.step)
        return self

    def fault(self, rank: int, *, fatal: bool) -> Story:
        what = {"index": 0, "fault": f"kill w{rank}" if fatal else f"stop w{rank}", "fatal": fatal}
        self._emit(rank, "fault", step=self.step, phase="applied", **what)
        return self

    def train(self, until: int, *, save: bool = True) -> Story:
        while self.step < until:
            self.read()
            self.apply()
            if save and (self.step % self.save_every == 0):
                self._save()
        return self

    def read(self, ranks: list[int] | None = None) -> Story:
        """These ranks (default: all) read their shares of the step that comes next."""
        for rank in ranks if ranks is not None else range(len(self._workers)):
            for share in range(*self._block(rank), self.replica_size):
                if indices := self._indices(share):
                    self._emit(rank, "reads", step=self.step, share=share, attempt=0, indices=indices)
        return self

    def apply(self, ranks: list[int] | None = None) -> Story:
        """These ranks (default: all) apply it; the run goes on with the next."""
        self.step += 1
        for rank in ranks if ranks is not None else range(len(self._workers)):
            self._emit(rank, "step_applied", **self._applied(rank))
            self._emit(rank, "weights", step=self.step - 1, digest=self.digest)
        return self

    def pass_over(self, ranks: list[int] | None = None, *, first: int | None = None) -> Story:
        """These ranks (default: all) pass it over, and with it what was applied from step `first` on."""
        self.step += 1
        first = self.step - 1 if first is None else first
        self._passed = merged([*((one[0], one[1]) for one in self._passed), (first, self.step)])
        for rank in ranks if ranks is not None else range(len(self._workers)):
            facts = {**self._applied(rank), "first": first, "why": "the loss is nan", "signs": {"loss": "nan"}}
            facts |= {"examples": list(range(6)), "examples_count": 6} if rank == 0 else {}
            self._emit(rank, "passed_over", **facts)
            self._emit(rank, "weights", step=self.step - 1, digest=self.digest)
        return self

    def undo(self) -> Story:
        """The step that was applied last was applied by workers that then died; it comes round again."""
        self.step -= 1
        return self

    def finish(self) -> Story:
        self._save()
        for rank in range(len(self._workers)):
            self._emit(rank, "finished", step=self.step, digest=self.digest, **self._says())
        return self

    @property
    def digest(self) -> str:
        return f"weights after {self.step}"

    @property
    def steps_per_epoch(self) -> int:
        return self.length // self.batch if self.last_batch == "drop" else -(-self.length // self.batch)

    def _applied(self, rank: int) -> dict[str, Any]:
        step = self.step - 1
        self.step -= 1
        own = [index for share in range(*self._block(rank), self.replica_size) for index in self._indices(share)]
        self.step += 1
        epoch = step * self.batch // self.length if self.last_batch == "carry" else step // self.steps_per_epoch
        counts = {"count": self.batch, "attempt": 0, "redone": False, "shares": list(self._block(rank))}
        return {"step": step, "epoch": epoch, "sums": f"sums {step}", "indices": digest_of_indices(own), **counts}

    def _indices(self, share: int) -> list[int]:
        """Epoch e's order is the numbers from 0, turned by e."""
        if self.last_batch == "carry":
            start, end = self.step * self.batch, (self.step + 1) * self.batch
            order = [(at % self.length + at // self.length) % self.length for at in range(start, end)]
        else:
            epoch, in_epoch = divmod(self.step, self.steps_per_epoch)
            start, end = in_epoch * self.batch, min((in_epoch + 1) * self.batch, self.length)
            order = [(at + epoch) % self.length for at in range(start, end)]
        short = len(order) < self.batch  # it fills the fewest shares of nominal size
        shares = -(-len(order) // -(-self.batch // self.shares)) if short else self.shares
        return order[share * len(order) // shares : (share + 1) * len(order) // shares] if share < shares else []

    def _block(self, rank: int) -> tuple[int, int]:
        replica, place = divmod(rank, self.replica_size)
        replicas = len(self._workers) // self.replica_size
        return replica * self.shares // replicas + place, (replica + 1) * self.shares // replicas

    def _says(self) -> dict[str, Any]:
        return {"passed_over": [list(one) for one in self._passed]} if self._passed else {}

    def _form(self, workers: int) -> None:
        while len(self._workers) < workers:
            self._workers.append(f"w{self._born}")
            self._emit(len(self._workers) - 1, "run_started")
            self._born += 1
        for rank in range(workers):
            size = {"replica_size": self.replica_size} if self.replica_size > 1 else {}
            self._emit(rank, "view_formed", workers=list(self._workers), shares=list(self._block(rank)), **size)

    def _save(self) -> None:
        self._emit(
            0, "saved", step=self.step, bytes=1, seconds=0.1, name=f"c{self._claim}.s{self.step}", digest=self.digest
        )
        self.saved = (self._claim, self.step)
        self._saved_passed = list(self._passed)

    def _emit(self, rank: int, event: str, **facts: Any) -> None:
        common = {"generation": self._generation, "rank": rank, "world_size": len(self._workers), "claim": self._claim}
        record = {"t": float(len(self.events)), "worker": self._workers[rank], "event": event}
        self.events.append({**record, **common, **facts})
