"""Whoever is lost and whoever is cut off from whom: of one view at most one side goes on, and one does.

The rules, and all interleavings of a small world in which they hold (tests/kit/small_world).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from elastic.membership.succession.succession import (
    GoOn,
    KnownView,
    NeedsClaim,
    SideSize,
    Stay,
    may_be_elsewhere,
    may_go_on,
)
from tests.kit.sampling import NIGHTLY
from tests.kit.small_world.moves import Rules
from tests.kit.small_world.search import explore, goes_on, may_majority_go_on
from tests.kit.small_world.state import Small, first


def view(nodes: str, *, generation: int = 1, **facts: Any) -> KnownView:
    return KnownView(generation=generation, nodes=frozenset(nodes), **{"met": True, **facts})


@pytest.mark.parametrize(
    ("known", "present", "departed", "dead", "verdict"),
    [
        pytest.param([view("abc")], "abc", "", "", "on", id="nobody is missing"),
        pytest.param([view("abc")], "ab", "c", "", "on", id="one has said that it goes"),
        pytest.param([view("abc")], "ab", "", "", "on", id="a majority"),
        pytest.param([view("abcd")], "ab", "", "", "stay", id="one half"),
        pytest.param([view("ab")], "a", "", "b", "on", id="of two one is dead"),
        pytest.param([view("abcde")], "ab", "", "c", "stay", id="two of the four that live"),
        pytest.param([view("abc", claim=4)], "ab", "", "", "claim 4", id="a majority asks, too"),
        pytest.param([view("abc", claim=4)], "ab", "", "c", "claim 4", id="what is dead is not taken on trust"),
        pytest.param([view("abc", claim=4)], "a", "", "", "minority 4", id="one of three lets the two go first"),
        pytest.param([view("abcd", claim=4)], "ab", "", "", "half 4", id="one half, for a moment"),
        pytest.param([view("abc", claim=4, counted=True)], "a", "", "", "stay", id="not everybody knows of the claim"),
        pytest.param([view("abc", claim=4, counted=True)], "ab", "", "", "claim 4", id="both are needed until then"),
        pytest.param(
            [view("abc"), view("abcd", generation=2)], "ab", "", "", "stay", id="who is behind knows less of it"
        ),
        pytest.param(
            [view("abc"), view("cd", generation=2, met=False)], "ab", "", "", "stay", id="a view that may have been met"
        ),
        pytest.param(
            [view("abc", generation=2), view("cde", met=False)], "ab", "", "", "on", id="one that was not, and is over"
        ),
    ],
)
def test_may_go_on(known: list[KnownView], present: str, departed: str, dead: str, verdict: str) -> None:
    found = may_go_on(known, present=present, knowing=present, departed=departed, dead=dead)
    if isinstance(found, GoOn | Stay):
        assert verdict == ("on" if isinstance(found, GoOn) else "stay")
    else:
        assert verdict == f"{'claim' if found.size == SideSize.MAJORITY else found.size.name.lower()} {found.after}"


def test_a_machine_that_refuses_is_no_proof_but_for_who_asks_the_storage_first() -> None:
    """A firewall that says so may be all that is between two sides, and those behind it go on."""
    alone: dict[str, Any] = {"present": "a", "knowing": "a", "departed": "", "dead": ""}
    assert isinstance(may_go_on([view("ab")], **alone, refusing="b"), Stay)
    assert isinstance(may_go_on([view("abcde")], **alone, refusing="bcde"), Stay)
    assert isinstance(may_go_on([view("ab", claim=1, counted=True)], **alone, refusing="b"), Stay)
    witnessed = [may_go_on([view("abc", claim=1)], **alone, refusing=refusing) for refusing in ("", "bc")]
    assert [found.size for found in witnessed if isinstance(found, NeedsClaim)] == [
        SideSize.MINORITY,
        SideSize.MAJORITY,
    ]


def test_where_nobody_may_have_given_heartbeats_others_may_have_begun_anew() -> None:
    both: dict[str, Any] = {"present": "ab", "knowing": "ab", "departed": "", "dead": ""}
    for counted in (view("ab"), view("ab", claim=4, counted=True)):
        assert isinstance(may_go_on([counted], **both, signs=False), GoOn)  # a majority, and of that there is one
    found = may_go_on([view("ab", claim=4)], **both, signs=False)
    assert isinstance(found, NeedsClaim)
    assert (found.after, found.size) == (4, SideSize.MAJORITY)
    assert "heartbeats" in found.why


def test_why_they_stay_names_those_who_are_missing() -> None:
    found = may_go_on([view("abcd")], present="ab", knowing="ab", departed="", dead="")
    assert isinstance(found, Stay)
    assert "2 of the 4 nodes of view 1" in found.why
    assert "c, d may be going on elsewhere" in found.why


WITNESS: dict[str, Any]
MAJORITY: dict[str, Any]
TOLD: dict[str, Any]
WITNESS, MAJORITY, TOLD = {"claim": 1}, {"claim": None}, {"claim": 1, "counted": True}
WORLDS = {
    "the storage is a witness": {name: view("abc", **WITNESS) for name in "abc"},
    "a majority counts": {name: view("abc", **MAJORITY) for name in "abc"},
    "not everybody knows that all see the storage": {
        **{name: view("abc", **TOLD) for name in "bc"},
        "a": view("abc", **WITNESS),
    },
    "not everybody knows of the claim": {"a": view("abc", **TOLD), **{name: view("abc", **MAJORITY) for name in "bc"}},
    "two, and the storage": {name: view("ab", **WITNESS) for name in "ab"},
    "two, and a majority counts": {name: view("ab", **MAJORITY) for name in "ab"},
    "two, and one knows of the claim": {"a": view("ab", **TOLD), "b": view("ab", **MAJORITY)},
}


SMALL = (
    "two, and the storage",
    "two, and a majority counts",
    "two, and one knows of the claim",
)  # searched to the end in a second or two


@pytest.mark.nightly(sample=2)
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("faults", [1, 2])
def test_at_most_one_side_goes_on_in_any_interleaving(world: str, faults: int) -> None:
    """Worlds of two nodes are searched to the end, those of three as far as the time allows: further at night."""
    rules = Rules(generations=3, hubs=2, regroups=True) if world in SMALL else Rules()
    states_max = 400_000 if NIGHTLY or world in SMALL else 6_000
    searched = explore(first(WORLDS[world], faults=faults), states_max=states_max, rules=rules)
    print(f"{world}, {faults} faults: {len(searched.leads_to)} states{'' if searched.complete else ', not all'}")
    assert searched.complete or world not in SMALL


@pytest.mark.nightly(sample=2, of="searches of the small world")
@pytest.mark.parametrize("faults", [0, 1])
def test_whoever_is_left_goes_on_in_the_end(faults: int) -> None:
    """Where the storage is a witness one node is enough; from no state does everybody stand still for ever.

    With a second fault those who took the claim may die before they have gone on. The others are newcomers then, whom
    this world lacks.
    """
    begin = first(WORLDS["two, and the storage"], faults=faults)
    searched = explore(begin, states_max=400_000, rules=Rules(generations=3, hubs=3, regroups=True))
    assert searched.complete
    assert not searched.stuck()


@pytest.mark.nightly  # 10 s and 100 s
@pytest.mark.parametrize("kills", [1, 2])
def test_who_is_counted_and_in_no_part_of_the_next_view_knows_of_it(kills: int) -> None:
    """Its workers were killed, and it may go to the other side: it would be counted there once more."""
    begin = first(WORLDS["a majority counts"], faults=2, kills=kills)
    searched = explore(begin, states_max=400_000, rules=Rules(generations=2, hubs=2))
    assert searched.complete
    assert any(hub.ahead is not None for world in searched.leads_to for hub in world.hubs)


@pytest.mark.nightly(sample=2, of="searches of the small world")
@pytest.mark.parametrize(("faults", "kills"), [(1, 1), pytest.param(2, 1, marks=pytest.mark.nightly)])
def test_newcomers_take_no_run_from_those_who_go_on_with_it(faults: int, kills: int) -> None:
    """Workers were all killed and agents stay; whose own agent answers for the newest claim looks for nobody else.

    The heartbeats of a coordinator end some time after it, and the others go on before, if they hear of its end.
    """
    begin = first(WORLDS["two, and the storage"], faults=faults, kills=kills)
    searched = explore(begin, states_max=400_000, rules=Rules(generations=3, hubs=3))
    assert searched.complete
    assert any(claim.anew for world in searched.leads_to for claim in world.claims)


@pytest.mark.nightly(sample=2, of="searches of the small world")
def test_what_was_reported_as_saved_stays_the_run_s_whoever_goes_on() -> None:
    """A side that has lost may still be uploading: what it commits then is nobody's, and nobody was told otherwise."""
    begin = first(WORLDS["two, and the storage"], faults=1, saves=2)
    searched = explore(begin, states_max=400_000, rules=Rules(generations=3, hubs=2))
    assert searched.complete
    assert any(world.commits - set(world.saved()) for world in searched.leads_to), "no side that lost has committed"


