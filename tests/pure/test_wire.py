"""What arrives over a channel is data, whoever sent it: a bad line ends that connection and nothing else."""

from __future__ import annotations

import pytest

from elastic.launch.worker import cut
from elastic.membership.wire import LINE_MAX, Lines, WireError, encode


def test_messages_come_whole_however_they_are_cut() -> None:
    sent: list[dict[str, object]] = [{"say": "ready", "shares": 8}, {"say": "put", "value": "ä" * 1000}]
    data = b"".join(encode(message) for message in sent)
    lines = Lines()
    assert [message for at in range(0, len(data), 7) for message in lines.feed(data[at : at + 7])] == sent


@pytest.mark.parametrize(
    "line",
    [b"[" * 100_000, b"{}", b"[]", b'{"say": 1}', b"\xff\xfe", b"x" * 10],
    ids=["nested too deeply", "says nothing", "no object", "says no word", "no text", "no JSON"],
)
def test_a_line_that_is_no_message_is_refused(line: bytes) -> None:
    with pytest.raises(WireError):
        Lines().feed(line + b"\n")


def test_a_line_without_end_is_refused_before_memory_is() -> None:
    with pytest.raises(WireError, match="a line of more than"):
        Lines().feed(b"x" * (LINE_MAX + 1))


def test_an_exception_of_megabytes_fits_into_a_line_and_keeps_its_end() -> None:
    """The agent would take the worker's channel for broken, kill it, and start it again, for ever."""
    told = cut("x" * 5_000_000 + "ValueError: the reason")
    assert told.endswith("ValueError: the reason")
    assert len(encode({"say": "failed", "error": told, "trace": told})) < LINE_MAX
    assert cut("short") == "short"
