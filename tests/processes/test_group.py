"""A view's process group, with real processes: it adds in the tree's order, and a lost peer is an error and not a wait.

elastic/group/form.py calls constructors of torch that no documentation mentions; a torch that changes them fails here.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch.distributed import TCPStore

from elastic.errors import PeerLost
from elastic.group.flat_sum import FlatSum
from elastic.group.form import DistributedGroup, Group, LocalGroup, form, gather_bytes
from elastic.group.gradients import GradientSum
from elastic.group.hierarchical_sum import HierarchicalSum
from elastic.group.tree import schedule
from elastic.group.treesum import TreeSum
from elastic.loop.assignment import blocks
from elastic.loop.restoring.transfer import Roles, pass_on
from elastic.state.trained import Trained
from elastic.state.weights import Weights
from tests.kit.ranks import Died, returned, run_ranks

pytestmark = pytest.mark.nightly(sample=8, of="groups")

CPU = torch.device("cpu")
TIMEOUT_S = 30.0

Array = npt.NDArray[np.float32]
Asked = tuple[int, int, int]
"""virtual workers, shares that have examples, elements"""


@pytest.fixture
def port() -> Iterator[int]:
    """Of a store that this process hosts."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=TIMEOUT_S))
    yield store.port
    del store


def joined(
    port: int, rank: int, world_size: int, generation: int = 0, address: str = "127.0.0.1"
) -> tuple[TCPStore, Group]:
    """The store must live as long as the group."""
    store = TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=TIMEOUT_S))
    group = form(
        store,
        rank=rank,
        world_size=world_size,
        generation=generation,
        address=address,
        device=CPU,
        timeout_s=TIMEOUT_S,
    )
    return store, group


def leaf(share: int, numel: int) -> torch.Tensor:
    """A share's contribution: of widely differing sizes, so that another order of additions shows in the bits."""
    draw = torch.Generator().manual_seed(100 + share)
    return torch.randn(numel, generator=draw) * 10.0 ** torch.randint(-6, 7, (numel,), generator=draw)


def added_here(lo: int, hi: int, shares: int, numel: int) -> torch.Tensor | None:
    """The definition: split at (lo + hi) // 2; what is empty takes no part."""
    if lo >= shares:
        return None
    if hi - lo == 1:
        return leaf(lo, numel)
    middle = (lo + hi) // 2
    left, right = added_here(lo, middle, shares, numel), added_here(middle, hi, shares, numel)
    assert left is not None
    return left if right is None else left + right


def added_together(
    group: Group, sums: list[Asked], kind: type[TreeSum] | type[HierarchicalSum] = TreeSum
) -> list[bytes]:
    found = []
    kept: dict[int, FlatSum] = {}  # schedules take turns in one memory, as those of full and short batches do
    for virtual_workers, shares, numel in sums:
        dealt = tuple(blocks(shares, group.world_size))
        plan = schedule(virtual_workers, shares, dealt)
        total = kept.setdefault(numel, kind(group, numel, torch.float32, CPU, ordered=True))
        total.begin(plan)
        stack: list[torch.Tensor] = []
        for share, merges in zip(dealt[group.rank], plan.merges[group.rank], strict=True):
            stack.append(leaf(share, numel))
            for _ in range(merges):
                right = stack.pop()
                stack[-1] = stack[-1] + right
        for row, values in zip(total.rows, stack, strict=True):
            row[:numel] = values
        total.start()
        total.join()
        found.append(total.finish()[:numel].numpy().tobytes())
    return found


def add(rank: int, world_size: int, port: int, sums: list[Asked]) -> list[bytes]:
    _store, group = joined(port, rank, world_size)
    try:
        return added_together(group, sums)
    finally:
        group.close()


def sums_of_all_kinds(seed: int) -> tuple[list[Asked], list[bytes]]:
    """Any V, any number of shares with work (fewer than ranks, too), any length, odd ones included; and their bits."""
    draw = random.Random(seed)
    sums = [
        (v, draw.randint(1, v), draw.choice([1, 5, 16, 97, 1000])) for v in (draw.randint(4, 32) for _ in range(60))
    ]
    sums += [(8, 8, 64), (24, 24, 333), (5, 1, 7)]
    expected = []
    for virtual_workers, shares, numel in sums:
        total = added_here(0, virtual_workers, shares, numel)
        assert total is not None
        expected.append(total.numpy().tobytes())
    return sums, expected


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_the_sum_over_a_group_has_the_bits_of_the_tree(port: int, world_size: int) -> None:
    sums, expected = sums_of_all_kinds(world_size)
    for found in returned(run_ranks(add, world_size, port, sums)):
        assert found == expected


