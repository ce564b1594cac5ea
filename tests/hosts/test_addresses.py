"""Which of its addresses a host takes, and which of its ports."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from elastic.drill.end import End
from elastic.drill.hosts.network import ipv6_address
from tests.kit.host_runs import HostRun

STEPS = 240


@pytest.mark.nightly(sample=1, of="the host of the hub")
def test_hosts_meet_over_ipv6_and_agents_listen_where_a_firewall_lets_them(
    host_run: Callable[..., HostRun], elastic_undisturbed: Callable[..., End]
) -> None:
    """Views, transfers and the hub's move, too."""
    options = ["--port-range=7000-7009"]
    run = host_run(3, nodes="1:3", steps=STEPS, endpoint=f"[{ipv6_address(1)}]:29400", options=options)
    run.join(1, 2)
    run.wait_for_steps(1, 2)
    for host in (1, 2):
        assert f"as {ipv6_address(host)} (eth0, " in run.output(host)
        assert f"[{ipv6_address(host)}]:7000" in run.hosts.on(host, "ss", "-ltnH")
    run.hosts.crash(1)
    run.wait_for_steps(2)
    run.join(3)
    run.wait_for_steps(2, 3)
    end = run.finish(reference=elastic_undisturbed(steps=STEPS, seed=7).events, lost=1)

    run.assert_kept(end, ended=[2, 3])
