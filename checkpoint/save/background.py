"""Saves that training does not wait for: copied into a warm arena, written by the writer process.

    a free half  ->  copy  ->  "staged"  ->  (the writer process) objects, count, look again, manifest  ->  "done"

Training stands still for the first three. What is staged is committed even if this process is killed right after; what
was being staged then is never looked at. Two saves can be under way, one in each half; what happens to a third is
`when_busy`. Where no writer process or too little memory is to be had, saves are made in the foreground, and one line
in the log says why.

This is for a process that saves alone; group/ is for ranks that save together.
"""

from __future__ import annotations

from collections.abc import Callable

from checkpoint.errors import CheckpointError
from checkpoint.format.draft import Draft
from checkpoint.net.framing import Message
from checkpoint.save.foreground import save_now
from checkpoint.save.handle import Saving
from checkpoint.save.in_flight import InFlightSaves, Rules, dropped
from checkpoint.save.planner import Save
from checkpoint.save.resources import Unavailable, WriterResources, on_gpu
from checkpoint.storage import Storage

Committed = Callable[[Draft], None]


class Background:
    """The saves under way of one checkpointer."""

    def __init__(
        self,
        storage: Storage,
        opening: Message | None,
        rules: Rules,
        *,
        unusable: str | None,
        log: Callable[[str], None],
    ) -> None:
        """opening, unusable  see `WriterResources`"""
        self._storage = storage
        self._rules = rules
        self._underway = InFlightSaves(storage, rules, log, patience_s=rules.finish_s)
        self._resources = WriterResources(opening, rules, self._underway, unusable=unusable, log=log)

    @property
    def ready(self) -> bool:
        """Whether a save need not wait for a process or for memory to be had."""
        return self._resources.ready

    def warm(self, save: Save) -> None:
        """Starts the process and makes the arena for saves like this one, in a thread. Returns at once."""
        plan, text_bytes, pinned = save.plan, _text_bytes(save), on_gpu(save.tensors)

        def prepare() -> None:
            self._resources.started()
            self._resources.fitting(plan, text_bytes, pinned=pinned)

        self._resources.warm(prepare)

    def begin(self, save: Save, committed: Committed) -> Saving:
        """Copies the state and returns; the rest goes on elsewhere.

        committed  called after the commit, before the save counts as done; must not block
        raises     CheckpointError after too many failures; ClaimLost once the claim is lost
        """
        self._resources.join_warming()
        self._underway.raise_what_ended_saving()
        with self._resources.lock:
            saving = Saving(save.draft.id.step)
            half = self._underway.claim_half()
            if half is None:
                why = f"two saves are under way, and when_busy is {self._rules.when_busy!r}"
                saving.fail(dropped(saving.step, why))
                return saving
            try:
                self._resources.started()
                stage = self._resources.fitting(save.plan, _text_bytes(save), pinned=on_gpu(save.tensors))
                stage.copy(half, save.tensors, [save.draft.head, save.draft.tail])
                self._send_staged(half, save, saving, committed)
            except Unavailable as why:
                self._resources.say_why_not(str(why))
                self._in_foreground(save, saving, committed)
            return saving

    def settle(self) -> None:
        """Returns when no save is under way, whatever came of them."""
        self._underway.settle()

    def wait(self) -> None:
        """Returns when no save is under way. Raises what the newest one failed of."""
        self._underway.wait()

    def close(self) -> None:
        """Waits until what is staged is finished, and leaves no process, thread, descriptor or memory. Idempotent."""
        self._resources.close(self._rules.finish_s)

    def let_go(self) -> None:
        """For when nobody calls `close`: the process finishes what is staged, and ends."""
        self._resources.let_go()

    def _send_staged(self, half: int, save: Save, saving: Saving, committed: Committed) -> None:
        """From here on the half counts. If the writer died just now, another one is told."""
        draft = save.draft  # `save` would keep copies that the state made of its tensors until the save is done
        message = staged(half, draft, draft.sizes)
        for _ in range(2):
            process = self._resources.started()
            number = self._underway.take(half, saving, save.commit, lambda: committed(draft), process)
            try:
                process.send({**message, "number": number})
                return
            except OSError:
                if not self._underway.untake(half, number):
                    return  # its end was noticed, and reported
                process.end(0)
        raise Unavailable("two writer processes died as they were told what is staged")

    def _in_foreground(self, save: Save, saving: Saving, committed: Committed) -> None:
        self._underway.in_foreground(saving)
        try:
            save_now(self._storage, save)
        except CheckpointError as error:
            self._underway.report(saving, save.commit, error)
        else:
            committed(save.draft)
            self._underway.report(saving, save.commit, None)


def staged(half: int, draft: Draft, sizes: tuple[int, ...], first: int = 0) -> Message:
    """What the writer process is told; its number is the sender's to add.

    sizes  of the objects in this half, which are those of the draft from number `first` on
    """
    return {
        "kind": "staged",
        "half": half,
        "id": draft.id._asdict(),
        "claim_nonce": draft.claim_nonce,
        "sizes": [*sizes, len(draft.head), len(draft.tail)],
        "all_sizes": draft.sizes,
        "first": first,
    }


def _text_bytes(save: Save) -> int:
    return len(save.draft.head) + len(save.draft.tail)
