"""Can all ranks save in the background now, and into which half? What they say of it, and what rank 0 decides."""

from __future__ import annotations

from elastic_checkpoint.format.draft import Draft
from elastic_checkpoint.net.codec import Message
from elastic_checkpoint.save.in_flight import InFlightSaves, Rules
from elastic_checkpoint.save.planner import Save
from elastic_checkpoint.save.ranks import SavingRanks
from elastic_checkpoint.save.resources import Unavailable, WriterResources, on_gpu
from elastic_checkpoint.save.writer.messages import Connect, Serve


class Readiness:
    """This rank's arena, writer process and halves, as the ranks that save together agree on them."""

    def __init__(self, ranks: SavingRanks, rules: Rules, in_flight: InFlightSaves, resources: WriterResources) -> None:
        self._ranks, self._rules, self._in_flight, self._resources = ranks, rules, in_flight, resources

    def say(self) -> Message:
        """Return what this rank says, for rank 0 to decide.

        It says why it cannot save in the background; which halves are free; where its writer meets the others, if it
        does; whether its arena is there.
        """
        why, plan = None, self._ranks.planned
        try:
            self._resources.started()
            if self._resources.met is None and self._ranks.rank == 0 and self._ranks.size > 1:
                self._resources.meet(Serve(size=self._ranks.size))
        except Unavailable as error:
            why = str(error)
        return {
            "why": why,
            "free": self._in_flight.free(),
            "met": self._resources.met,
            "fits": plan is not None and self._resources.fits(plan, 0),
        }

    def decide(self, said: list[Message], draft: Draft | None) -> Message:
        """Decide on rank 0. "stop" says why there is no save; "why", why it is made in the foreground."""
        self._in_flight.raise_what_ended_saving()
        why = next((f"{self._named(rank)}{one['why']}" for rank, one in enumerate(said) if one["why"]), None)
        if why is not None:
            return {"why": why}
        everywhere = [half for half in said[0]["free"] if all(half in one["free"] for one in said)]
        busy = not all(one["free"] for one in said)
        half = everywhere[0] if everywhere else None
        if half is None and not (busy and self._rules.when_busy == "skip"):
            # Where it is not free yet, it will be as soon as that rank hears of it.
            half = self._in_flight.next_half()
        if half is None:
            return {"stop": f"two saves are under way, and when_busy is {self._rules.when_busy!r}"}
        plan = self._ranks.planned
        fits = draft is not None and plan is not None and self._resources.fits(plan, text_bytes(draft))
        ready = fits and all(one["fits"] and one["met"] == said[0]["met"] for one in said)
        return {"why": None, "half": half, "ready": ready, "endpoint": said[0]["met"]}

    def make_ready(self, save: Save) -> str | None:
        """Make an arena for this plan on each rank, and connect all writers; return why not, if so. Collective."""
        mine: str | BaseException | None = None
        try:
            self._resources.fitting(save.plan, text_bytes(save.draft), pinned=on_gpu(save.tensors))
            endpoint = save.decided["endpoint"]
            if self._resources.met != endpoint:
                self._resources.meet(Connect(rank=self._ranks.rank, size=self._ranks.size, endpoint=endpoint))
        except Unavailable as error:
            mine = f"{self._named(self._ranks.rank)}{error}"
        except BaseException as error:  # whatever it is, the others must not wait for this rank
            mine = error
        return self._ranks.first_reason(f"the save of step {save.commit.step}: that all ranks are ready for it", mine)

    def _named(self, rank: int) -> str:
        return f"rank {rank}: " if self._ranks.size > 1 else ""


def text_bytes(draft: Draft) -> int:
    """Return how long both ends of the manifest's text are, which are staged with the objects."""
    return len(draft.head) + len(draft.tail)
