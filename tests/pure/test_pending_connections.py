"""Of those who have connected and not said who they are, too many and too slow ones are sent away, and nobody else."""

from __future__ import annotations

from elastic_checkpoint.net.port import PendingConnections


def test_who_opens_too_many_connections_shuts_out_itself() -> None:
    waiting: PendingConnections[int] = PendingConnections(10.0, 8)
    assert [waiting.add(number, f"10.0.0.{number}", 0.0) for number in range(4)] == [None] * 4
    assert [waiting.add(number, "10.9.9.9", 0.0) for number in range(4, 12)] == [None] * 4 + [4, 5, 6, 7]
    assert list(waiting) == [0, 1, 2, 3, 8, 9, 10, 11]


def test_who_has_said_who_it_is_counts_no_more() -> None:
    waiting: PendingConnections[str] = PendingConnections(10.0, 2)
    waiting.add("a", "here", 0.0)
    waiting.add("b", "here", 1.0)
    waiting.remove("a")
    waiting.remove("a")
    assert waiting.add("c", "here", 2.0) is None
    assert waiting.add("d", "here", 3.0) == "b"
