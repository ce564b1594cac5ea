"""Ranks find each other through an address alone, whatever an older round of them has left behind there."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import tempfile
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import DistNetworkError, TCPStore

from elastic.errors import RendezvousTimeout
from elastic.launch.processes.quiet_torch import say_errors_only
from elastic.membership.environment import Launch
from elastic.membership.worker.rendezvous import AtUrl, meet
from tests.kit.launch import Launch as Program
from tests.kit.ranks import Died, returned, run_ranks

pytestmark = pytest.mark.nightly(sample=5, of="ranks that meet")

TIMEOUT_S = 20.0
SHORT_S = 3  # of a deadline that comes: a store that is connected to may wait for a name server for one of them


@pytest.fixture
def agent() -> Iterator[TCPStore]:
    """The store of a torchrun agent, which outlives rounds of workers."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=TIMEOUT_S))
    yield store
    del store


def free_port() -> int:
    """Below those that the kernel gives to connections: another test's could have it by the time it is bound."""
    while True:
        with closing(socket.socket()) as probe, suppress(OSError):
            probe.bind(("127.0.0.1", random.randrange(16_000, 32_000)))
            return int(probe.getsockname()[1])


def launch_of(rank: int, world_size: int, port: int, *, agent_hosts_store: bool = True) -> Launch:
    return Launch(
        rank=rank,
        local_rank=rank,
        world_size=world_size,
        local_world_size=world_size,
        master_addr="127.0.0.1",
        master_port=port,
        agent_hosts_store=agent_hosts_store,
    )


def met(
    launch: Launch, worker_id: str, *, timeout_s: float = TIMEOUT_S, url: str = ""
) -> tuple[str, ...] | tuple[str, list[int]]:
    """The view's workers; or the error and who is missing. Leaves together, since rank 0 hosts the store."""
    try:
        meeting = meet(launch, worker_id, timeout_s=timeout_s, at_url=lambda: AtUrl(url, {}, launch.job))
    except RendezvousTimeout as timeout:
        return str(timeout), timeout.missing
    assert meeting.store is not None
    assert meeting.view.rank_of(worker_id) == launch.rank
    meeting.store.set(f"leaves/{launch.rank}", "")
    if launch.rank == 0:
        meeting.store.wait([f"leaves/{rank}" for rank in range(launch.world_size)], timedelta(seconds=TIMEOUT_S))
    return meeting.view.workers


def arrive(rank: int, world_size: int, port: int, agent_hosts_store: bool, rounds: int) -> list[Any]:
    """Several rounds after one another: the next begins while the last one's store may still be there."""
    launch = launch_of(rank, world_size, port, agent_hosts_store=agent_hosts_store)
    return [met(launch, f"w{rank}-{number}") for number in range(rounds)]


@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_meet_over_an_agent_s_store_round_after_round(agent: TCPStore, world_size: int) -> None:
    views = [tuple(f"w{rank}-{number}" for rank in range(world_size)) for number in range(5)]

    assert returned(run_ranks(arrive, world_size, agent.port, True, 5)) == [views] * world_size


def test_ranks_meet_where_rank_0_must_host_the_store_itself() -> None:
    """A launcher that only sets MASTER_ADDR and MASTER_PORT; the second round listens on the port of the first."""
    views = [tuple(f"w{rank}-{number}" for rank in range(3)) for number in range(2)]

    assert returned(run_ranks(arrive, 3, free_port(), False, 2)) == [views] * 3


def arrive_by_url(rank: int, world_size: int, url: str, rounds: int) -> list[Any]:
    launch = Launch(
        rank=rank, local_rank=rank, world_size=world_size, local_world_size=world_size, launcher="srun", job="7/0"
    )
    return [met(launch, f"w{rank}-{number}", url=url) for number in range(rounds)]


@pytest.mark.parametrize("before", [b"", b"{", b'{"address": "127.0.0.1", "port": 1}', b'{"port": []}'])
def test_ranks_of_a_launcher_that_names_no_place_meet_by_the_url(tmp_path: Path, before: bytes) -> None:
    """Round after round, and whatever lies there of a launch that was killed while it met."""
    if before:
        (tmp_path / "elastic" / "ranks").mkdir(parents=True)
        (tmp_path / "elastic" / "ranks" / "7-0.json").write_bytes(before)
    views = [tuple(f"w{rank}-{number}" for rank in range(3)) for number in range(2)]

    assert returned(run_ranks(arrive_by_url, 3, str(tmp_path), 2)) == [views] * 3
    assert [*tmp_path.rglob("*.json")] == []


def test_a_rank_whose_folder_nobody_shares_says_so(tmp_path: Path) -> None:
    alone = Launch(rank=1, local_rank=1, world_size=2, local_world_size=2, launcher="srun")
    text, missing = met(alone, "w1", timeout_s=1.0, url=str(tmp_path))
    assert missing == [0]
    assert f"looked   at {tmp_path}, from" in str(text)
    assert "they share no folder" in str(text)


def publish_and_die(rank: int, world_size: int, port: int) -> None:
    """Rank 0 of a round whose rank 1 never comes: its endpoint stays published after its death."""
    shared = TCPStore("127.0.0.1", port, is_master=False)
    if rank == 1:
        shared.wait(["elastic/endpoint"], timedelta(seconds=TIMEOUT_S))
        os.kill(int(shared.get("doomed")), signal.SIGKILL)
        return
    shared.set("doomed", str(os.getpid()))
    meet(launch_of(0, 2, port), "doomed", timeout_s=TIMEOUT_S)