TWO_OF_THREE = ("ab", "ac", "bc", "abc")


@pytest.mark.nightly(sample=2, of="searches of the small world")
@pytest.mark.parametrize(
    ("world", "faults"), [("a majority counts", 1), ("a majority counts", 2), ("the storage is a witness", 1)]
)
def test_some_side_goes_on_where_a_majority_is_connected(world: str, faults: int) -> None:
    """From every state that was reached, once the two or three are left alone. Where the storage is the witness, the
    third may have the claim, and goes on in their place."""
    assert not _stand_still(world, Rules(), faults=faults)


def _stand_still(world: str, rules: Rules, *, faults: int) -> bool:
    searched = explore(
        first(WORLDS[world], faults=faults),
        states_max=100_000 if NIGHTLY else 2_500,
        rules=replace(rules, generations=3, hubs=2),
    )
    looked_at = [(one, side) for one in searched.leads_to for side in TWO_OF_THREE if may_majority_go_on(one, side)]
    assert looked_at
    for one, side in looked_at:
        third = set("abc") - set(side) if one.claims else set()
        if not goes_on(one, side, rules) and not (third and goes_on(one, third, rules)):
            return True
    return False


def _all_must_be_here(known: Iterable[KnownView], *, present: set[str], **gone: Any) -> GoOn | NeedsClaim | Stay:
    newest = max(known, key=lambda one: one.generation)
    found = may_go_on(known, present=present, **gone)
    return found if newest.nodes <= present else Stay("somebody is missing")


