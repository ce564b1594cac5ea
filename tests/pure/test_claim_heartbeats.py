"""Since when may nobody have given heartbeats in the run's storage?"""

from __future__ import annotations

from elastic.membership.hub.claiming import Heartbeats
from elastic.membership.hub.workers import Worker, Workers
from elastic.membership.succession.succession import KnownView

MET, UNMET = (KnownView(generation=1, nodes=frozenset("ab"), claim=1, met=met) for met in (True, False))


def _workers(*ids: str, generation: int = 1, claim: int = 1) -> Workers:
    """Of a view of these, whose node is their first letter."""
    workers = Workers()
    chosen = [Worker(id, id[0], 0) for id in ids]
    for worker in chosen:
        workers.add(worker)
    workers.publish(generation, chosen, claim)
    return workers


def test_the_coordinator_gives_them_from_when_all_have_met_until_it_has_gone() -> None:
    workers = _workers("a1", "b1")
    signs = Heartbeats(workers, takes_over=False)
    signs.look(0.0, 1, MET, departed=())
    signs.look(100.0, 1, MET, departed=())
    assert signs.last(100.0)
    workers.remove("a1")
    signs.look(101.0, 1, MET, departed=())
    assert signs.last(103.9)
    assert not signs.last(104.1)


def test_the_next_coordinator_gives_none_before_all_have_met() -> None:
    workers = _workers("a1", "b1")
    signs = Heartbeats(workers, takes_over=False)
    signs.look(0.0, 1, MET, departed=())
    workers.remove("a1")
    signs.look(1.0, 1, MET, departed=())
    workers.publish(2, [workers["b1"]], 1)
    signs.look(5.0, 1, UNMET, departed=())
    assert not signs.last(5.0)
    signs.look(5.0, 1, MET, departed=())
    assert signs.last(50.0)


def test_who_took_the_claim_gives_them_and_nobody_for_a_newer_one_that_is_heard_of() -> None:
    workers = _workers("a1", "b1")
    signs = Heartbeats(workers, takes_over=False)
    signs.look(0.0, 1, MET, departed=())
    signs.given_by("b1", 2)
    signs.look(60.0, 2, MET, departed=())
    assert signs.last(60.0), "the coordinator is under the claim before, and b1 lives"
    signs.look(60.0, 3, MET, departed=())
    assert not signs.last(60.0), "whoever took that one may have gone long ago"


def test_a_hub_that_takes_over_knows_the_coordinator_that_comes_and_one_that_leaves_in_order() -> None:
    for departed, comes, lasts in (("", True, True), ("a", False, True), ("", False, False)):
        workers = _workers("a1", "b1")
        if not comes:
            workers.remove("a1")
        signs = Heartbeats(workers, takes_over=True)
        signs.look(10.0, 1, MET, departed=departed)
        assert signs.last(11.0) is lasts
