"""Who knows the run's secret is heard, and nobody else: what follows from it is the same on each machine."""

from __future__ import annotations

import hashlib
import random
import socket
import threading
import time

import pytest
from torch.distributed import HashStore
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend

from elastic.launch.node_rules import ThisNode
from elastic.launch.rendezvous.state import SignedBackend, StateRefused
from elastic_checkpoint.errors import CheckpointError
from elastic_checkpoint.net import tls
from elastic_checkpoint.net.dialing import ask
from elastic_checkpoint.net.secret import (
    ANOTHER,
    CHARACTERS_MIN,
    NONE_HERE,
    NONE_THERE,
    TransportError,
    generated_secret,
    secret_of_run,
)
from elastic_checkpoint.net.tls import Tls, identity
from elastic_checkpoint.net.transport import Transport, client_side, prepare, server_side

SECRET, OTHER = "s" * 40, "t" * 40
PLAIN = [b'{"say":"hello"}\n', b"GET / HTTP/1.1\r\n\r\n", b"\0" * 4096]


def test_a_secret_that_could_be_guessed_is_refused_with_what_to_do() -> None:
    for short in ("", "password", "x" * (CHARACTERS_MIN - 1), " \n" * 30):
        with pytest.raises(CheckpointError, match=r"export ELASTIC_SECRET=\$\(openssl rand -base64 32\)") as refused:
            secret_of_run({"ELASTIC_SECRET": short})
        assert not short.strip() or short not in str(refused.value)
    assert secret_of_run({}) is None
    assert secret_of_run({"ELASTIC_SECRET": f"{SECRET}\n"}) == SECRET, "files end in a line's end"
    made = generated_secret()
    assert secret_of_run({"ELASTIC_SECRET": made}) == made != generated_secret()


def test_it_is_shown_nowhere_that_a_place_is() -> None:
    assert SECRET not in repr(ThisNode(node="n", address=None, run="r", secret=SECRET))


def test_each_machine_makes_the_same_certificate_of_it() -> None:
    """A version of `cryptography` that wrote another one would keep its nodes out: this digest would notice."""
    certificate = identity(SECRET)[1]
    assert identity(OTHER)[1] != certificate
    digest = hashlib.sha256(certificate).hexdigest()
    assert digest == "7d0ee2e0d9e208860c4958d5ae80300d9f1460c2e68911cdb602b3205cc33652"


def test_what_is_said_arrives_whole_however_it_is_cut() -> None:
    """Said before the handshake is through, too; nothing waits in TLS when nothing more comes over the socket."""
    rng = random.Random(7)
    for secret in (SECRET, None):
        caller, called = client_side(secret), server_side(secret)
        said = [rng.randbytes(rng.choice((1, 20, 100_000))) for _ in range(6)]
        on_the_way = b"".join(map(caller.encrypt, said[:3]))
        heard = b""
        for more in (*said[3:], b"", b""):
            while on_the_way:
                cut = rng.randrange(1, 40_000)
                heard += called.decrypt(on_the_way[:cut])
                on_the_way = on_the_way[cut:]
                if (answer := called.encrypt()) and caller.decrypt(answer):
                    raise AssertionError("it said nothing")
                on_the_way += caller.encrypt()
            on_the_way = caller.encrypt(more)
        assert heard == b"".join(said)
        assert caller.through
        assert called.through
        assert caller.decrypt(called.encrypt(said[2])) == said[2]


@pytest.mark.parametrize(
    ("caller", "called", "caller_knows", "called_knows"),
    [
        (SECRET, OTHER, ANOTHER, ANOTHER),
        (None, SECRET, NONE_HERE, NONE_THERE),
        (SECRET, None, NONE_THERE, NONE_HERE),
    ],
    ids=["another", "none", "one too many"],
)
def test_two_that_do_not_know_one_secret_both_learn_it(
    caller: str | None, called: str | None, caller_knows: str, called_knows: str
) -> None:
    one, other = client_side(caller), server_side(called)
    on_the_way = one.encrypt(PLAIN[0])
    for _ in range(5):
        for hears in (other, one):
            if on_the_way and not hears.refused and _refuses(hears, on_the_way):
                assert hears.refused
            on_the_way = hears.encrypt()
    assert (one.refused, other.refused) == (caller_knows, called_knows)