@pytest.mark.nightly(sample=2, of="wrong rules of the small world")
@pytest.mark.parametrize("world", ["a majority counts", "the storage is a witness"])
def test_the_search_finds_a_rule_under_which_a_majority_stands_still(world: str) -> None:
    assert _stand_still(world, Rules(may_go_on=_all_must_be_here), faults=1)


def _half_is_enough(known: Iterable[KnownView], *, present: set[str], **gone: Any) -> GoOn | NeedsClaim | Stay:
    found = may_go_on(known, present=present, **gone)
    newest = max(known, key=lambda one: one.generation)
    return GoOn() if isinstance(found, Stay) and 2 * len(newest.nodes & present) >= len(newest.nodes) - 1 else found


def _a_majority_asks_nobody(known: Iterable[KnownView], *, present: set[str], **gone: Any) -> GoOn | NeedsClaim | Stay:
    found = may_go_on(known, present=present, **gone)
    return GoOn() if isinstance(found, NeedsClaim) and found.size == SideSize.MAJORITY else found


def _any_of_us_is_enough(*, to: int, nodes: set[str], newest: int, its_nodes: set[str]) -> bool:
    return newest <= to or not set(nodes).isdisjoint(its_nodes)


def _what_refuses_is_dead(
    known: Iterable[KnownView], *, dead: set[str], refusing: set[str], **who: Any
) -> GoOn | NeedsClaim | Stay:
    return may_go_on(known, dead=dead | refusing, **who)


def _whoever_is_here(granted: object, **here: object) -> bool:
    return True


def _who_is_here_is_counted(*known: Any, present: set[str], **gone: Any) -> GoOn | NeedsClaim | Stay:
    return may_go_on(*known, present=present, **{**gone, "knowing": present})


@pytest.mark.nightly(sample=2, of="wrong rules of the small world")
def test_the_search_finds_a_node_that_is_counted_on_two_sides() -> None:
    begin = first(WORLDS["a majority counts"], faults=2, kills=1)
    with pytest.raises(AssertionError, match="trained after"):
        explore(begin, states_max=60_000, rules=Rules(may_go_on=_who_is_here_is_counted, generations=2, hubs=2))


