"""A plan is believed if it gives the textbook's figures, to the textbook's digits."""

from __future__ import annotations

import pytest

from elastic.plan.communication import Link, efficiency, exposed_s, hierarchical_s, ring_s

GRADIENTS = 2e9  # 1 B parameters in fp16
NODE, NETWORK = Link(300e9, 1e-6), Link(12.5e9, 5e-6)
COMPUTE_S = 0.250


@pytest.mark.parametrize(("link", "milliseconds", "percent"), [(NODE, "11.68", "95.5"), (NETWORK, "280.07", "47.2")])
def test_eight_gpus_reduce_a_billion_parameters_as_the_textbook_says(
    link: Link, milliseconds: str, percent: str
) -> None:
    took_s = ring_s(GRADIENTS, 8, link)
    assert f"{1e3 * took_s:.2f}" == milliseconds
    assert f"{100 * efficiency(took_s, COMPUTE_S):.1f}" == percent


def test_eight_nodes_of_eight_cross_the_network_with_an_eighth_each() -> None:
    """11.67 ms and 14 messages inside, 35 ms and 14 messages across; one ring of 64 across would take 315.6 ms."""
    took_s = hierarchical_s(GRADIENTS, 8, 8, NODE, NETWORK)
    assert took_s == pytest.approx(2 * 7 / 8 * (2e9 / 300e9 + 0.25e9 / 12.5e9) + 14e-6 + 70e-6)
    assert (f"{1e3 * took_s:.2f}", f"{100 * efficiency(took_s, COMPUTE_S):.1f}") == ("46.75", "84.2")
    assert f"{1e3 * ring_s(GRADIENTS, 64, NETWORK):.2f}" == "315.63"


def test_computing_hides_what_travels_while_it_lasts() -> None:
    assert exposed_s(0.1, 0.3, 0.0) == 0.1
    assert exposed_s(0.1, 0.3, 0.5) == 0.0
    assert exposed_s(0.2, 0.3, 0.5) == pytest.approx(0.05)
    assert efficiency(0.2, 0.3, 0.5) == pytest.approx(0.3 / 0.35)
