"""One step: this worker's shares of a batch, their gradients and sums, and the exchange that completes it.

    for each share: read -> seed its stream -> hand it to the loop's body -> backward -> its sums
    then: exchange -> exact gradients in `.grad`, exact sums in `sums` -> the update

A failed exchange has changed nothing but `.grad`: the same step comes round again in a new view, with its
sums reset (`attempt` counts). Which shares are this worker's is loop/assignment.py's to say, in which
order they are added group/tree.py's, and what applying means update.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import torch

from elastic.data.data_plan import StepPlan
from elastic.errors import UNTOUCHED, PeerLost, StepError
from elastic.events import schema
from elastic.events.timing import DATA
from elastic.group.sums import Agreed, ShareSums
from elastic.loop.assignment import pieces
from elastic.loop.exchange import Exchange
from elastic.loop.recovery import Recovery
from elastic.loop.session import Session
from elastic.membership.progress import Phase
from elastic.state.randomness import after_seed, outside_seed, seed_streams, share_seed

_PHASE = 0  # a step's only one; its place in the seeds and in the exchange's name


class Step:
    """What `for step in run` yields. Iterating over it gives this worker's shares; when they end, the step is applied.

    Attributes:
        index: Its number, from 0, over the whole run.
        epoch: That of its first example.
        step_in_epoch: Its place there, from 0.
        last_of_epoch: Whether no later step reads that epoch.
        attempt: 0, or how often the step has come round again.
        sums: After the inner loop: what `add` added, over the whole batch; the same on every worker.
        count: After the inner loop: what `backward` counted, over the whole batch.
    """

    def __init__(
        self,
        session: Session,
        recovery: Recovery,
        plan: StepPlan,
        *,
        wishes: Callable[[], int],
        apply: Callable[[Step, Agreed], None],
    ) -> None:
        self._session = session
        self._context = session.context
        self._state = session.state
        self._phases = session.phases
        self._recovery = recovery
        self._plan = plan
        self._wishes = wishes
        self._apply = apply
        self.index = plan.index
        self.epoch = plan.epoch
        self.step_in_epoch = plan.step_in_epoch
        self.last_of_epoch = plan.last_of_epoch
        self.attempt = self._state.attempt = 0
        self.sums: dict[str, Any] = {}
        self.count = 0
        self.applied = False
        self._begun = False
        self._lost: PeerLost | None = None
        self._broke: BaseException | None = None
        self._due = False
        self._last = False
        self._merges = 0
        self._piece = 0
        self._pieces = 0
        self._share: int | None = None
        self._shares: list[ShareSums] = []
        self._counted = 0
        self.indices_read: list[int] = []

    def __iter__(self) -> Iterator[Any]:
        if self._begun:
            raise StepError("a step's shares are read once; take the next step from the outer loop: for step in run")
        self._begun = True
        while True:
            exchange = self._session.exchange
            exchange.plan(self._plan)
            self._phases.enter(Phase.COMPUTING)
            try:
                yield from self._compute(exchange)
                agreed = self._complete(exchange)
                break
            except PeerLost as lost:
                self._session.body.end(self.index)
                with suppress(PeerLost):  # whoever found first that scripts went different ways has hung up
                    exchange.announced.look()
                self._recovery.recover(lost, f"in the exchange of step {self.index}")
                if self._taken_over():
                    self._left_to_the_script()
                    return
                self.attempt = self._state.attempt = self.attempt + 1
                self._context.events.emit(schema.Redo(step=self.index, attempt=self.attempt))
        self._apply(self, agreed)
        self.applied = True
        self._left_to_the_script()
        self._phases.enter_script()

    def _left_to_the_script(self) -> None:
        """The code after the inner loop draws the same on every worker: on one that has drawn noise in its update, and
        on one that took the state over from it."""
        seed_streams(after_seed(self._plan.plan.seed, self.index), self._context.config.device)

    def _taken_over(self) -> bool:
        """Whether a peer had applied this step before the exchange failed here: its state and sums came from there."""
        agreed = self._state.agreed
        if self._state.step <= self.index or agreed is None:
            return False
        self.sums, self.count, self.applied = agreed.sums, agreed.count, True
        return True

    def backward(self, loss: torch.Tensor, count: int) -> None:
        """Adds the gradients of `loss`, a sum over `count` examples (or tokens), to the step.

        The division by the global count comes once, after the exchange: pass sums, never means. One call for
        each batch that the inner loop gives; combine several losses first. An error that the body catches ends the step
        all the same: a share that broke off half way cannot be left out.

        Args:
            loss: A scalar, the sum over the batch.
            count: How many examples (or tokens) it is the sum of.

        Raises:
            StepError: It was called outside the inner loop, or a second time for one batch.
        """
        try:
            self._backward(loss, count)
        except BaseException as error:
            self._broke = error
            raise

    def _backward(self, loss: torch.Tensor, count: int) -> None:
        if not self._due:
            where = "outside the inner loop" if self._share is None else f"a second time for share {self._share}"
            raise StepError(
                f"step.backward was called {where} (step {self.index})\n{UNTOUCHED}"
                "  next   call it once for each batch of `for batch in step`; add several losses up first"
            )
        counted = _count(count)
        _check_loss(loss)
        if self._session.compiling is not None:
            self._session.compiling.check("the model is as it was before this step")
        self._due = False
        self._counted += counted
        gradients, scaler = self._session.exchange.gradients, self._context.config.scaler
        self._context.moment("backward", self._share)
        scaled = scaler.scale(loss) if scaler is not None else loss
        try:
            gradients.begin_pass(self._merges, piece=self._piece, pieces=self._pieces, last=self._last)
            scaled.backward()
            gradients.end_pass()
        except PeerLost as lost:  # a bucket could not leave: the iterator deals with it, not the loop's body
            self._lost = lost

    def add(self, **values: Any) -> None:
        """Adds to `sums`, exactly and in the tree's order.

        Args:
            **values: Numbers, or tensors of any one shape per name.

        Raises:
            StepError: It was called outside the inner loop.
        """
        if self._share is None or not self._shares:
            raise StepError(
                f"step.add was called outside the inner loop (step {self.index})\n{UNTOUCHED}"
                "  next   call it in `for batch in step`, where there is something to add"
            )
        for name, value in values.items():
            self._shares[-1].add(name, value)

    def _compute(self, exchange: Exchange) -> Iterator[Any]:
        context, plan = self._context, self._plan
        self._shares, self.indices_read, self._counted, self._lost = [], [], 0, None
        self.sums, self.count = {}, 0
        trained = exchange.begin(self.index, again=self.attempt > 0)
        self._session.body.begin(self.index, trained)
        assignment, world_size = exchange.assignment, self._session.group.world_size
        for number, (shares, merges) in enumerate(zip(assignment.batches, assignment.merges, strict=True)):
            self._share = share = shares[0]
            self._shares.append(ShareSums())
            self._merges, self._pieces = merges, pieces(context.config, plan, shares, world_size)
            last_share = number == len(assignment.batches) - 1
            for micro in range(self._pieces):
                context.moment("data", share)
                exchange.announced.look()
                self._session.group.check()
                self._phases.sign(Phase.READING)
                with context.stopwatch.on(DATA):
                    loaded = self._session.loader.next()
                self._phases.sign(Phase.COMPUTING)
                self.indices_read += loaded.indices.tolist()
                batch = context.observer.batch(loaded.batch, step=self.index, share=share, attempt=self.attempt)
                self._piece = micro
                self._last = last_share and micro == self._pieces - 1
                seed_streams(share_seed(plan.plan.seed, self.index, _PHASE, share, micro), context.config.device)
                context.moment("forward", share)
                self._due = True
                yield batch
                if self._broke is not None:
                    raise self._broken_off(share, self._broke) from self._broke
                if self._lost is not None:
                    raise self._lost
                if self._due:
                    raise StepError(
                        f"the inner loop's body ended without step.backward for share {share} of step {self.index}\n"
                        f"{UNTOUCHED}  next   call step.backward(loss_sum, count) for every batch, and not "
                        "loss.backward(); count=0 is fine"
                    )
            exchange.buffers.share_done(share, sum(plan.sizes[share] for share in shares))
        self._share = None
        self._session.body.end(self.index)

    def _broken_off(self, share: int, error: BaseException) -> StepError:
        return StepError(
            f"step.backward failed for share {share} of step {self.index}, and the inner loop's body went on\n"
            f"  found  {type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}\n"
            f"{UNTOUCHED}  next   let the exception leave the loop: every example counts once, none is skipped.\n"
            "         For what does not fit into memory there is micro_batch_size="
        )

    def _complete(self, exchange: Exchange) -> Agreed:
        """The exchange. `.grad`, `sums` and `count` are exact afterwards."""
        self._last = False
        seed_streams(outside_seed(self._plan.plan.seed, self.index, _PHASE), self._context.config.device)
        self._context.moment("exchange")
        self._phases.enter(Phase.WAITING)
        agreed = exchange.carry_out(
            (self.epoch, self.index, _PHASE),
            self._shares,
            count=self._counted,
            examples=self._plan.count,
            wishes=self._wishes(),
        )
        self.sums, self.count = agreed.sums, agreed.count
        self._phases.enter(Phase.COMPUTING)
        return agreed


def _count(count: Any) -> int:
    if isinstance(count, torch.Tensor) and count.numel() == 1 and not count.is_floating_point():
        count = int(count)
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise StepError(
            f"step.backward(loss, count={count!r}): expected how many examples (or tokens) the loss sums over, "
            f"an integer of 0 or more\n{UNTOUCHED}  next   pass count=len(y), say"
        )
    return count


def _check_loss(loss: Any) -> None:
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        found = (
            f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else f"a {type(loss).__name__}"
        )
        raise StepError(
            f"step.backward got {found}, and a loss is one number\n{UNTOUCHED}"
            '  next   sum it over the batch: reduction="sum", or loss.sum()'
        )
    if not loss.requires_grad:
        raise StepError(
            f"step.backward got a loss that no parameter takes part in\n{UNTOUCHED}"
            "  next   look for torch.no_grad(), .detach() or .item() on the way to the loss"
        )
