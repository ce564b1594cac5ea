"""What becomes of a step that is bad, decided when its sums and gradients are exact and before anything is applied.

    well       the update, as always; what it showed is remembered
    stop       BadStep, on every worker
    skip       the step is over; the state is as it was before it, and says so
    rollback   the state of the newest regular save, at the place behind the bad step: all in between is passed over

Every worker holds the same bits, knows the same past (state/health.py) and so comes to the same decision, with no
message. To pass a step over is an update like any other: what comes after it is one step ahead of what was before, so
that whoever is lost meanwhile, joins, or takes the state over finds what they find after any step.

Regular are saves after a multiple of `save_every` steps, the first state included. Which of them is the newest depends
on the step alone, and not on who was lost, who left, or when: so a run that was disturbed goes back to where the
undisturbed one goes. Only where that save is not there (it had failed, or is damaged) is an older one taken, and what
was passed over says so.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import elastic_checkpoint
from elastic.errors import UNTOUCHED, BadStep, StartFailed, StepError, WeightsNotFinite
from elastic.group.form import all_know, gather_bytes
from elastic.group.sums import Agreed
from elastic.loop.restoring.transfer import broadcast
from elastic.loop.session import Session
from elastic.membership.progress import Phase
from elastic.state.clipping import exact_norm
from elastic.state.finite import norm, not_finite
from elastic.state.health import Passed
from elastic.state.on_bad import OnBad, Signs, signs, too_many
from elastic.state.train_state import Tree


@dataclass(frozen=True)
class PassOver:
    """How a bad step is passed over.

    new    the steps among those of `passed` that were not passed over before
    state  what the run goes on with; None: with what it has
    """

    passed: Passed
    signs: Signs
    new: list[int]
    state: Tree | None = None


class BadSteps:
    """Judges steps on one worker, for as long as its session is open."""

    def __init__(self, session: Session, rule: OnBad) -> None:
        self._session = session
        self._rule = rule
        self._config = session.context.config
        self._signs: Signs | None = None
        self._checked: int | None = None

    def judge(self, step: int, agreed: Agreed) -> PassOver | None:
        """Return how the current step is passed over; None: it is well. `.grad` is exact.

        Raises BadStep, StepError; PeerLost.
        """
        rule, health = self._rule, self._session.train_state.health
        found = self._signs = self._signs_of(agreed)
        self._session.record.norm(step, found.norm)
        why = health.why_bad(found)
        if why is None:
            return None
        if rule.action == "stop":
            raise self._ends(step, why, 'on_bad="stop" ends the run before the update of such a step')
        if (enough := too_many(rule, in_a_row=health.in_a_row, in_all=len(health.passed))) is not None:
            raise self._ends(step, why, enough)
        every = self._config.saves.steps or 1
        if rule.action == "skip" or step % every == 0:  # what was saved there is what there is
            return PassOver(Passed(step, step, why), found, [step])
        # Before anything is touched: a peer that is lost here costs the current step, which comes round, bad again.
        back = self._session.all_or_none(lambda: _go_back(self._session, step - step % every, every))
        if back is None:
            raise self._ends(step, why, "no regular save is left in storage to go back to")
        first, state = back
        new = [one for one in range(first, step + 1) if health.why(one) is None]
        return PassOver(Passed(first, step, why), found, new, state)

    def applied(self) -> None:
        """Remember what the step showed that was looked at: it is applied."""
        assert self._signs is not None
        self._session.train_state.health.step_applied(self._signs)

    def pass_over(self, over: PassOver) -> None:
        """Make the state that of the next step, within the update of the one that is passed over."""
        train_state = self._session.train_state
        if over.state is not None:
            before = train_state.health.copy()
            train_state.apply({**over.state, **self._of_position()}, step=over.passed.first)
            train_state.health.went_back(before)
        train_state.health.step_passed_over(over.passed)
        for parameter in self._config.parameters().values():
            parameter.grad = None

    def check_weights(self) -> None:
        """Raise WeightsNotFinite, on all workers that ask alike, before what this one holds is saved."""
        step = self._session.state.step
        if self._checked == step:
            return
        found = not_finite(self._config.parameters(), self._session.any_mate)
        if found is not None:
            raise WeightsNotFinite(
                f"after {step} steps a weight is infinite or not a number: {found}\n"
                "  state  this is not saved; what was saved before stays the newest\n"
                "  next   start the same command again: it goes on from there. If that ends here again, look at the "
                "learning rate,\n         at Update(apply=) and at what writes to weights between two steps: every "
                "gradient was finite",
                parameter=found.partition(" ")[0],
                step=step,
            )
        self._checked = step

    def _of_position(self) -> Tree:
        """Return what goes on with the data, and not back with the weights."""
        streams = self._config.streams
        return {} if streams is None else {"extra.streams": streams.state_dict()}

    def _signs_of(self, agreed: Agreed) -> Signs:
        """Return what the step shows. Raises StepError where no share has added the loss that OnBad names."""
        gradients = [p.grad for p in self._config.parameters().values() if p.grad is not None]
        scaler = self._config.update.scaler
        scale = float(scaler.get_scale()) if scaler is not None and scaler.is_enabled() else None
        try:
            sharded = self._config.sharding is not None and bool(gradients)
            found = float(exact_norm(gradients)) if sharded else norm(gradients)
            return signs(self._rule, agreed.sums, agreed.count, found, scale)
        except KeyError as missing:
            raise StepError(
                f"OnBad(loss={self._rule.loss!r}), and no share added anything under that name\n{UNTOUCHED}"
                f"  found  {', '.join(sorted(agreed.sums)) or 'nothing was added'}\n"
                f"  next   step.add({self._rule.loss}=loss) in the inner loop, or leave loss= out: the gradient alone "
                "decides then"
            ) from missing

    def _ends(self, step: int, why: str, because: str) -> BadStep:
        """Return the error that ends the run at a bad step."""
        weight = not_finite(self._config.parameters(), self._session.any_mate)
        spoilt = "" if weight is None else f"; and no step can be well any more, for a weight is no number: {weight}"
        return BadStep(
            f"step {step} is bad: {why}\n"
            f"  found  {because}{spoilt}\n"
            f"{UNTOUCHED}"
            "  next   what was saved before stays, and the same command goes on from there to this same step. Look at "
            "the examples\n         of the step and at the learning rate; Update(on_bad='skip') or 'rollback' passes "
            "over the batch, OnBad(...) says how often",
            step=step,
            why=why,
        )


def _go_back(session: Session, step: int, every: int) -> tuple[int, Tree] | None:
    """Return (steps, state) of the newest regular save of at most `step` steps; None: there is none.

    All ranks call it. Raises PeerLost, and StartFailed where the storage failed on the coordinator; there,
    StorageError.
    """
    group, phases, saver = session.group, session.phases, session.restorer.saver
    tree: Tree | None = None
    failure: Exception | None = None
    outcome: dict[str, Any] = {}
    if group.rank == 0:
        assert saver is not None
        phases.enter(Phase.LOADING, session.restorer.storage_s)
        session.context.moment("load")
        try:
            found = saver.read_regular(step, every)
            tree = None if found is None else found[1]
            outcome = {"step": None if found is None else found[0]}
        except elastic_checkpoint.CheckpointError as failed:
            failure, outcome = failed, {"failure": f"{type(failed).__name__}: {failed}"}
    phases.enter(Phase.WAITING)
    answer = json.loads(gather_bytes(group, json.dumps(outcome).encode())[0])
    if "failure" in answer:
        all_know(group)
        raise failure or StartFailed(
            f"rank 0 could not read the save that the run goes back to\n{answer['failure']}\n"
            "  state  the model is as it was before this step, and nothing was saved\n"
            "  next   see to the storage; the same command goes on from the newest save"
        )
    if answer["step"] is None:
        return None
    state = broadcast(group, tree)
    phases.enter(Phase.COMPUTING)
    return int(answer["step"]), state