@pytest.mark.nightly(sample=2, of="wrong rules of the small world")
@pytest.mark.parametrize(
    ("rules", "views", "faults"),
    [
        pytest.param(Rules(may_go_on=_half_is_enough), WORLDS["a majority counts"], 1, id="half is enough"),
        pytest.param(Rules(may_go_on=_what_refuses_is_dead), WORLDS["a majority counts"], 1, id="what refuses is dead"),
        pytest.param(
            Rules(may_go_on=_a_majority_asks_nobody),
            WORLDS["the storage is a witness"],
            1,
            id="a majority asks nobody",
        ),
        pytest.param(
            Rules(may_succeed=_any_of_us_is_enough, suffices=_whoever_is_here, forgets_who_is_away=False),
            WORLDS["the storage is a witness"],
            2,
            marks=pytest.mark.nightly,  # test_simulated_hosts.py finds it by day
            id="a claim is for whoever is here when the answer comes",
        ),
        pytest.param(
            Rules(),
            {"a": view("ab", **WITNESS), "b": view("ab", **MAJORITY), "c": view("abc", **MAJORITY)},
            2,
            marks=pytest.mark.nightly,
            id="some do not know of the claim",
        ),
    ],
)
def test_the_search_finds_rules_that_let_two_sides_go_on(
    rules: Rules, views: dict[str, KnownView], faults: int
) -> None:
    views = {name: replace(known, nodes=frozenset(views)) for name, known in views.items()}
    with pytest.raises(AssertionError, match=r"trained after|goes on from"):
        explore(first(views, faults=faults), states_max=600_000, rules=replace(rules, generations=3))


def _whom_nobody_asked_is_not_there(*known: object, asked: bool, **here: Any) -> bool:
    return asked and may_be_elsewhere(*known, asked=asked, **here)  # type: ignore[arg-type]


def _whom_somebody_asked_is_here(*known: object, asked: bool, **here: Any) -> bool:
    return may_be_elsewhere(*known, asked=False, **here)  # type: ignore[arg-type]


@pytest.mark.nightly(sample=2, of="wrong rules of the small world")
@pytest.mark.parametrize("wrong", [_whom_nobody_asked_is_not_there, _whom_somebody_asked_is_here])
def test_the_search_finds_newcomers_that_believe_their_own_agent_too_soon(wrong: Callable[..., bool]) -> None:
    """One goes on alone, in a view without the hub's node, or under a claim of which that hub has not heard."""
    begin = first(WORLDS["the storage is a witness"], faults=1, kills=1).set("c", alive=False, hub=None)
    with pytest.raises(AssertionError, match=r"begun anew|trained after"):
        explore(begin, states_max=150_000, rules=Rules(may_be_elsewhere=wrong, generations=3, hubs=2))


def _signs_last_for_ever(known: Iterable[KnownView], *, signs: bool, **who: Any) -> GoOn | NeedsClaim | Stay:
    return may_go_on(known, **who)


@pytest.mark.nightly(sample=2, of="wrong rules of the small world")
def test_the_search_finds_a_side_that_goes_on_beside_newcomers_who_have_begun_anew() -> None:
    """The coordinator has died while its node was with nobody, and comes back to the others with another worker."""
    wrong = Rules(may_go_on=_signs_last_for_ever, generations=2, hubs=2)
    with pytest.raises(AssertionError, match=r"begun anew|trained after"):
        explore(_two_and_one_without_state(), states_max=20_000, rules=wrong)


@pytest.mark.nightly(sample=2, of="searches of the small world")
def test_no_side_goes_on_beside_newcomers_who_have_begun_anew() -> None:
    searched = explore(_two_and_one_without_state(), states_max=20_000, rules=Rules(generations=2, hubs=2))
    assert searched.complete
    assert any(claim.anew and claim.nodes == {"c"} for world in searched.leads_to for claim in world.claims)


def _two_and_one_without_state() -> Small:
    views = {name: view("ab", **WITNESS) for name in "abc"}
    return first(views, faults=1, kills=1, without_state="c", hub="b")


@pytest.mark.nightly(sample=2, of="wrong rules of the small world")
def test_the_search_finds_a_coordinator_that_does_not_look_again_after_a_commit() -> None:
    begin = first(WORLDS["two, and the storage"], faults=1, saves=2)
    with pytest.raises(AssertionError, match="were reported as saved"):
        explore(begin, states_max=100_000, rules=Rules(looks_again=False, generations=3, hubs=2))
