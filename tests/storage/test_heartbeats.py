"""Holders that cannot be asked: closed ports, addresses that are others', runs that were copied."""

from __future__ import annotations

import contextlib
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tenacity
import torch

from elastic_checkpoint import Checkpointer, ClaimHeld
from elastic_checkpoint.net.machine import only_near
from elastic_checkpoint.net.transport import client_side
from elastic_checkpoint.runs.liveness import Alive, Gone, LivenessServer, Refused, Unknown, ask, proven_dead
from elastic_checkpoint.storage import open_storage

Make = Callable[..., Checkpointer]
STATE = {"w": torch.arange(4.0)}
NONCE = "n" * 32
SECRET = "of the run that holds the claim, and random"


@pytest.fixture(params=[None, SECRET], ids=["no secret", "a secret"])
def liveness(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[LivenessServer]:
    """Who asks has another secret than its run."""
    if request.param is not None:
        monkeypatch.setenv("ELASTIC_SECRET", request.param)
    one = LivenessServer(nonce=NONCE, job=None)
    monkeypatch.setenv("ELASTIC_SECRET", "that of the next run, which is another one")
    yield one
    one.close()


def elsewhere(endpoint: dict[str, Any], *addresses: str) -> dict[str, Any]:
    """The endpoint of a holder on another machine, at these addresses."""
    return {**endpoint, "boot_id": "another machine's", "addresses": list(addresses)}


def test_one_address_that_refuses_proves_nothing(liveness: LivenessServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A holder advertises the address of its bridge to its containers, which is another machine's here: that one
    refuses, while the holder's own address is behind a firewall. Loopback addresses stand for all of them."""
    monkeypatch.setattr("elastic_checkpoint.runs.liveness.only_near", lambda address: False)
    here = elsewhere(liveness.endpoint(), "127.0.0.2", "127.0.0.3", "127.0.0.4")
    liveness.close()
    with socket.create_server(("127.0.0.3", liveness.port)):  # takes connections, and says nothing
        assert isinstance(ask(here, NONCE, timeout_s=0.3), Unknown)
    assert isinstance(ask(here, NONCE, timeout_s=5), Refused)  # which a firewall may say as well
    assert proven_dead(here, NONCE) is None


def test_addresses_that_mean_another_machine_from_each_are_never_asked(liveness: LivenessServer) -> None:
    for address in ("127.0.0.1", "::1", "169.254.3.4", "fe80::1", "0.0.0.0"):
        assert only_near(address)
        assert isinstance(ask(elsewhere(liveness.endpoint(), address), NONCE, timeout_s=5), Unknown)
    assert not only_near("172.17.0.1")
    assert isinstance(ask(liveness.endpoint(), NONCE, timeout_s=5), Alive)
    assert proven_dead(liveness.endpoint(), NONCE) is None


def test_where_ports_are_closed_a_second_launch_is_refused_while_the_first_one_lives(
    tmp_path: Path, checkpointer: Make, liveness: LivenessServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It saves once an hour, and nobody can ask it: what it renews in the storage is all that shows its life."""
    monkeypatch.setattr("elastic_checkpoint.runs.heartbeat.EVERY_S", 0.05)
    lines: list[str] = []
    first = checkpointer(tmp_path, answers=(NONCE, elsewhere(liveness.endpoint())))
    first.save(1, STATE)
    for _ in range(2):
        with pytest.raises(ClaimHeld, match="heartbeats"):
            checkpointer(tmp_path, grace_s=3600, log=lines.append).save(2, STATE)
    assert any("waiting up to 3600 s for the holder of claim 1, which cannot be asked" in line for line in lines)
    first.save(3, STATE)
    first.close()
    second = checkpointer(tmp_path, grace_s=2, log=lines.append)
    assert second.claim().number == 2
    assert any("was silent for 2 s, and left no sign in the storage" in line for line in lines)
    assert not (tmp_path / "leases" / "00000001").exists()


def test_who_takes_a_claim_over_gives_a_heartbeat_at_once_that_nobody_gave_before(
    tmp_path: Path, checkpointer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last one may be old, and who waits for a change sees none where both count from one."""
    monkeypatch.setattr("elastic_checkpoint.runs.heartbeat.EVERY_S", 3600.0)
    claim = checkpointer(tmp_path).claim()
    sign = tmp_path / "leases" / "00000001"
    assert not sign.exists()
    seen = set()
    for _ in range(2):
        sign.unlink(missing_ok=True)
        checkpointer(tmp_path).adopt(claim)
        for attempt in tenacity.Retrying(
            stop=tenacity.stop_after_delay(60),
            wait=tenacity.wait_fixed(0.02),
            retry=tenacity.retry_if_exception_type((AssertionError, FileNotFoundError)),
            reraise=True,
        ):
            with attempt:
                said = sign.read_bytes()
                assert said
        seen.add(said)
    assert len(seen) == 2


def test_a_commit_while_it_is_waited_for_is_a_heartbeat(
    tmp_path: Path, checkpointer: Make, liveness: LivenessServer
) -> None:
    """As of a holder whose other process renews no heartbeat. The newcomer leaves nothing that stands in its way."""
    storage: Any = open_storage(tmp_path)
    first = checkpointer(storage, answers=(NONCE, elsewhere(liveness.endpoint())))
    first.save(1, STATE)

    def commits(line: str) -> None:
        if "waiting" in line:
            first.save(2, STATE)

    with pytest.raises(ClaimHeld, match=r"did not answer, but committed c00000001.s000000002-"):
        checkpointer(tmp_path, grace_s=0.3, log=commits).save(9, STATE)
    first.save(3, STATE)
    assert [commit.step for commit in first.list()] == [3, 2, 1]


def test_a_copy_of_a_live_run_is_another_run(tmp_path: Path, checkpointer: Make) -> None:
    """cp -r, to fork an experiment: the holder answers for its claim, which lies in both."""
    first = checkpointer(tmp_path / "run")
    first.save(1, STATE)
    shutil.copytree(tmp_path / "run", tmp_path / "fork")
    (tmp_path / "same").symlink_to(tmp_path / "run")

    lines: list[str] = []
    fork = checkpointer(tmp_path / "fork", log=lines.append)
    assert fork.load({"w": torch.zeros(4)}) == 1
    assert fork.save(2, STATE).claim == 2
    assert any("this is a copy of" in line for line in lines)
    with pytest.raises(ClaimHeld):
        checkpointer(tmp_path / "same").save(2, STATE)
    first.save(2, STATE)
    assert not [path for path in (tmp_path / "run" / "claims").iterdir() if "probe" in path.name]


def test_a_moved_run_is_still_its_holders(tmp_path: Path, checkpointer: Make) -> None:
    """Nothing proves that it is a copy."""
    first = checkpointer(tmp_path / "run")
    first.save(1, STATE)
    (tmp_path / "run").rename(tmp_path / "moved")
    with pytest.raises(ClaimHeld):
        checkpointer(tmp_path / "moved").save(2, STATE)


def test_a_holder_whose_run_has_a_secret_answers_who_may_read_the_claim_and_nobody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next run has another secret: had it to know that of the last one, it would take the claim of the living."""
    monkeypatch.setenv("ELASTIC_SECRET", SECRET)
    holder = LivenessServer(nonce=NONCE, job="job")
    endpoint = holder.endpoint()
    assert endpoint["tls"] is True
    assert SECRET not in str(endpoint)
    for secret in (None, "that of the next run, which is another one"):
        monkeypatch.delenv("ELASTIC_SECRET")
        if secret is not None:
            monkeypatch.setenv("ELASTIC_SECRET", secret)
        assert ask(endpoint, NONCE, timeout_s=30) == Alive("job")
        monkeypatch.setenv("ELASTIC_SECRET", SECRET)
    assert isinstance(ask(endpoint, "m" * 32, timeout_s=30), Gone), "another claim's holder has its port by now"
    strangers = [b"", b"GET / HTTP/1.1\r\n\r\n", client_side("m" * 32).encrypt(), client_side(NONCE).encrypt()[:-1]]
    for said in strangers:
        with socket.create_connection(("127.0.0.1", holder.port)) as stranger:
            stranger.sendall(said)
            stranger.shutdown(socket.SHUT_WR)
            stranger.settimeout(30)
            heard = b""
            with contextlib.suppress(ConnectionResetError):
                while more := stranger.recv(4096):
                    heard += more
            assert NONCE.encode() not in heard
    assert ask(endpoint, NONCE, timeout_s=30) == Alive("job")
    holder.close()
    assert isinstance(ask(endpoint, NONCE, timeout_s=30), Gone)
