"""A silent host is lost after a lease, by whoever looks, unless it was the one who looks that was away."""

from __future__ import annotations

from itertools import count

import pytest

from elastic.launch.hub.rules import EVICT_S, HELD_UP_S, Lease


def test_who_was_stopped_for_long_gives_each_host_a_lease_more() -> None:
    """A laptop that slept, a virtual machine that was moved: all hosts were away together, and none is lost."""
    lease = Lease(0.0)
    lease.held_up(600.0)
    assert lease.silent_s(600.0) == 0.0
    lease.heard(600.1)
    lease.held_up(1200.0)
    assert lease.silent_s(1200.0) == 0.0


@pytest.mark.parametrize("every_s", [HELD_UP_S + 0.1, 2.0, 10.0])
def test_one_that_is_always_late_notices_a_silent_host_all_the_same(every_s: float) -> None:
    """On a machine that swaps, each tick was late, each began the leases anew, and a lost host was waited for."""
    lease, ticks = Lease(0.0), 0
    for ticks in count(1):
        lease.held_up(ticks * every_s)
        if lease.silent_s(ticks * every_s) > EVICT_S or ticks > 100:
            break
    assert ticks * every_s <= 2 * every_s + EVICT_S + every_s
