"""Bugs in what becomes of those who survive a loss, and of those who join them."""

from __future__ import annotations

from typing import Any

from tests.kit.planted.bug import Act, planted


@planted("elastic.loop.restoring.restorer:pass_on", plan="lost", caught_by={"agreement", "reference"})
def forget_momentum_in_a_transfer(right: Any, act: Act) -> Any:
    """A newcomer gets the weights, and zeros for the optimizer's averages."""

    def pass_on(*arguments: Any) -> Any:
        passed = right(*arguments)
        if passed.state is not None:
            act()
            for entry in passed.state["optimizer"]["state"].values():
                entry["exp_avg"].zero_()
                entry["exp_avg_sq"].zero_()
        return passed

    return pass_on


@planted("elastic.loop.steps.update:Update._open", plan="lost", caught_by={"agreement", "reference"})
def donate_a_torn_state(right: Any, act: Act) -> Any:
    """What a newcomer gets is half from before the last update and half from after it."""

    def open_update(self: Any) -> None:
        model = self._context.observed.model
        _BEFORE.update({name: tensor.clone() for name, tensor in model.state_dict().items()})
        right(self)

    return open_update


_BEFORE: dict[str, Any] = {}


@donate_a_torn_state.also("elastic.loop.restoring.restorer:pass_on")
def _(right: Any, act: Act) -> Any:
    def pass_on(group: Any, parts: Any, side_state: Any, state: Any, weights: Any, sharding: Any = None) -> Any:
        if parts.need_state and group.rank in parts.donors and _BEFORE:
            act()
            model = state["model"].state_dict()
            torn = dict(list(_BEFORE.items())[: len(model) // 2])
            state = {**state, "model": {**model, **torn}}
        return right(group, parts, side_state, state, weights, sharding)

    return pass_on


@planted("elastic.loop.recovery:Recovery.recover", plan="lost", caught_by={"position", "coverage"})
def give_up_the_step_in_flight(right: Any, act: Act) -> Any:
    """Survivors go on two steps later: the one whose exchange failed is never done, nor the next."""

    def recover(self: Any, *what: Any) -> None:
        right(self, *what)
        act()
        self._state.step += 2  # the first of them may have been applied, by the worker that was lost and no other
        self._session.read_from(self._state.step)

    return recover


@planted("elastic.loop.recovery:Recovery.recover", plan="lost", caught_by={"lost"})
def restart_survivors(right: Any, act: Act) -> Any:
    """Survivors of a loss end and are started again, as torchrun has it."""

    def recover(self: Any, *what: Any) -> None:
        act()
        raise SystemExit(75)

    return recover


@planted(
    "elastic.loop.restoring.restorer:StateRestorer.from_peers_or_storage", plan="lost", caught_by={"storage", "redone"}
)
def go_back_to_the_last_save(right: Any, act: Act) -> Any:
    """After a loss all take the newest checkpoint, though survivors hold a newer state."""

    def from_peers_or_storage(self: Any, summary: Any, side_state: Any) -> Any:
        if self._view_group.generation != 2:
            return right(self, summary, side_state)
        act()
        self.from_storage()
        self._phases._state.goes_on_from(self.position)
        return None

    return from_peers_or_storage


@go_back_to_the_last_save.also("elastic.state.body:Body.end")
def _unnoticed(right: Any, act: Act) -> Any:
    return lambda self, step: None


@planted("elastic.loop.between_steps.boundary:Boundary.requests", plan="told to leave", caught_by={"lost"})
def leave_in_the_middle_of_a_step(right: Any, act: Act) -> Any:
    """A worker that is told to leave goes at once, and takes its part of the current step along."""

    def requests(self: Any, checked: bool, last_of_epoch: bool) -> int:
        if self._recovery.departure.notice is not None:
            act()
            raise SystemExit(0)
        return int(right(self, checked, last_of_epoch))

    return requests


@planted("elastic.membership.hub.release:see_off", plan="left last", caught_by={"durable"})
def throw_the_last_copy_away(right: Any, act: Act) -> Any:
    """Whoever is told to leave may go, though nobody else holds what it has, and nobody has saved it."""

    def see_off(leavers: Any, stayers: Any, **rest: Any) -> Any:
        from dataclasses import replace

        parting = right(leavers, stayers, **rest)
        needed = parting.saves or parting.stays
        if needed is None:
            return parting
        act()
        return replace(parting, saves=None, stays=None, go=(*parting.go, needed))

    return see_off


@planted("elastic.membership.worker.live:Live.view_is_over", plan="lost", caught_by={"deadline"})
def wait_without_a_deadline(right: Any, act: Act) -> Any:
    """Survivors wait for the next view, and nobody tells the agent that they do."""

    def over(self: Any, **said: Any) -> None:
        act()

    return over


@planted("elastic.state.trained:Trained.adopt", plan="unfreezes, resumed", caught_by={"reference"})
def train_what_the_script_begins_with(right: Any, act: Act) -> Any:
    """Whoever resumes trains what its script trains at its first line, and not what was unfrozen since."""

    def adopt(self: Any, document: Any, *, step: int) -> None:
        if step:
            act()

    return adopt
