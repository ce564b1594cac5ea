"""Money is planned by the model of a run: it is held to cases computed by hand, and to what must always be so."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic.errors import ConfigError
from elastic.plan.simulation import PARTS, Outcome, Policy, hindsight_s, simulate
from elastic.plan.trace import Change, Trace, draw, parse, read, recorded_names

SURVIVES: dict[str, Any] = {"name": "survives", "survives": True, "start_s": 0.0, "stall_s": 0.0, "durable_s": 0.0}
RESTARTS: dict[str, Any] = {**SURVIVES, "name": "restarts", "survives": False, "start_s": 5.0}


def trace(text: str, until_s: float) -> Trace:
    """ "0+a 0+b 30-a": what happens when, and the time of the trace's end."""
    rows = [f"{move.replace('+', ',add,').replace('-', ',remove,')}" for move in text.split()]
    parsed = parse("\n".join(["t_s,op,node", *rows, f"{until_s},add,last"]), "by hand")
    return Trace("by hand", parsed.changes[:-1], until_s)


def two_a_second(nodes: int) -> float:
    return 1.0 / nodes


def one_a_second(nodes: int) -> float:
    return 1.0


def parts(outcome: Outcome, **expected: float) -> None:
    assert outcome.parts == pytest.approx({**dict.fromkeys(PARTS, 0.0), **expected})


def test_survivors_lose_the_step_in_flight_and_their_stall() -> None:
    """At 4.5 s a node goes: half a second of a step is lost, 0.3 s are stalled, 5.2 s are left for 5 steps."""
    policy = Policy(**SURVIVES, loss_s=0.3, interval_s=math.inf)
    found = simulate(trace("0+a 0+b 4.5-a", 10), policy, one_a_second)
    parts(found, useful=9, lost=0.7, recovering=0.3)
    assert found.steps == 9


def test_a_restart_goes_back_to_the_newest_save_that_was_durable() -> None:
    """5 s, then 20 steps, saved after 10 and after 20: at 25.5 s the second save is not durable, and 10 are lost."""
    policy = Policy(**RESTARTS | {"durable_s": 2.0}, interval_s=10.0)
    found = simulate(trace("0+a 0+b 25.5-a", 40.5), policy, one_a_second)
    parts(found, useful=20, lost=10.5, starting=10)
    assert (found.steps, found.restarts, found.saves) == (20, 1, 3)


def test_when_all_are_lost_the_run_waits_and_goes_on_from_its_save() -> None:
    """Saved at 4 s, all lost at 6.5 s, somebody at 10 s, who starts for 2 s: 2.5 s lost, 3.5 s waited."""
    policy = Policy(**SURVIVES | {"start_s": 2.0}, interval_s=2.0)
    found = simulate(trace("0+a 6.5-a 10+b", 16), policy, one_a_second)
    parts(found, useful=8, lost=0.5, starting=4, waiting=3.5)
    assert (found.steps, found.restarts) == (8, 1)


def test_a_notice_makes_a_loss_a_leave() -> None:
    policy = Policy(**SURVIVES | {"stall_s": 1.0}, loss_s=5.0, join_s=0.5, notice_s=30.0, interval_s=math.inf)
    found = simulate(trace("0+a 0+b 4.5-a", 10), policy, one_a_second)
    parts(found, useful=9, recovering=0.5, lost=0.5)
    gone = simulate(trace("0+a 6-a 8+b", 12), policy, one_a_second)
    parts(gone, useful=10, waiting=2)
    late = simulate(trace("0+a 6-a 8+b", 12), Policy(**SURVIVES | {"durable_s": 31.0}, notice_s=30.0), one_a_second)
    parts(late, useful=4, lost=6, waiting=2)


def test_who_joins_is_taken_in_once_ready_and_the_fleet_is_faster_then() -> None:
    """A second node at 4 s, ready at 6 s; it costs 1 s; then two steps a second."""
    policy = Policy(**SURVIVES, arrive_s=2.0, join_s=1.0, interval_s=math.inf)
    found = simulate(trace("0+a 4+b", 10), policy, two_a_second)
    parts(found, useful=9, recovering=1)
    assert (found.steps, found.ideal) == (12, 16)


def test_who_joins_a_restarting_run_takes_everything_back_or_waits_for_the_next_save() -> None:
    at_once = simulate(trace("0+a 9.5+b", 20), Policy(**RESTARTS, interval_s=3.0), one_a_second)
    parts(at_once, useful=8, lost=1.5 + 0.5, starting=10)
    at_a_save = simulate(trace("0+a 9.5+b", 20), Policy(**RESTARTS, joins=False, interval_s=3.0), one_a_second)
    parts(at_a_save, useful=10, starting=10)


def test_the_interval_by_hindsight_is_dalys_for_what_takes_this_policy_back() -> None:
    seen = trace("0+a 0+b 40-a 50+c 60-b 80-c", 100)
    assert hindsight_s(seen, Policy(**SURVIVES | {"stall_s": 2.0})) == pytest.approx(math.sqrt(400), rel=0.1)
    restarts = Policy(**RESTARTS | {"stall_s": 2.0})
    assert hindsight_s(seen, restarts) == pytest.approx(math.sqrt(100), rel=0.2)
    assert hindsight_s(trace("0+a", 9), restarts) == math.inf