@pytest.mark.parametrize(
    "said", [*PLAIN, b"\x16\x03\x01\x00\x05hello", b"\x15\x03\x03\x00\x02\x02\x28", b"\x16" * 70_000]
)
def test_what_is_no_handshake_is_refused_and_nothing_is_heard(said: bytes) -> None:
    for one in (server_side(SECRET), client_side(SECRET)):
        assert _refuses(one, said)
        assert not one.through


def test_half_a_handshake_says_nothing_and_takes_nothing() -> None:
    stranger, called = client_side(SECRET), server_side(SECRET)
    assert called.decrypt(stranger.encrypt(b"hello")[:-1]) == b""
    assert not called.pending
    assert not called.through


def rendezvous(secret: str | None, store: HashStore) -> SignedBackend:
    return SignedBackend(C10dRendezvousBackend(store, "run"), "run", secret)


@pytest.mark.parametrize("secret", [SECRET, None])
def test_nodes_of_one_secret_read_what_the_others_left_in_the_rendezvous(secret: str | None) -> None:
    store = HashStore()
    one, other = rendezvous(secret, store), rendezvous(secret, store)
    assert one.get_state() is None
    made = one.set_state(b"first")
    assert made is not None
    state, token, _ = made
    assert state == b"first"
    assert other.get_state() == (b"first", token)
    changed = other.set_state(b"second", token)
    assert changed is not None
    assert changed[0] == b"second"
    outdated = one.set_state(b"third", token)
    assert outdated is not None
    assert outdated[0] == b"second", "which it was told instead"


@pytest.mark.parametrize(
    ("theirs", "ours", "why"), [(OTHER, SECRET, ANOTHER), (None, SECRET, NONE_THERE), (SECRET, None, NONE_HERE)]
)
def test_what_a_stranger_left_in_the_rendezvous_is_not_unpickled(
    theirs: str | None, ours: str | None, why: str
) -> None:
    """torch unpickles it: that would be code of whoever reaches the store's port."""
    store = HashStore()
    rendezvous(theirs, store).set_state(b"cos\nsystem\n(S'true'\ntR.")
    reader = rendezvous(ours, store)
    with pytest.raises(StateRefused) as refused:
        reader.get_state()
    assert str(refused.value) == why
    with pytest.raises(StateRefused):
        reader.set_state(b"mine")


def test_what_is_written_over_the_state_of_those_who_wait_is_put_back() -> None:
    """One write to the open store ended every node that waited there."""
    store = HashStore()
    one, other = rendezvous(SECRET, store), rendezvous(SECRET, store)
    one.set_state(b"first")
    assert other.get_state() is not None
    for theirs in (OTHER, None):
        stranger = C10dRendezvousBackend(store, "run")
        found = stranger.get_state()
        assert found is not None
        stranger.set_state(rendezvous(theirs, store)._signed(b"a bomb"), found[1])
        with pytest.raises(StateRefused):
            rendezvous(SECRET, store).get_state()
        state, token = other.get_state() or (b"", None)
        assert state == b"first"
        assert one.get_state() == (b"first", token)
        changed = one.set_state(b"first", token)
        assert changed is not None
        assert changed[2]


def test_an_answer_has_a_deadline_however_little_of_it_comes_at_a_time() -> None:
    """A byte now and then, inside one record of TLS, held a node up for as long as somebody liked."""
    for secret in (SECRET, None):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.sendall(b"\x16\x03\x03\x40\x00" if secret else b"")
            drips, over = threading.Event(), time.monotonic() + 0.5

            def drip(theirs: socket.socket = theirs, drips: threading.Event = drips) -> None:
                while not drips.wait(0.02):
                    theirs.send(b"x")

            thread = threading.Thread(target=drip)
            thread.start()
            try:
                with pytest.raises(TimeoutError):
                    ask(ours, client_side(secret), b"", over, longest=4096)
            finally:
                drips.set()
                thread.join()


def test_a_machine_that_cannot_speak_it_says_so_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refuses(Tls):
        def decrypt(self, data: bytes) -> bytes:
            raise TransportError("no suitable signature algorithm")

    monkeypatch.setattr(tls, "Tls", Refuses)
    with pytest.raises(CheckpointError, match="does not speak TLS by it: no suitable signature"):
        prepare("a secret of which nothing is known yet")


def _refuses(one: Transport, said: bytes) -> bool:
    try:
        one.decrypt(said)
    except TransportError as refused:
        return str(refused) == one.refused
    return False
