"""Of those who have connected and not said who they are, too many and too slow ones are sent away, and nobody else."""

from __future__ import annotations

from elastic_checkpoint.net.listener import LEAST, Strangers, most_strangers


def test_who_opens_too_many_connections_shuts_out_itself() -> None:
    waiting: Strangers[int] = Strangers(10.0, 8)
    assert [waiting.came(number, f"10.0.0.{number}", 0.0) for number in range(4)] == [None] * 4
    assert [waiting.came(number, "10.9.9.9", 0.0) for number in range(4, 12)] == [None] * 4 + [4, 5, 6, 7]
    assert list(waiting) == [0, 1, 2, 3, 8, 9, 10, 11]


def test_who_has_said_who_it_is_counts_no_more() -> None:
    waiting: Strangers[str] = Strangers(10.0, 2)
    waiting.came("a", "here", 0.0)
    waiting.came("b", "here", 1.0)
    waiting.known("a")
    waiting.known("a")
    assert waiting.came("c", "here", 2.0) is None
    assert waiting.came("d", "here", 3.0) == "b"


def test_each_has_its_time() -> None:
    waiting: Strangers[str] = Strangers(10.0, 8)
    assert waiting.next_s() is None
    waiting.came("a", "here", 0.0)
    waiting.came("b", "there", 4.0)
    assert waiting.next_s() == 10.0
    assert waiting.overdue(9.9) == []
    assert waiting.overdue(10.0) == ["a"]
    assert waiting.next_s() == 14.0
    assert len(waiting) == 1


def test_as_many_as_are_expected_may_come_at_once() -> None:
    assert most_strangers(0) == LEAST
    assert most_strangers(100) == LEAST + 200
    assert most_strangers(10**9) < 10**9, "not more than there are descriptors"