def join_then_host(rank: int, world_size: int, port: int) -> Any:
    """Rank 1 is there first, and finds the dead one's address; rank 0 comes when rank 1 has looked."""
    shared = TCPStore("127.0.0.1", port, is_master=False)
    if rank == 1:
        shared.set("rank 1 looks", "")
        return met(launch_of(1, 2, port), "w1")
    shared.wait(["rank 1 looks"], timedelta(seconds=TIMEOUT_S))
    return met(launch_of(0, 2, port), "w0")


def test_the_address_of_a_dead_rank_0_is_passed_over(agent: TCPStore) -> None:
    """The agent's store keeps what a killed round has published; half of torchrun's own restarts die of that."""
    assert run_ranks(publish_and_die, 2, agent.port)[0] == Died(-signal.SIGKILL)
    dead = json.loads(agent.get("elastic/endpoint"))

    assert dead["address"] == "127.0.0.1"
    assert returned(run_ranks(join_then_host, 2, agent.port)) == [("w0", "w1")] * 2
    assert not agent.check(["elastic/endpoint"])  # withdrawn: the next round cannot mistake this one's for its own


def older_and_newer(rank: int, world_size: int, port: int, timeout_s: float) -> Any:
    """Process 2 plays rank 1 of an older round, alive and late: it takes the slot in the newer rank 0's store.

    Whoever comes second finds it taken and looks further; the deadline ends that, and rank 0 says who is missing.
    """
    if rank == 0:
        return met(launch_of(0, 3, port), "w0", timeout_s=timeout_s)
    return met(launch_of(1, 3, port), f"w1-{'newer' if rank == 1 else 'older'}", timeout_s=timeout_s + 1)


def test_of_two_workers_with_one_rank_only_one_gets_in_and_the_deadline_names_who_is_missing(agent: TCPStore) -> None:
    for timeout_s in (SHORT_S, 5 * SHORT_S):  # where somebody has not come to the others in time: once more, with more
        host, *twins = returned(run_ranks(older_and_newer, 3, agent.port, timeout_s))
        if (host[1], [missing for _, missing in twins]) == ([2], [[0], [0]]):
            break

    assert host[1] == [2]
    assert f"2 of 3 ranks arrived within {timeout_s} s" in host[0]
    assert "missing  rank 2\n" in host[0]
    for text, missing in twins:
        assert missing == [0]
        assert f"rank 1 of 3 found no rank 0 within {timeout_s + 1} s" in text
        assert f"127.0.0.1:{agent.port}" in text


def other_world(rank: int, world_size: int, port: int) -> Any:
    """Rank 1 of a round of 3 comes to the store of a round of 2: it must not take that round's slot."""
    if rank == 2:
        return met(launch_of(1, 3, port), "of another round", timeout_s=SHORT_S)
    return met(launch_of(rank, 2, port), f"w{rank}")


def test_a_worker_of_a_round_of_another_size_is_not_let_in(agent: TCPStore) -> None:
    first, second, stranger = returned(run_ranks(other_world, 3, agent.port))

    assert first == second == ("w0", "w1")
    assert stranger[1] == [0]


def alone(rank: int, world_size: int, port: int) -> Any:
    return met(launch_of(0, 3, port), "w0", timeout_s=SHORT_S)


def test_an_agent_that_is_not_there_is_said_to_be(agent: TCPStore) -> None:
    ((text, missing),) = returned(run_ranks(alone, 1, free_port()))

    assert missing == []
    assert "rank 0 reached no store of torchrun's agent within 3 s" in text


def test_rank_0_names_all_who_did_not_come(agent: TCPStore) -> None:
    ((text, missing),) = returned(run_ranks(alone, 1, agent.port))

    assert missing == [1, 2]
    assert "missing  ranks 1, 2\n" in text
    assert "next     look at their logs" in text


def blocked(rank: int, world_size: int, port: int) -> Any:
    return met(launch_of(0, 2, port, agent_hosts_store=False), "w0", timeout_s=SHORT_S)


def test_a_port_that_is_taken_is_an_error_that_names_it() -> None:
    with closing(socket.socket()) as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ((text, _),) = returned(run_ranks(blocked, 1, port))

    assert f"rank 0 could not listen on port {port} within 3 s" in text
    assert "choose another --master-port" in text


@pytest.mark.nightly(sample=1, of="two agents")
def test_two_agents_train_together(tmp_path: Path) -> None:
    """Two torchrun commands, as on two machines, and the bits of one process."""
    meet_at = ["--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--max-restarts=0"]
    program, url = "tests.kit.programs.portable", tmp_path / "run"
    with (
        Program(program, [url], workers=2, torchrun=meet_at) as one,
        Program(program, [url], workers=2, torchrun=meet_at) as two,
        Program(program, [tmp_path / "alone"]) as single,
    ):
        said = one.succeed(within_s=240) + two.succeed(within_s=240)
        expected = single.succeed(within_s=240)

    (together,) = [line for line in said.splitlines() if line.startswith("found ")]
    assert together in expected


def test_an_agent_that_has_loaded_torch_can_still_make_its_store_say_errors_only() -> None:
    """Its workers, forked before that, say what torch says."""
    before, after = returned(run_ranks(warnings_of_a_store, 1))[0]
    assert before > 0
    assert after == 0


def warnings_of_a_store(rank: int, world_size: int) -> tuple[int, int]:
    os.environ.pop("TORCH_CPP_LOG_LEVEL", None)
    before = warnings_of_a_store_without_host()
    assert say_errors_only()
    return before, warnings_of_a_store_without_host()


def warnings_of_a_store_without_host() -> int:
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        with suppress(DistNetworkError):
            TCPStore("127.0.0.1", free_port(), is_master=False, timeout=timedelta(seconds=1))
        said.seek(0)
        return sum(line.startswith(b"[W") for line in said)