def add_on_hosts(rank: int, world_size: int, port: int, hosts: list[int], sums: list[Asked]) -> Any:
    """hosts: which one each rank is on. Gradients of several buckets follow, in both modes."""
    _store, group = joined(port, rank, world_size, address=f"127.0.0.{1 + hosts[rank]}")
    found = added_together(group, sums, HierarchicalSum)
    gradients = [gradients_of(group, ordered=ordered) for ordered in (True, False)]
    group.close()
    return group.hosts, found, gradients


def gradients_of(
    group: Group,
    *,
    ordered: bool,
    before_backward: Callable[[], None] = lambda: None,
    waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> list[Array]:
    """Of a network of nine buckets, of which some travel by host and some do not, in two steps."""
    torch.manual_seed(3)
    sizes = [400, 300, 20, 300, 300, 20, 20, 300, 300, 1]
    network = torch.nn.Sequential(*(torch.nn.Linear(a, b, bias=False) for a, b in pairwise(sizes)))
    parameters = list(network.parameters())
    names = list(map(str, parameters))
    sums = GradientSum(parameters, names, group, overlap=True, ordered=ordered, bucket_bytes=1)
    sums.open()
    found: list[Array] = []
    for shares in (8, 3):  # a full batch, and one that leaves ranks without work
        dealt = tuple(blocks(shares, group.world_size))
        plan = schedule(8, shares, dealt)
        sums.begin(plan, waiting=waiting)
        own = dealt[group.rank]
        all_in_one = tuple(int(share > own.start) for share in own)
        for share, merges in zip(own, plan.merges[group.rank] if ordered else all_in_one, strict=True):
            draw = torch.Generator().manual_seed(share)
            sums.begin_pass(merges, piece=0, pieces=1, last=share == own[-1])
            before_backward()
            network(torch.randn(2, 400, generator=draw)).sum().backward()
            sums.end_pass()
        sums.flush()
        sums.finish(shares)
        found += [parameter.grad.numpy().copy() for parameter in parameters if parameter.grad is not None]
    sums.close()
    return found


@pytest.mark.parametrize("hosts", [(0, 0, 1, 1), (0, 0, 0, 1), (0, 1, 1)])
def test_a_sum_that_is_added_on_hosts_first_has_the_bits_of_the_tree(port: int, hosts: tuple[int, ...]) -> None:
    """Hosts by the addresses that their ranks listen on. In mode "fast", which has no order, all ranks agree."""
    sums, expected = sums_of_all_kinds(len(hosts))
    alone = gradients_of(LocalGroup(), ordered=True)

    answers = returned(run_ranks(add_on_hosts, len(hosts), port, list(hosts), sums))

    for found_hosts, found, (exact, fast) in answers:
        assert [host for host, ranks in enumerate(found_hosts) for _ in ranks] == list(hosts)
        assert found == expected
        assert [gradient.tobytes() for gradient in exact] == [gradient.tobytes() for gradient in alone]
        assert [gradient.tobytes() for gradient in fast] == [gradient.tobytes() for gradient in answers[0][2][1]]
        assert all(np.allclose(one, other, rtol=1e-4, atol=1e-5) for one, other in zip(fast, alone, strict=True))


def add_nothing(rank: int, world_size: int, port: int) -> list[tuple[float, float]]:
    """Two elements per case: rank r adds -0.0 or nothing to the first; 0.0 or nothing to the second."""
    _store, group = joined(port, rank, world_size)
    plan = schedule(world_size, world_size, tuple(blocks(world_size, world_size)))
    found = []
    for giver in range(world_size):
        total = TreeSum(group, 2, torch.float32, CPU, ordered=True)
        total.begin(plan)
        assert all(bool(torch.signbit(row).all()) for row in total.rows)
        if rank == giver:
            total.rows[0][:2] = torch.tensor([-0.0, 0.0])
        total.start()
        total.join()
        signs = torch.signbit(total.finish()[:2]).tolist()
        found.append((signs[0], signs[1]))
    group.close()
    return found


@pytest.mark.parametrize("world_size", [2, 3])
def test_what_nobody_contributed_leaves_even_the_sign_of_zero_alone(port: int, world_size: int) -> None:
    """A missing gradient added as 0.0 would turn another share's -0.0 into 0.0, and the bits would show who had it."""
    for found in returned(run_ranks(add_nothing, world_size, port)):
        assert found == [(True, False)] * world_size


def gather(rank: int, world_size: int, port: int, words: list[list[bytes]]) -> list[list[bytes]]:
    _store, group = joined(port, rank, world_size)
    found = [gather_bytes(group, said[rank]) for said in words]
    group.close()
    return found


def test_bytes_of_any_length_are_gathered_in_rank_order(port: int) -> None:
    words = [[b"a", b"", b"ccc" * 1000], [b"", b"", b""], [b"\0", b"\0\0", b"x\0"]]

    assert returned(run_ranks(gather, 3, port, words)) == [words] * 3
    assert gather_bytes(LocalGroup(), b"alone") == [b"alone"]


def wait_in_a_backward_pass(rank: int, world_size: int, port: int, dies: bool) -> tuple[str, list[Array]]:
    """Rank 1 begins its own when another waits for it in one, or dies then. Returns whom the wait raised, if any."""
    store, group = joined(port, rank, world_size, address=f"127.0.0.{1 + rank // 2}")

    @contextmanager
    def waiting() -> Iterator[None]:
        store.set("waits", "for rank 1")
        yield

    def come_late() -> None:
        if rank == 1:
            store.wait(["waits"], timedelta(seconds=TIMEOUT_S))
            if dies:
                os.kill(os.getpid(), signal.SIGKILL)

    raised, gradients = "", []
    try:
        gradients = gradients_of(group, ordered=True, before_backward=come_late, waiting=waiting)
    except PeerLost as lost:
        raised = lost.phase
    group.close(abruptly=dies)
    return raised, gradients


def test_a_rank_that_waits_inside_its_backward_pass_learns_of_a_loss(port: int) -> None:
    answers = run_ranks(wait_in_a_backward_pass, 4, port, True, within_s=TIMEOUT_S / 2)
    assert answers.pop(1) == Died(-signal.SIGKILL)
    assert [raised for raised, _ in answers] == ["all-to-all"] * 3


def lose_a_peer(rank: int, world_size: int, port: int, collective: str) -> tuple[str, str]:
    """Rank 1 dies for real while the others are inside a collective that needs it."""
    _store, group = joined(port, rank, world_size)
    gather_bytes(group, b"all are here")
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    tensor = torch.ones(world_size * 1000)
    each = [1000] * world_size
    try:
        if collective == "gather_bytes":
            gather_bytes(group, b"word")
        else:
            {
                "all-reduce": lambda: group.all_reduce(tensor),
                "all-to-all": lambda: group.all_to_all(torch.empty_like(tensor), tensor, each, each),
                "all-gather": lambda: group.all_gather(tensor, torch.ones(1000)),
                "broadcast": lambda: group.broadcast(tensor, source=1),
            }[collective]().wait()
    except PeerLost as lost:
        group.close()
        return lost.phase, str(lost)
    return "", "nothing failed"


@pytest.mark.nightly(sample=2)
@pytest.mark.parametrize("collective", ["all-reduce", "all-to-all", "all-gather", "broadcast", "gather_bytes"])
def test_a_peer_that_is_killed_fails_every_collective_at_once(port: int, collective: str) -> None:
    """Two ranks, so that the survivor is its neighbour; within this deadline, far below the group's own."""
    survivor, dead = run_ranks(lose_a_peer, 2, port, collective, within_s=TIMEOUT_S / 2)

    assert dead == Died(-signal.SIGKILL)
    phase, text = survivor
    assert phase == collective.replace("gather_bytes", "all-gather")
    assert text.startswith(f"the {phase} failed: ")


def arrive_alone(rank: int, world_size: int, port: int) -> str:
    store = TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=TIMEOUT_S))
    try:
        form(store, rank=0, world_size=2, generation=0, address="127.0.0.1", device=CPU, timeout_s=1)
    except PeerLost as lost:
        return lost.phase
    return "it formed"


