"""Saves of one process, be it alone or a rank of a group: in the foreground, or beside training.

    planned (of a group: agreed, in one round)  ->  a free half of the arena  ->  this rank's share is copied
      ->  "staged"  ->  (the writer processes, writer/) objects, count, look again, manifest  ->  "done"

Training stands still up to "staged"; or, where the caller promises that tensors are steady for a while (copying.py),
they are copied while it goes on, and it stands still for what is left of that when it ends its promise (`staged`).

What is staged, on all ranks, is committed even if all are killed right after, unless that takes longer than finish_s,
or a newer claim is taken meanwhile; what was being staged then is never looked at. Two saves can be under way, one in
each half; what happens to a third is `when_busy`. Which half is filled, whether a save is skipped or replaces another,
and whether too many have failed, rank 0 decides for all. A rank that dies before it has staged means no commit: the
others' saves fail at once, with an error that names it. So does one whose writer process dies before it has stored its
part.

Where a rank has no writer process or too little memory, all make the save in the foreground, and one line in the log
says why.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch

from elastic_checkpoint.errors import CheckpointError, TornManifest
from elastic_checkpoint.format.document import Tree
from elastic_checkpoint.format.draft import Draft
from elastic_checkpoint.format.manifest import Commit
from elastic_checkpoint.net.codec import Message
from elastic_checkpoint.net.errors import error_document
from elastic_checkpoint.save.copying import BackgroundCopy, Filling, changed, versions_of
from elastic_checkpoint.save.handle import Saving
from elastic_checkpoint.save.in_flight import InFlightSaves, Rules, dropped
from elastic_checkpoint.save.planner import Save
from elastic_checkpoint.save.ranks import Context, SaveRequest, SavingRanks
from elastic_checkpoint.save.readiness import Readiness, text_bytes
from elastic_checkpoint.save.resources import Unavailable, WriterResources, on_gpu
from elastic_checkpoint.save.writer.messages import GiveUp, Staged
from elastic_checkpoint.storage import Storage

_SLACK_S = 20.0  # how much longer than finish_s a writer process of a group may take: it says itself who is missing


class SavePipeline:
    """This process's saves. What the ranks do together all call in the same order; the rest is each rank's own."""

    def __init__(
        self, ranks: SavingRanks, storage: Storage, opening: Message | str, rules: Rules, *, log: Callable[[str], None]
    ) -> None:
        """Take the parts of a save; opening: see `WriterResources`."""
        self._ranks = ranks
        self._storage = storage
        self._log = log
        self._patience_s = rules.finish_s + (_SLACK_S if ranks.size > 1 else 0)
        self._rules = rules
        self._in_flight = InFlightSaves(storage, rules, log, patience_s=self._patience_s)
        self._resources = WriterResources(opening, rules, self._in_flight, log=log)
        self._readiness = Readiness(ranks, rules, self._in_flight, self._resources)
        self._filling: Filling | None = None
        self._filling_lock = threading.RLock()
        self._pid = os.getpid()

    def save(self, step: int, state: Tree, meta: dict[str, Any], context: Context) -> Commit:
        """Commit the state, and return when it is durable on every rank; saves under way end before. Collective.

        Raises as `SavingRanks` does.
        """
        self.settle()
        asked = SaveRequest(step, state, meta, context, "blocking=True")
        try:
            return self._saved(asked)
        except TornManifest as torn:  # the first save of a run has none before it, and nobody tries it again
            self._log(f"{torn}\n  then   it is saved again")
        return self._saved(asked)

    def warm(self, state: Tree, context: Context) -> None:
        """Plan, then start the process and make the arena, in a thread. Collective as far as the plan goes."""
        self.staged()
        with self._ranks.reporting_errors():
            save = self._ranks.plan(SaveRequest(0, state, {}, context, "warm()"), dict, _nothing)
        assert isinstance(save, Save)
        self._resources.warm(functools.partial(self._prepare, save))

    def _prepare(self, save: Save) -> None:
        """Start the process and make the arena. Raise Unavailable."""
        self._resources.started()
        self._resources.fitting(save.plan, text_bytes(save.draft), pinned=on_gpu(save.tensors))

    def give_up(self) -> None:
        """Drop what is under way, as Checkpointer.give_up_saves says."""
        self.staged()
        self._resources.join_warming()
        with self._resources.lock:
            self._in_flight.give_up()
            self._resources.kill()
        self._in_flight.settle()

    def begin(
        self,
        step: int,
        state: Tree,
        meta: dict[str, Any],
        context: Context,
        steady: Iterable[torch.Tensor] = (),
    ) -> Saving:
        """Copy this rank's share and return; the rest goes on elsewhere. Collective.

        steady  may be copied until `staged` is called; of a group they are copied at once
        raises  as `SavingRanks.plan`; CheckpointError after too many failures, ClaimLost once the claim is lost
        """
        self.staged()
        self._resources.join_warming()
        with self._resources.lock:
            saving = Saving(step)
            with self._ranks.reporting_errors():
                save = self._ranks.plan(
                    SaveRequest(step, state, meta, context, "blocking=False"),
                    self._readiness.say,
                    self._readiness.decide,
                )
                if not isinstance(save, Save):
                    saving.fail(dropped(step, save["stop"]))
                    return saving
                why = save.decided["why"]
                if why is None and (save.new or not save.decided["ready"]):
                    why = self._readiness.make_ready(save)
            if why is None:
                self._stage(save.decided["half"], save, saving, context, steady if self._ranks.size == 1 else ())
            else:
                self._in_foreground(why, save, saving, context)
            return saving

    def staged(self, wait: bool = True, *, of: Saving | None = None) -> bool:
        """Return whether no state is being copied any more, or not that of this save; see `Saving.staged`.

        Everything here that needs the arena or the writer process asks it first.
        """
        if self._pid != os.getpid():  # a forked child has neither the arena nor the thread, and maybe a held lock
            return True
        with self._filling_lock:
            filling = self._filling
            if filling is None:
                return True
            if of is not None and of is not filling.saving:
                return True
            if wait:
                filling.copying.finish()
            elif not filling.copying.done:
                return False
            self._filling = None
            try:
                with self._resources.lock:
                    self._filled(filling)
            except BaseException:
                filling.saving.fail(dropped(filling.saving.step, "it was cut off before the writer process had it"))
                raise
        return True

    def set_claim(self, claim: int) -> None:
        """Go on under this claim, as `InFlightSaves` says."""
        self._in_flight.set_claim(claim)

    def settle(self) -> None:
        """Wait until no save is under way, whatever came of them."""
        self.staged()
        self._in_flight.settle()

    def wait(self) -> None:
        """Wait until no save is under way. Raises what the newest one failed of."""
        self.staged()
        self._in_flight.wait()

    def close(self) -> None:
        """Wait until what is staged is finished, and leave no process, thread, descriptor or memory. Idempotent."""
        self.staged()
        self._resources.close(self._patience_s)

    def let_go(self) -> None:
        """Let the process finish what is staged, and end: for when nobody calls `close`."""
        self.staged()
        self._resources.let_go()

    def close_if_settled(self) -> bool:
        """Close, if no save is under way; never waits long. Returns whether it did."""
        self.staged()
        if self._in_flight.busy:
            self.let_go()
            return False
        self.close()
        return True

    # In the foreground

    def _saved(self, asked: SaveRequest) -> Commit:
        with self._ranks.reporting_errors():
            save = self._ranks.plan(asked, dict, _nothing)
            assert isinstance(save, Save)
            with asked.context.protecting(save.draft.id):
                self._ranks.write(self._storage, save)
        return save.commit

    def _in_foreground(self, why: str, save: Save, saving: Saving, context: Context) -> None:
        self._resources.warn_no_writer(why)
        self._in_flight.in_foreground(saving)
        try:
            with self._ranks.reporting_errors():
                self._ranks.write(self._storage, save)
        except CheckpointError as error:
            self._in_flight.report(saving, save.commit, error)
        else:
            self._committed(save.draft, context)()
            self._in_flight.report(saving, save.commit, None)

    # The copy is made

    def _stage(
        self, half: int, save: Save, saving: Saving, context: Context, steady: Iterable[torch.Tensor] = ()
    ) -> None:
        """Copy this rank's share, which counts from its end on; what fails here fails the other ranks' saves, too."""
        draft, process = save.draft, self._resources.process
        versions = versions_of(save.tensors, steady)
        try:
            self._in_flight.wait_for_half(half)
            stage = self._resources.fitting(save.plan, text_bytes(draft), pinned=on_gpu(save.tensors))
            remainder = stage.copy(half, save.tensors, [draft.head, draft.tail], versions)
        except BaseException as error:
            said = error_document(error, self._ranks.scrub)
            with contextlib.suppress(OSError):
                if process is not None:
                    process.send(GiveUp(id=str(draft.id), error=said))
            raise
        if remainder:
            self._filling = Filling(half, save, saving, context, BackgroundCopy(remainder, (stage, save)), versions)
            saving.stages(functools.partial(self.staged, of=saving))
        else:
            self._hand_over(half, save, saving, context, whole=True)

    def _filled(self, filling: Filling) -> None:
        """Hand over what is copied, if nothing of it was written to before; else drop the save."""
        half, save, saving, context = filling.half, filling.save, filling.saving, filling.context
        saving.beside_s = filling.copying.took_s
        if written := filling.written():
            error: CheckpointError = changed(saving.step, written)
        elif not filling.copying.done:
            error = dropped(saving.step, "its copy was cut off")
        else:
            self._hand_over(half, save, saving, context, whole=False)
            return
        self._in_flight.in_foreground(saving)
        saving.fail(error)
        self._log(str(error))

    def _hand_over(self, half: int, save: Save, saving: Saving, context: Context, *, whole: bool) -> None:
        """Tell the writer process; whole: the state is what was copied, still, and can be saved without that one."""
        if self._sent(half, save, saving, context):
            return
        if self._ranks.size > 1:
            self._in_flight.in_foreground(saving)
            self._in_flight.report(saving, save.commit, _no_writer(saving.step))
            return
        why = "two writer processes died as they were told what is staged"
        try:
            self._resources.replaced()
        except Unavailable as error:
            why = str(error)
        else:
            if self._sent(half, save, saving, context):
                return
        if whole:
            self._in_foreground(why, save, saving, context)
            return
        self._in_flight.in_foreground(saving)
        self._in_flight.report(saving, save.commit, _no_writer(saving.step))

    def _sent(self, half: int, save: Save, saving: Saving, context: Context) -> bool:
        """Return whether the writer process was told what is staged, or its end since was noticed and reported."""
        process = self._resources.process
        if process is None:
            return False
        number = self._in_flight.occupy_half(half, saving, save.commit, self._committed(save.draft, context), process)
        try:
            process.send(_staged(number, half, save))
        except OSError:
            return not self._in_flight.release_half(half, number)
        return True

    def _committed(self, draft: Draft, context: Context) -> Callable[[], None]:
        """Return what is called after the commit."""
        # It holds the draft alone, for a save would keep copies that the state made of its tensors until it is done.
        return (lambda: context.committed(draft)) if self._ranks.rank == 0 else (lambda: None)


def _nothing(said: list[Message], draft: Draft | None) -> Message:
    """Decide nothing beside."""
    return {}


def _staged(number: int, half: int, save: Save) -> Staged:
    draft = save.draft
    return Staged(
        number=number,
        half=half,
        id=draft.id._asdict(),
        claim_nonce=draft.claim_nonce,
        sizes=[*save.plan.sizes, len(draft.head), len(draft.tail)],
        all_sizes=list(draft.sizes),
        first=save.first,
    )


def _no_writer(step: int) -> CheckpointError:
    return CheckpointError(
        f"step {step} was not saved: this rank's writer process died before it was told what is staged\n"
        "  state  nothing of it was committed; the previous checkpoint stays the newest\n"
        "  next   the next save starts a new writer process; if that one dies too, look for the kernel's OOM killer"
    )
