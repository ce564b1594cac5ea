"""One turn of an agent's loop: what one calls for may be gone by the time that its turn comes."""

from __future__ import annotations

import selectors
import socket
from collections.abc import Iterator

import pytest

from elastic_checkpoint.net.dialing import Dial
from elastic_checkpoint.net.event_loop import EventLoop, LoopThread, run_once

WITHIN_S = 20.0


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    with EventLoop() as loop:
        yield loop


@pytest.fixture
def address() -> Iterator[tuple[str, int]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()


def test_a_dial_that_another_one_closes_in_the_same_turn_is_not_answered(
    loop: EventLoop, address: tuple[str, int]
) -> None:
    dials: list[Dial] = []
    answered: list[socket.socket] = []

    def done(sock: socket.socket | None) -> None:
        assert sock is not None
        answered.append(sock)
        for dial in dials:
            dial.close()

    dials += [Dial(loop, address, done) for _ in range(3)]
    _until_connected(dials, loop)
    assert run_once(loop, WITHIN_S)

    assert len(answered) == 1
    assert not loop.get_map()
    answered[0].close()


@pytest.mark.parametrize("own", ["127.0.0.1", "127.0.0.2", "::1"])
def test_of_this_machine_s_own_addresses_a_refusal_is_the_word_of_its_kernel(loop: EventLoop, own: str) -> None:
    """Only that proves that a process has ended (tests/hosts/test_no_witness.py has another machine's)."""
    with socket.socket(socket.AF_INET6 if ":" in own else socket.AF_INET) as taken:
        taken.bind((own, 0))  # and does not listen
        dial = Dial(loop, taken.getsockname()[:2], lambda sock: None)
        while loop.get_map():
            assert run_once(loop, WITHIN_S)
    assert (dial.refused, dial.here) == (True, True)


def test_who_takes_the_number_of_a_closed_one_is_not_called_for_it(loop: EventLoop) -> None:
    """The number of the closed one is the lowest free one: the next socket that is opened has it."""
    called: list[str] = []
    pairs = [socket.socketpair() for _ in range(2)]
    ours = [one for one, _ in pairs]
    opened: list[socket.socket] = []

    def handle(other: int) -> None:
        called.append("one of both")
        number = ours[other].fileno()
        loop.unregister(ours[other])
        ours[other].close()
        opened.append(socket.socket())
        assert opened[0].fileno() == number
        loop.register(opened[0], selectors.EVENT_READ, lambda: called.append("the new one"))

    loop.register(ours[0], selectors.EVENT_READ, lambda: handle(1))
    loop.register(ours[1], selectors.EVENT_READ, lambda: handle(0))
    for _, theirs in pairs:
        theirs.send(b"x")
    assert run_once(loop, WITHIN_S)

    assert called == ["one of both"]
    for sock in [*opened, *(sock for pair in pairs for sock in pair)]:
        sock.close()


def test_what_was_changed_in_a_turn_is_called_in_the_next(loop: EventLoop) -> None:
    called: list[int] = []
    pairs = [socket.socketpair() for _ in range(2)]

    def handle(number: int) -> None:
        called.append(number)
        pairs[number][0].recv(1)
        other = 1 - number
        loop.modify(pairs[other][0], selectors.EVENT_READ, lambda: handle(other))

    for number, (ours, theirs) in enumerate(pairs):
        loop.register(ours, selectors.EVENT_READ, lambda number=number: handle(number))
        theirs.send(b"x")
    assert run_once(loop, WITHIN_S)
    assert run_once(loop, WITHIN_S)

    assert sorted(called) == [0, 1]
    assert not run_once(loop, 0.0)
    for pair in pairs:
        for sock in pair:
            sock.close()


def test_what_a_thread_is_asked_to_do_and_cannot_is_raised_where_it_was_asked_for() -> None:
    """It ended the thread; who had asked for a connection in it went on without one, after half a minute."""
    with socket.socket() as closed:
        pass
    thread, called = LoopThread("asked"), list[str]()
    thread.start()
    with pytest.raises(OSError, match="Bad file descriptor"):
        thread.call_and_wait(lambda: closed.setblocking(False), WITHIN_S)
    thread.call_and_wait(lambda: called.append("and it serves on"), WITHIN_S)
    assert called == ["and it serves on"]
    thread.close()


def _until_connected(dials: list[Dial], loop: EventLoop) -> None:
    """All of them, so that one batch holds them."""
    for _ in range(10_000):
        if len(loop.select(0.001)) == len(dials):
            return
    raise AssertionError("they did not connect")