def test_a_group_whose_peer_never_comes_is_a_lost_peer_by_the_deadline(port: int) -> None:
    assert returned(run_ranks(arrive_alone, 1, port)) == ["forming of the group"]


def form_with_one_that_never_connects(rank: int, world_size: int, port: int) -> str:
    """Rank 1 says where it listens, and is gone; rank 0 is told so by somebody else."""
    store = TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=TIMEOUT_S))
    if rank == 1:
        while not store.check(["generation/0/gloo/0/0"]):
            time.sleep(0.01)
        os._exit(0)
    try:
        form(
            store,
            rank=rank,
            world_size=world_size,
            generation=0,
            address="127.0.0.1",
            device=CPU,
            timeout_s=TIMEOUT_S,
            broken=lambda: True,
        )
    except PeerLost as lost:
        return str(lost)
    return "it formed"


def test_a_forming_ends_when_the_view_is_known_to_be_broken(port: int) -> None:
    """gloo would wait for the missing connection until its deadline, and nothing would wake it (77 s, once)."""
    answers = run_ranks(form_with_one_that_never_connects, 2, port)
    assert answers[0] == "a peer was lost while the group was formed"


def constructors(rank: int, world_size: int, port: int) -> dict[str, Any]:
    store, group = joined(port, rank, world_size)
    assert isinstance(group, DistributedGroup)
    found = {
        "default group": torch.distributed.is_initialized(),
        "methods": [hasattr(group._gloo, m) for m in ("allreduce", "alltoall_base", "_allgather_base", "broadcast")],
    }
    store.set(f"formed/{rank}", "")
    store.wait([f"formed/{other}" for other in range(world_size)])  # who closes hangs up on those still forming
    group.close()
    found["threads"] = threading.active_count()
    del store
    return found


