"""Several hosts, cut from each other and healed at any moment: never two sides, and nobody stands still for ever.

The hubs, reports and rules are the product's; what is around them is tests/kit/simulated_hosts. A failure prints its
seed and what its sides did; `python -m tests.kit.simulated_hosts.plan SEED` replays it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from elastic.membership.succession import going_on
from elastic.membership.succession.going_on import Ask, GoingOn
from tests.kit.sampling import NIGHTLY, seeds
from tests.kit.simulated_hosts import storage
from tests.kit.simulated_hosts.plan import simulate


def test_never_two_sides_and_nobody_stands_still_for_ever() -> None:
    views = moved_on = 0
    for seed in seeds(6000, sample=100):
        world = simulate(seed)
        views += len(world.line)
        moved_on += len(world.moved_on)
    assert views > 200
    assert moved_on > 20


def test_half_of_a_view_stands_still_where_its_newcomer_could_not_read_the_storage() -> None:
    """f comes while the storage fails, three of six are lost, and the storage is back: it may be a folder of f's own
    for all that the others know, so only a majority goes on, until the cut is healed."""
    world = simulate(50080)
    assert any("3 of the 6 nodes of view 2 are here" in text for text in world.agents["a"].said_to_people)


def test_a_view_that_began_from_storage_and_is_lost_before_it_trains_goes_on_with_what_it_read() -> None:
    """c was told to leave, saved, and the run was over on its side; b, cut off, begins anew under the next claim, and
    counts its views from those that it knows."""
    assert {view.nodes for view in simulate(2511971).line if view.generation == 3} == {frozenset("b"), frozenset("c")}


def test_a_worker_whose_node_was_with_another_hub_leaves_the_view_that_it_is_in() -> None:
    """a publishes a view with b's worker, and is cut off from b, whose own hub tells that worker of another one."""
    assert {"a", "b", "c"} <= simulate(2881).line[-1].nodes


def test_a_node_that_has_lost_its_worker_is_counted_on_one_side() -> None:
    """c's worker is killed, and who counts c for a view without it is cut off before c hears of that."""
    assert len(simulate(9618).line) > 2


def test_a_roster_tells_of_the_whole_view_also_where_some_of_it_are_away() -> None:
    """Who was not in it took those on the roster for all of it, and stood still with a majority."""
    assert [set(view.nodes) for view in simulate(10736).line[1:2]] == [set("cd")]


Plant = Callable[[pytest.MonkeyPatch], None]


def _whoever_is_here_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim is for those who are here when the answer comes, and any of us in the newest makes it ours."""

    def any_of_us(*, to: int, nodes: list[str], newest: int, its_nodes: list[str]) -> bool:
        return newest <= to or not set(nodes).isdisjoint(its_nodes)

    monkeypatch.setattr(storage, "may_succeed", any_of_us)
    monkeypatch.setattr(going_on, "suffices", lambda granted, **here: True)
    monkeypatch.setattr(GoingOn, "is_away", lambda self, node: None)


def _nobody_is_asked_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    asks = GoingOn.asks

    def once(self: GoingOn, now_s: float, generation: int, holding: dict[str, str]) -> Ask | None:
        is_asked = self._ask is not None and self._ask.worker in holding
        return None if is_asked else asks(self, now_s, generation, holding)

    monkeypatch.setattr(GoingOn, "asks", once)
    monkeypatch.setattr(GoingOn, "is_away", lambda self, node: None)


def _an_answer_that_comes_late_is_not_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    won = GoingOn.won

    def heard(self: GoingOn, worker: str, generation: int, claim: dict[str, Any]) -> bool:
        is_asked = self._ask is not None and (self._ask.worker, self._ask.generation) == (worker, generation)
        return won(self, worker, generation, claim) if is_asked else False

    monkeypatch.setattr(GoingOn, "won", heard)


def _a_liveness_endpoint_of_one_s_own_is_believed_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Newcomers that leave the run to the others for a while hardly ever meet it."""
    begins = storage.Storage.begins
    monkeypatch.setattr(going_on, "LET_HOLDERS_S", 0.0)

    def believes(self: storage.Storage, lives: storage.Lives, **facts: Any) -> storage.Document:
        return begins(self, lives, **{**facts, "unanswered": False})

    monkeypatch.setattr(storage.Storage, "begins", believes)


def _what_refuses_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GoingOn, "refuses", GoingOn.dead)


def _nobody_is_known_to_see_the_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    """So all but a majority stand still, where the claim would let them go on."""
    monkeypatch.setattr(GoingOn, "_sees_storage", lambda self, node: False)


FOUND_BY: dict[Plant, int] = {
    _whoever_is_here_goes_on: 51,
    _nobody_is_asked_twice: 2522,
    _what_refuses_is_dead: 61,
    _nobody_is_known_to_see_the_storage: 125,
    _a_liveness_endpoint_of_one_s_own_is_believed_of_others: 361,
    _an_answer_that_comes_late_is_not_heard: 321,
}
"""The first seed that finds it. Where the simulation changes, another does: the test says how to look for it."""


@pytest.mark.nightly(sample=2)
@pytest.mark.parametrize("plant", FOUND_BY, ids=lambda plant: plant.__name__.strip("_").replace("_", " "))
def test_the_simulation_finds_hubs_that_decide_wrongly(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    seed = FOUND_BY[plant]
    looked_at = range(3000) if NIGHTLY else [seed]
    assert any(map(_is_found, [seed, *looked_at])), (
        f"seed {seed} does not find it any more; NIGHTLY=1 looks at 3,000, and the first that does belongs here"
    )


def _is_found(seed: int) -> bool:
    try:
        simulate(seed)
    except AssertionError:
        return True
    return False
