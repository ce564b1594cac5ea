"""How often to save is worth money: formulas are held to their papers and to brute force, the decision to its words."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from elastic.events.log import EventLog
from elastic.loop.storage.save_schedule import SaveSchedule
from elastic.plan.cadence import AT_RISK_MAX_S, PRIOR_S, SLACK, Bound, Losses, daly_s, decide, waste, young_s
from elastic.plan.save_rules import SaveRules

HOUR = 3600.0
RELOAD_S = 20.0


def test_dalys_interval_is_the_one_of_his_figures_3_to_5() -> None:
    """A dump of 5 minutes, failures every 24 h, 6 h and 15 min: 117, 57 and 9.1 minutes."""
    minutes = [daly_s(300, mean_s) / 60 for mean_s in (24 * HOUR, 6 * HOUR, 900)]
    assert [f"{minutes[0]:.0f}", f"{minutes[1]:.0f}", f"{minutes[2]:.1f}"] == ["117", "57", "9.1"]


def test_youngs_interval_is_the_square_root_of_twice_stall_times_mean() -> None:
    assert young_s(2, 100) == 20
    assert daly_s(0.04, 9.1 * HOUR) == pytest.approx(young_s(0.04, 9.1 * HOUR), rel=2e-3)
    assert daly_s(200, 100) == 100


def exponential(draw: np.random.Generator, count: int, mean_s: float) -> Any:
    return draw.exponential(mean_s, count)


def bathtub(draw: np.random.Generator, count: int, mean_s: float) -> Any:
    """A quarter dies young, half at any time, a quarter of old age: three Weibull distributions."""
    kinds = draw.choice(3, size=count, p=[0.25, 0.5, 0.25])
    young = 0.4 * draw.weibull(0.7, count) / math.gamma(1 + 1 / 0.7)
    any_time = draw.weibull(1.0, count)
    old = 1.6 * draw.weibull(5.0, count) / math.gamma(1 + 1 / 5.0)
    return mean_s * np.choose(kinds, [young, any_time, old])


def brute_waste(lifetimes: Any, interval_s: float, stall_s: float, durable_s: float) -> float:
    """What share of the time was wasted, of lives one after the other, each ended by a loss and followed by a reload.

    A life saves whenever it has trained for the interval. A save that has begun at time t of a life counts if the life
    goes on until t + durable_s.
    """
    cycle_s = interval_s + stall_s
    saved = np.maximum(np.floor((lifetimes - interval_s - durable_s) / cycle_s) + 1, 0)
    return 1 - interval_s * float(saved.sum()) / float((lifetimes + RELOAD_S).sum())


@pytest.mark.parametrize("lives", [exponential, bathtub])
@pytest.mark.parametrize(("stall_s", "mean_s"), [(0.04, 9.1 * HOUR), (2.0, HOUR), (30.0, 2 * HOUR), (60.0, 1200.0)])
def test_the_formulas_choice_wastes_hardly_more_than_the_best_that_brute_force_finds(
    lives: Callable[[np.random.Generator, int, float], Any], stall_s: float, mean_s: float
) -> None:
    """Lifetimes are not exponential in life; the interval must not depend on it much, since nobody knows them."""
    lifetimes = lives(np.random.default_rng(7), 200_000, mean_s)
    chosen_s = daly_s(stall_s, mean_s)
    best = min(brute_waste(lifetimes, chosen_s * times, stall_s, stall_s) for times in np.geomspace(0.25, 4, 41))
    found = brute_waste(lifetimes, chosen_s, stall_s, stall_s)
    assert found - best <= 0.05 * best


@pytest.mark.parametrize("durable_s", [2.0, 40.0])
@pytest.mark.parametrize("interval_s", [60.0, 120.0, 500.0])
def test_the_expected_waste_is_the_waste_of_brute_force(interval_s: float, durable_s: float) -> None:
    stall_s, mean_s = 2.0, HOUR
    lifetimes = exponential(np.random.default_rng(11), 400_000, mean_s)
    expected = waste(interval_s, stall_s=stall_s, mean_s=mean_s, reload_s=RELOAD_S, durable_s=durable_s)
    assert expected == pytest.approx(brute_waste(lifetimes, interval_s, stall_s, durable_s), rel=0.03)


def test_where_nothing_comes_through_all_is_wasted() -> None:
    """It was an OverflowError: an upload of a byte a second, in a plan."""
    assert waste(1e9, stall_s=1.0, mean_s=1.0) == 1.0
    assert waste(1.0, stall_s=1.0, mean_s=1.0, reload_s=1e9) == 1.0


def test_until_a_save_is_measured_a_run_saves_every_minute() -> None:
    found = decide(stall_s=None, durable_s=None, losses=Losses())
    assert (found.seconds, found.bound) == (60.0, Bound.UNMEASURED)
    assert found.reason == "every 60 s: no save has been measured yet"


def test_the_reason_names_what_the_interval_follows_from() -> None:
    seen = Losses(count=3, observed_s=4 * 9.1 * HOUR - PRIOR_S)
    found = decide(stall_s=0.7, durable_s=5.0, losses=seen)
    assert found.seconds == pytest.approx(daly_s(0.7, 9.1 * HOUR))
    assert found.reason == "every 3 min 34 s: a save stalls 700 ms, a full loss every 9 h 6 min"
    assumed = decide(stall_s=0.7, durable_s=5.0, losses=Losses())
    assert assumed.reason.endswith("a full loss every 4 h, as is assumed until there is one")


def test_no_more_than_half_an_hour_is_at_risk_unless_a_save_takes_longer_itself() -> None:
    calm = Losses(observed_s=5000 * HOUR)
    assert decide(stall_s=20.0, durable_s=60.0, losses=calm).seconds == AT_RISK_MAX_S
    assert decide(stall_s=20.0, durable_s=60.0, losses=calm).bound is Bound.AT_RISK
    assert decide(stall_s=20.0, durable_s=7200.0, losses=calm).seconds == SLACK * 7200.0
    assert decide(stall_s=20.0, durable_s=60.0, losses=calm, at_risk_max_s=600.0).seconds == 600.0


def test_what_a_saves_requests_cost_makes_saves_rarer() -> None:
    free = decide(stall_s=0.01, durable_s=1.0, losses=Losses())
    dear = decide(stall_s=0.01, durable_s=1.0, losses=Losses(), save_costs_s=0.99)
    assert dear.seconds == pytest.approx(10 * free.seconds, rel=0.01)
    assert "and costs 990 ms of the fleet" in dear.reason


def test_the_mean_between_losses_begins_at_the_prior_and_ends_at_what_was_seen() -> None:
    assert Losses().mean_s == PRIOR_S
    assert Losses(1, 0.0).mean_s == PRIOR_S / 2
    assert Losses(1000, 1000 * HOUR).mean_s == pytest.approx(HOUR, rel=0.01)
    assert Losses(0, 1000 * HOUR).mean_s == pytest.approx(1004 * HOUR)


def test_every_start_from_one_checkpoint_is_a_loss_but_for_the_one_that_was_meant() -> None:
    saved = Losses(2, 100.0)
    assert saved.resumed(claims=1, in_order=False) == Losses(3, 100.0)
    assert saved.resumed(claims=1, in_order=True) == saved
    assert saved.resumed(claims=3, in_order=False) == Losses(5, 100.0)
    assert saved.resumed(claims=3, in_order=True) == Losses(4, 100.0)


@pytest.mark.parametrize(
    "document", [None, 7, {}, {"count": -1, "observed_s": 0.0}, {"count": 1, "observed_s": math.nan}]
)
def test_of_a_checkpoint_that_does_not_say_nothing_was_seen(document: Any) -> None:
    assert Losses.from_document(document) == Losses()
    assert Losses.from_document(Losses(3, 7.5).document()) == Losses(3, 7.5)


class Clocked:
    """A schedule under clocks that are set by hand, and the events that it has emitted."""

    def __init__(self, save_every: Any, losses: Losses | None = None) -> None:
        self.now_s, self.began_t = 0.0, 1_700_000_000.0
        self.emitted: list[dict[str, Any]] = []
        log = EventLog(None, worker_id="w")
        log.hear(self.emitted.append)
        seen = losses or Losses()
        self.schedule = SaveSchedule(
            SaveRules.of(save_every),
            lambda: seen.after(self.now_s),
            log,
            clock=lambda: self.now_s,
            wall=lambda: self.began_t + self.now_s,
        )

    def due_after(self, seconds: float) -> bool:
        self.now_s = seconds
        return self.schedule.is_due()


def test_auto_saves_after_a_minute_and_then_at_what_it_has_measured() -> None:
    clocked = Clocked("auto")
    assert [clocked.due_after(at) for at in (59, 60)] == [False, True]
    clocked.schedule.last_s = 60.0
    clocked.schedule.committed(stall_s=0.5, durable_s=3.0)
    interval_s = decide(stall_s=0.5, durable_s=3.0, losses=Losses(0, 60.0)).seconds
    assert [clocked.due_after(60 + interval_s + more) for more in (-0.1, 0.1)] == [False, True]


def test_an_interval_is_told_when_it_becomes_another_one_and_not_at_every_save() -> None:
    clocked = Clocked("auto")
    assert not clocked.schedule.is_due()
    for _ in range(4):
        clocked.schedule.committed(stall_s=0.5, durable_s=3.0)
    told = [(one["event"], one["bound"]) for one in clocked.emitted]
    assert told == [("save_interval", "unmeasured"), ("save_interval", "optimum")]
    for _ in range(5):
        clocked.schedule.committed(stall_s=5.0, durable_s=3.0)
    assert [one["stall"] for one in clocked.emitted] == [None, 0.5, 5.0]
    assert Clocked("90s").emitted == []


def test_one_save_that_a_busy_machine_stretched_changes_nothing() -> None:
    clocked = Clocked("auto")
    assert not clocked.schedule.is_due()
    for stall_s in (0.5, 0.5, 60.0, 0.5):
        clocked.schedule.committed(stall_s=stall_s, durable_s=stall_s)
    assert [one["stall"] for one in clocked.emitted] == [None, 0.5]


def test_a_save_that_came_to_nothing_is_due_at_once() -> None:
    """It was under way when a machine was lost, and is of an older claim."""
    clocked = Clocked("1h")
    assert not clocked.schedule.is_due()
    clocked.schedule.owes_one = True
    assert clocked.schedule.is_due()


def test_a_time_of_day_is_due_once() -> None:
    clocked = Clocked(["2h", "22:30 UTC"])  # began_t is 22:13:20 UTC
    assert [clocked.due_after(at) for at in (0, 999, 1000)] == [False, False, True]
    clocked.schedule.last_s = 1001.0
    assert [clocked.due_after(at) for at in (1002, 7000, 1001 + 7200)] == [False, False, True]


def test_what_is_asked_for_is_read_once_and_kinds_go_together() -> None:
    assert SaveRules.of(200) == SaveRules(steps=200)
    assert SaveRules.of("10min") == SaveRules(seconds=600.0)
    assert SaveRules.of("1.5 h") == SaveRules(seconds=5400.0)
    both = SaveRules.of(["auto", 500, "02:30 UTC", "14:00 Europe/Berlin"])
    assert (both.auto, both.steps, len(both.times)) == (True, 500, 2)


@pytest.mark.parametrize("zone_and_t", [("02:30 UTC", 1_760_322_600), ("04:30 Europe/Berlin", 1_760_322_600)])
def test_a_time_of_day_is_that_of_its_zone(zone_and_t: tuple[str, float]) -> None:
    """2025-10-13 02:30:00 UTC, in Berlin's summer."""
    text, t = zone_and_t
    (one,) = SaveRules.of(text).times
    assert not one.passed(t - 60, t - 1)
    assert one.passed(t - 60, t)
    assert one.passed(t - 1, t + 86_000)
    assert not one.passed(t, t + 86_399)
    assert one.passed(t + 1, t + 86_400)
    assert one.passed(t + 1, t + 40 * 86_400)