def test_the_constructors_that_torch_does_not_document_have_the_shape_that_form_uses(port: int) -> None:
    """No default group is made, so that a process can leave one view and join the next."""
    from torch.distributed import ProcessGroupGloo

    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    assert hasattr(options, "_devices")
    assert hasattr(options, "_timeout")
    for found in returned(run_ranks(constructors, 2, port)):
        assert found == {"default group": False, "methods": [True] * 4, "threads": 1}


def passes_on(rank: int, world_size: int, port: int, elements: int, follows: bool) -> tuple[Any, bool]:
    """Two of four ranks hold a state of many pieces, two need it."""
    store, group = joined(port, rank, world_size)
    model = torch.nn.Module()
    model.a = torch.nn.Parameter(torch.arange(elements, dtype=torch.float32))
    model.register_buffer("b", torch.full((7,), 3, dtype=torch.int64))
    weights = model.state_dict()
    parts = Roles(donors=(1, 3), need_state=(0, 2), need_side_state=(0, 2), follows=follows)
    state = {"model": model} if rank in parts.donors else {}
    held = Weights({}, Trained({"model": model}, {}, lambda: None))
    passed = pass_on(group, parts, {"epoch": 4}, state, held)
    if passed.background_send is not None:
        passed.background_send.finish()
    word, received = passed.side_state, passed.nbytes
    equal = passed.state is not None and all(torch.equal(passed.state["model"][n], weights[n]) for n in weights)
    store.set(f"through/{rank}", "")
    store.wait([f"through/{other}" for other in range(world_size)])  # who closes hangs up on those still receiving
    group.close()
    del store
    return word, equal and received >= 4 * elements


@pytest.mark.parametrize("follows", [False, True], ids=["at once", "while others compute"])
@pytest.mark.parametrize("elements", [1, 5_000_000])
def test_a_state_of_many_pieces_arrives_whole_at_all_who_need_it(port: int, elements: int, follows: bool) -> None:
    answers = returned(run_ranks(passes_on, 4, port, elements, follows))
    assert answers == [({"epoch": 4}, True), (None, False), ({"epoch": 4}, True), (None, False)]
