"""Saves by several ranks that training does not wait for: each rank stages its share, the writer processes do the rest.

    agreed (one round)  ->  every rank copies its share  ->  "staged"  ->  (writer/group.py) the commit

Training on a rank stands still for the first two. Which half of the arenas is filled, whether a save is skipped or
replaces another, and whether too many have failed, rank 0 decides for all. From the moment on that all ranks have
staged, the save needs none of them: it is committed even if all are killed. A rank that dies before that means no
commit: the others' saves fail at once, with an error that names it. So does one whose writer process dies before it
has stored its part.

Where one rank has no writer process or too little memory, all make the save in the foreground, and say why.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from checkpoint.errors import CheckpointError
from checkpoint.format.draft import Draft
from checkpoint.format.tree import Tree
from checkpoint.net.errors import error_document
from checkpoint.net.framing import Message
from checkpoint.net.rank_channel import RankChannel
from checkpoint.runs.claims import Claim
from checkpoint.save.background import staged
from checkpoint.save.group.agreement import Agreed, Agreement
from checkpoint.save.group.foreground import write_together
from checkpoint.save.handle import Saving
from checkpoint.save.in_flight import InFlightSaves, Rules, dropped
from checkpoint.save.resources import Unavailable, WriterResources, on_gpu
from checkpoint.storage import Storage

_SLACK_S = 20.0  # how much longer than finish_s a writer process may take: it says itself who is missing


@dataclass(frozen=True)
class Context:
    """What a save needs of the checkpointer.

    claim, now_s  are called on rank 0
    committed     is called there after the commit, before the save counts as done; must not block
    """

    claim: Callable[[], Claim]
    now_s: Callable[[], float]
    committed: Callable[[Draft], None]


class BackgroundTogether:
    """One rank's saves under way. All ranks call `warm` and `begin`, in the same order; the rest is each rank's own."""

    def __init__(
        self,
        channel: RankChannel,
        agreement: Agreement,
        storage: Storage,
        opening: Message | None,
        rules: Rules,
        *,
        unusable: str | None,
        log: Callable[[str], None],
    ) -> None:
        """opening, unusable  see `WriterResources`"""
        self._channel = channel
        self._agreement = agreement
        self._storage = storage
        self._rules = rules
        self._underway = InFlightSaves(storage, rules, log, patience_s=rules.finish_s + _SLACK_S)
        self._resources = WriterResources(opening, rules, self._underway, unusable=unusable, log=log)

    @property
    def ready(self) -> bool:
        """Whether a save need not wait for a process or for memory to be had on this rank."""
        return self._resources.ready

    def warm(self, state: Tree, context: Context) -> None:
        """Plans, then starts the process and makes the arena, in a thread. Collective as far as the plan goes."""
        agreed = self._agreement.reach(0, state, {}, claim=context.claim, now_s=context.now_s, how="warm()")
        assert isinstance(agreed, Agreed)

        def prepare() -> None:
            self._resources.started()
            self._resources.fitting(agreed.layout.plan, _text_bytes(agreed.draft), pinned=on_gpu(agreed.tensors))

        self._resources.warm(prepare)

    def begin(self, step: int, state: Tree, meta: dict[str, Any], context: Context) -> Saving:
        """Copies this rank's share and returns; the rest goes on elsewhere. Collective.

        raises  the same on all ranks: CheckpointError after too many failures or for ranks that are silent or gone,
                ClaimLost once the claim is lost, UnsupportedValue
        """
        self._resources.join_warming()
        with self._resources.lock:
            saving = Saving(step)
            with self._channel.telling():
                agreed = self._agreement.reach(
                    step,
                    state,
                    meta,
                    claim=context.claim,
                    now_s=context.now_s,
                    how="blocking=False",
                    say=self._say,
                    more=self._decide,
                )
                if not isinstance(agreed, Agreed):
                    saving.fail(dropped(step, agreed["stop"]))
                    return saving
                why = agreed.more["why"]
                if why is None and (agreed.new or not agreed.more["ready"]):
                    why = self._made_ready(agreed)
            if why is None:
                self._stage(agreed.more["half"], agreed, saving, context)
            else:
                self._resources.say_why_not(why)
                self._in_foreground(agreed, saving, context)
            return saving

    def settle(self) -> None:
        """Returns when no save is under way, whatever came of them."""
        self._underway.settle()

    def wait(self) -> None:
        """Returns when no save is under way. Raises what the newest one failed of."""
        self._underway.wait()

    def close(self) -> None:
        """Waits until what is staged is finished, and leaves no process, thread, descriptor or memory. Idempotent."""
        self._resources.close(self._rules.finish_s + _SLACK_S)

    def let_go(self) -> None:
        """For when nobody calls `close`: the process finishes what is staged, and ends."""
        self._resources.let_go()

    def close_if_settled(self) -> bool:
        """Closes, if no save is under way; never waits long. Returns whether it did."""
        if self._underway.busy:
            self.let_go()
            return False
        self.close()
        return True

    # What is agreed on beside the state

    def _say(self) -> Message:
        """This rank's: why it cannot save in the background; which halves are free; where its writer meets the others,
        if it does; whether its arena is there."""
        why, layout = None, self._agreement.layout
        try:
            self._resources.started()
            if self._resources.met is None and self._channel.rank == 0 and self._channel.size > 1:
                self._resources.meet({"kind": "serve", "size": self._channel.size})
        except Unavailable as error:
            why = str(error)
        return {
            "why": why,
            "free": self._underway.free(),
            "met": self._resources.met,
            "fits": layout is not None and self._resources.fits(layout.plan, 0),
        }

    def _decide(self, said: list[Message], draft: Draft | None) -> Message:
        """On rank 0. "stop" says why there is no save; "why", why it is made in the foreground."""
        self._underway.raise_what_ended_saving()
        why = next((f"rank {rank}: {one['why']}" for rank, one in enumerate(said) if one["why"]), None)
        if why is not None:
            return {"why": why}
        everywhere = [half for half in said[0]["free"] if all(half in one["free"] for one in said)]
        busy = not all(one["free"] for one in said)
        half = everywhere[0] if everywhere else None
        if half is None and not (busy and self._rules.when_busy == "skip"):
            half = self._underway.claim_half()  # where it is not free yet, it will be as soon as that rank hears of it
        if half is None:
            return {"stop": f"two saves are under way, and when_busy is {self._rules.when_busy!r}"}
        layout = self._agreement.layout
        fits = draft is not None and layout is not None and self._resources.fits(layout.plan, _text_bytes(draft))
        ready = fits and all(one["fits"] and one["met"] == said[0]["met"] for one in said)
        return {"why": None, "half": half, "ready": ready, "endpoint": said[0]["met"]}

    def _made_ready(self, agreed: Agreed) -> str | None:
        """An arena for this plan on each rank, and all writers connected; or why not. Collective."""
        mine: Message | BaseException
        try:
            mine = {"why": None}
            self._resources.fitting(agreed.layout.plan, _text_bytes(agreed.draft), pinned=on_gpu(agreed.tensors))
            endpoint = agreed.more["endpoint"]
            if self._resources.met != endpoint:
                rank = {"rank": self._channel.rank, "size": self._channel.size}
                self._resources.meet({"kind": "meet", "endpoint": endpoint, **rank})
        except Unavailable as error:
            mine = {"why": str(error)}
        except BaseException as error:  # whatever it is, the others must not wait for this rank
            mine = error

        def first_reason(said: list[Message]) -> list[Message]:
            why = next((f"rank {rank}: {one['why']}" for rank, one in enumerate(said) if one["why"]), None)
            return [{"why": why}] * len(said)

        what = f"the save of step {agreed.commit.step}: that all ranks are ready for it"
        why: str | None = self._channel.agree(what, mine, first_reason)["why"]
        return why

    # The copy is made

    def _stage(self, half: int, agreed: Agreed, saving: Saving, context: Context) -> None:
        """From its end on this rank's share counts. Whatever fails here, the other ranks' saves fail of it too."""
        draft, plan = agreed.draft, agreed.layout.plan
        process = self._resources.process
        try:
            self._underway.wait_for_half(half)
            stage = self._resources.fitting(plan, _text_bytes(draft), pinned=on_gpu(agreed.tensors))
            stage.copy(half, agreed.parts(), [draft.head, draft.tail])
        except BaseException as error:
            said = error_document(error, self._channel.scrub)
            give_up = {"kind": "give_up", "id": str(draft.id), "error": said}
            with contextlib.suppress(OSError):
                if process is not None:
                    process.send(give_up)
            raise
        message = staged(half, draft, plan.sizes, agreed.layout.first)
        if process is None:
            self._underway.in_foreground(saving)
            self._underway.report(saving, agreed.commit, _no_writer(saving.step))
            return
        number = self._underway.take(half, saving, agreed.commit, self._committed(agreed, context), process)
        try:
            process.send({**message, "number": number})
        except OSError:
            if self._underway.untake(half, number):  # else its end was noticed, and reported
                self._underway.report(saving, agreed.commit, _no_writer(saving.step))

    def _in_foreground(self, agreed: Agreed, saving: Saving, context: Context) -> None:
        self._underway.in_foreground(saving)
        try:
            with self._channel.telling():
                write_together(self._channel, self._storage, agreed)
        except CheckpointError as error:
            self._underway.report(saving, agreed.commit, error)
        else:
            self._committed(agreed, context)()
            self._underway.report(saving, agreed.commit, None)

    def _committed(self, agreed: Agreed, context: Context) -> Callable[[], None]:
        draft = agreed.draft  # `agreed` would keep copies that the state made of its tensors until the save is done
        return (lambda: context.committed(draft)) if self._channel.rank == 0 else (lambda: None)


def _text_bytes(draft: Draft) -> int:
    return len(draft.head) + len(draft.tail)


def _no_writer(step: int) -> CheckpointError:
    return CheckpointError(
        f"step {step} was not saved: this rank's writer process died before it was told what is staged\n"
        "  state  nothing of it was committed; the previous checkpoint stays the newest\n"
        "  next   the next save starts a new writer process; if that one dies too, look for the kernel's OOM killer"
    )