class Walked(tuple[Change, ...]):
    """Changes that count how often somebody went through them."""

    walks = 0

    def __iter__(self) -> Iterator[Change]:
        self.walks += 1
        return super().__iter__()


def walks(interval_by_stall_s: float) -> tuple[int, int]:
    """How often a simulation goes through its trace, and its saves."""
    changes = Walked(trace("0+a 0+b 40-a 50+c 60-b 80-c", 100).changes)
    policy = Policy(**RESTARTS | {"stall_s": interval_by_stall_s})
    found = simulate(Trace("walked", changes, 100), policy, one_a_second)
    return changes.walks, found.saves


POLICIES = st.builds(
    Policy,
    name=st.just("any"),
    survives=st.booleans(),
    loss_s=st.floats(0, 20),
    join_s=st.floats(0, 20),
    joins=st.booleans(),
    start_s=st.floats(0, 200),
    arrive_s=st.floats(0, 100),
    stall_s=st.floats(0.001, 10),
    durable_s=st.floats(0.001, 100),
    interval_s=st.none() | st.floats(0.5, 1000),
    auto=st.booleans(),
    notice_s=st.sampled_from([0.0, 30.0, 120.0]),
    nodes_min=st.integers(1, 3),
)


@given(policy=POLICIES, seed=st.integers(0, 10_000), nodes=st.integers(1, 6), step_s=st.floats(0.2, 30))
def test_every_second_is_of_one_part_and_no_fleet_does_more_than_it_could(
    policy: Policy, seed: int, nodes: int, step_s: float
) -> None:
    fleet = draw(seed=seed, nodes=nodes, lifetime_s=600, replaced_s=120, length_s=3600).limited(4)
    found = simulate(fleet, policy, lambda nodes: step_s / nodes)
    assert math.fsum(found.parts.values()) == pytest.approx(3600)
    assert min(found.parts.values()) >= -1e-6
    assert 0 <= found.steps <= found.ideal * (1 + 1e-9) + 1
    again = simulate(fleet, policy, lambda nodes: step_s / nodes)
    assert again == found


def step_of_48_shares_s(workers: int) -> float:
    return math.ceil(48 / workers) * 0.2 + 0.05


@pytest.mark.parametrize("name", recorded_names())
def test_a_real_fleet_wastes_least_under_the_policy_that_survives(name: str) -> None:
    fleet = read(name).limited(16)
    costs: dict[str, Any] = {"start_s": 60.0, "stall_s": 1.0, "durable_s": 20.0}
    ours = Policy(name="a", survives=True, loss_s=0.1, join_s=0.1, arrive_s=30.0, auto=True, **costs)
    stalls = Policy(name="b", survives=True, loss_s=5.0, join_s=5.0, arrive_s=30.0, auto=True, **costs)
    tuned = Policy(name="c", survives=False, joins=False, **costs)
    fixed = Policy(name="d", survives=False, joins=False, interval_s=1800.0, **costs)
    found = [simulate(fleet, policy, step_of_48_shares_s).goodput for policy in (ours, stalls, tuned, fixed)]
    assert found == sorted(found, reverse=True)
    assert found[0] > 0.97


def test_the_traces_of_this_package_are_what_their_page_says() -> None:
    page = {
        "aws-g4dn-2020": (24, 10.6),
        "aws-p3-2020": (32, 11.4),
        "gcp-a100-pccheck-2022": (56, 3.7),
        "gcp-a100-sailor-2024": (14, 2.9),
        "gcp-oobleck-2023": (30, 10.6),
    }
    found = {name: read(name) for name in recorded_names()}
    assert {name: (one.most, round(one.length_s / 3600, 1)) for name, one in found.items()} == page
    assert sum(len(change.come) for change in found["aws-p3-2020"].changes) == 177
    assert [name for name, one in found.items() if one.full_losses] == ["gcp-a100-pccheck-2022"]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "it is empty; expected a first line t_s,op,node"),
        ("a,b\n", "first line is 'a,b'; expected t_s,op,node"),
        (
            "t_s,op,node\n0,add,a\n1e308,remove,a\n",
            "line 3: t_s is '1e308'; expected seconds since the trace's begin, and at most a year",
        ),
        ("t_s,op,node\ninf,add,a\n", "line 2: t_s is 'inf'"),
        ("t_s,op,node\nx,add,a\n", "line 2: t_s is 'x'"),
        ("t_s,op,node\n5,add,a\n4,add,b\n", "line 3: 4 s comes before 5 s; expected times from 0 on"),
        ("t_s,op,node\nnan,add,a\n", "line 2: t_s is 'nan'"),
        ("t_s,op,node\n1,lose,a\n", "line 2: 'lose' of 'a'; expected add or remove"),
        ("t_s,op,node\n1,add,a\n2,add,a\n", "line 3: add a, which is there already"),
        ("t_s,op,node\n1,remove,a\n", "line 2: remove a, which is not there; expected its add before"),
        ("t_s,op,node\n", "covers no time; expected .* the last of them after 0 s"),
    ],
)
def test_what_is_no_trace_is_refused_by_its_line(text: str, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        parse(text, "mine.csv")
    with pytest.raises(ConfigError, match=r"No such file(.|\n)*aws-p3-2020"):
        read("nowhere.csv")
