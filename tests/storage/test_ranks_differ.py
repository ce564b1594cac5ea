"""Ranks that save together and do not hold the same: refused by name, or carried as it was marked. Never a mixture."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from elastic_checkpoint import Checkpointer, PerRank, RanksDiffer, StateMismatch, UnsupportedValue, digest
from elastic_checkpoint.load.reader import read_commit
from elastic_checkpoint.save.group import replicas
from tests.kit.ranks import returned, run_ranks
from tests.storage.together import ranks_of

State = dict[str, Any]


def refused(rank: int, size: int, folder: str) -> list[tuple[dict[str, list[int]], str]]:
    with ranks_of(folder, rank, size, name="refused") as (runs, _):
        torch.manual_seed(3)
        same = {"model": torch.nn.Linear(8, 8), "step": 1, "w": torch.ones(90_000)}
        told = []

        def refuses(state: State, blocking: bool = True) -> None:
            with pytest.raises(RanksDiffer) as caught:
                runs.save(1, {**same, **state}, blocking=blocking)
            told.append((caught.value.entries, str(caught.value)))

        replay = torch.zeros(90_000)
        replay[-1] = -0.0 if rank == 2 else 0.0  # one bit of the last element
        refuses({"replay": replay, "flags": torch.tensor([rank > 0])})
        refuses({"replay": replay}, blocking=False)
        refuses({"position": 1000 + rank, "more": {"x": 1} if rank == 1 else {}})
        refuses({"array": np.full(5000, rank)})
        assert runs.list() == []
        ordered = {"a": 1, "b": torch.ones(3)}
        runs.save(2, {**same, "any": ordered if rank else dict(reversed(ordered.items()))})
        assert [commit.step for commit in runs.list()] == [2]
        return told


def test_what_differs_is_refused_by_name_before_anything_is_committed(tmp_path: Path) -> None:
    """Each rank stores a part of what all hold: a tensor that differs would be stored as a mixture that none held."""
    answers = returned(run_ranks(refused, 3, str(tmp_path)))
    assert answers[0] == answers[1] == answers[2]
    entries, texts = zip(*answers[0], strict=True)
    assert entries[0] == {"replay": [2], "flags": [1, 2]}
    assert entries[1] == {"replay": [2]}
    assert entries[2] == {"position": [1, 2], "more": [1, 2], "more.x": [1]} or entries[2]["position"] == [1, 2]
    assert entries[3] == {"array": [1, 2]}
    assert "position on ranks 1, 2: 1000 on rank 0, 1001 on rank 1" in texts[2]
    assert all("per_rank=['" in text and "rank0=['" in text and "nothing was saved" in text for text in texts)


def replicas_refused(rank: int, size: int, folder: str) -> tuple[dict[str, list[int]], str, list[int]]:
    with ranks_of(folder, rank, size, name="replicas") as (runs, _):
        both = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "shard"))

        def state(odd: bool) -> State:
            coordinate = both.get_coordinate()
            assert coordinate is not None
            local = torch.full((50, 4), float(coordinate[1]))
            other = local + float(odd and rank == 3)
            made = {"params": (other, both, [Replicate(), Shard(0)]), "same": (local, both, [Replicate(), Shard(0)])}
            made["moments"] = (
                other,
                both["shard"],
                [Shard(0)],
            )  # FSDP in each half: two meshes, whose ranks hold the same boxes
            made["full"] = (torch.full((9,), float(odd and rank == 2)), both, [Replicate(), Replicate()])
            made["cut"] = (torch.full((7,), float(rank)), both, [Shard(0), Shard(0)])
            return {name: DTensor.from_local(*how, run_check=False) for name, how in made.items()}

        for blocking in (True, False):
            with pytest.raises(RanksDiffer) as caught:
                runs.save(1, state(odd=True), blocking=blocking)
        assert runs.list() == []
        runs.save(2, state(odd=False))
        here = state(odd=True)
        runs.load(here)
        assert all(here[name].to_local().equal(tensor.to_local()) for name, tensor in state(odd=False).items())
        return caught.value.entries, str(caught.value), [commit.step for commit in runs.list()]


def test_replicas_of_a_sharded_state_that_differ_are_refused_like_others(tmp_path: Path) -> None:
    """HSDP: of each shard several ranks hold a copy, and which of them stores it is chosen tensor by tensor. Where they
    differ, the parameters of one replica were saved beside the moments of another."""
    answers = returned(run_ranks(replicas_refused, 4, str(tmp_path)))
    entries, text, committed = answers[0]
    assert all(answer == answers[0] for answer in answers)
    assert entries == {"params": [3], "moments": [3], "full": [2]}
    assert "params on rank 3: another copy of a part of this DTensor than a rank before holds" in text
    assert "per_rank=" not in text  # which takes no DTensors
    assert committed == [2]


def own_state(rank: int) -> State:
    """What is each rank's own in a usual script: generators, the position in the data, a replay buffer."""
    generator = np.random.RandomState(rank)
    return {
        "shared": torch.arange(40_000),
        "step": 3,
        "rng": {
            "torch": torch.Generator().manual_seed(rank).get_state(),
            "numpy": generator.get_state(),
            "python": random.Random(rank).getstate(),
        },
        "loader": {"position": 1000 + rank, "epoch": 2, "seen": list(range(rank))},
        "replay": torch.full((20_000 + rank,), float(rank)),
        "empty": torch.empty(rank, 0),
    }


PER_RANK = ["rng", "loader.position", "loader.seen", "rep*", "empty"]


def fresh_state(rank: int) -> State:
    state = own_state(rank)
    state["shared"].zero_()
    state["rng"]["torch"].zero_()
    state["rng"]["numpy"] = np.random.RandomState(99).get_state()
    state["rng"]["python"] = random.Random(99).getstate()
    state["loader"].update(position=0, epoch=0, seen=[])
    state["replay"].fill_(-1)
    return state


def same(one: Any, other: Any) -> bool:
    return digest(one) == digest(other) and repr(plain(one)) == repr(plain(other))


def plain(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: plain(value) for key, value in sorted(tree.items())}
    if isinstance(tree, list | tuple):
        return [plain(value) for value in tree]
    return None if isinstance(tree, torch.Tensor | np.ndarray) else tree


def each_its_own(rank: int, size: int, folder: str) -> bool:
    """Saved in both ways, and loaded: each rank has what it had."""
    with ranks_of(folder, rank, size, name="own", per_rank=PER_RANK) as (runs, _):
        runs.save(1, own_state(rank))
        runs.save(2, own_state(rank), blocking=False).wait()
        found = []
        for step in (1, 2):
            here = fresh_state(rank)
            assert runs.load(here, step=step) == step
            found.append(same(here, own_state(rank)))
        return all(found)


def others_here(rank: int, size: int, folder: str) -> tuple[str, list[str]]:
    """Loaded by another number of ranks: the refusal, and with "keep" what of the state became another one."""
    names = {"rng", "loader.position", "loader.seen", "replay", "empty"}
    lines: list[str] = []
    with ranks_of(folder, rank, size, name="others") as (runs, _):
        here = fresh_state(rank)
        with pytest.raises(StateMismatch) as caught:
            runs.load(here)
        assert not here["shared"].any()
        assert set(caught.value.misshaped) == names
    options: dict[str, Any] = {"per_rank": PER_RANK, "per_rank_resized": "keep", "log": lines.append}
    with ranks_of(folder, rank, size, name="keep", **options) as (runs, _):
        loaded = runs.load(here)
        assert set(loaded.missing) == names
    kept = fresh_state(rank)
    assert here["shared"].equal(torch.arange(40_000))
    assert (here["step"], here["loader"]) == (3, {"position": 0, "epoch": 2, "seen": []})
    assert same([here["rng"], here["replay"], here["empty"]], [kept["rng"], kept["replay"], kept["empty"]])
    return str(caught.value), lines


def test_per_rank_gives_each_rank_its_own_back_and_says_so_at_another_number_of_ranks(tmp_path: Path) -> None:
    assert returned(run_ranks(each_its_own, 2, str(tmp_path))) == [True, True]
    with Checkpointer(tmp_path / "run") as runs:
        tree = runs.read().tree
        positions, replay = tree["loader"]["position"], tree["replay"]
        assert isinstance(positions, PerRank)
        assert positions == (1000, 1001)
        assert [tensor[0].item() for tensor in replay] == [0.0, 1.0]
        assert all(one.ok for one in runs.verify())
        assert digest(tree) == digest(runs.read(step=1).tree)
    for rank, (text, lines) in enumerate(returned(run_ranks(others_here, 3, str(tmp_path)))):
        assert "rng: saved by 2 ranks, here 3" in text
        assert "per_rank_resized='keep'" in text
        assert len([line for line in lines if "stay as they were" in line]) == (rank == 0), "said once"


def test_an_entry_of_each_rank_is_never_taken_for_another_one(tmp_path: Path) -> None:
    """One tensor's bytes came back as another's, or the value was not saved at all."""
    with Checkpointer(tmp_path, per_rank=["rng", "a.b"]) as runs:
        saved = {"rng#rank0": torch.zeros(3), "rng": torch.ones(3), "rng#rank0#2": torch.full((3,), 2.0)}
        runs.save(1, saved)
        here = {name: torch.full((3,), 9.0) for name in saved}
        runs.load(here)
        assert digest(here) == digest(saved)
        with pytest.raises(UnsupportedValue, match=r"a\.b is the path of two entries"):
            runs.save(2, {"a.b": 1, "a": {"b": 2}})


def test_one_process_alone_is_one_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a script behaves alike however it is started."""
    with Checkpointer(tmp_path, per_rank=PER_RANK) as runs:
        runs.save(1, own_state(0))
        here = fresh_state(0)
        assert runs.load(here) == 1
        assert same(here, own_state(0))
        model = torch.nn.BatchNorm1d(3)
        runs.save(2, {"model": model, "w": torch.ones(2)})
    with Checkpointer(tmp_path, per_rank="model.running_*", per_rank_resized="keep") as runs:
        runs.save(3, {"model": model, "w": torch.ones(2)})
        tree = runs.read().tree
        assert [type(tree["model"][name]) for name in ("weight", "running_mean")] == [torch.Tensor, PerRank]
        assert runs.load({"model": torch.nn.BatchNorm1d(3), "w": torch.zeros(2)}) == 3
    with Checkpointer(tmp_path, per_rank_resized="keep") as runs:
        other = torch.nn.BatchNorm1d(3)
        other.running_mean = torch.full((3,), 7.0)
        resolved = _as_if_saved_by_two(runs, {"model": other, "w": torch.zeros(2)}, monkeypatch)
        assert resolved.missing == ("model.running_mean", "model.running_var")
        assert other.running_mean.tolist() == [7.0] * 3


def _as_if_saved_by_two(runs: Checkpointer, state: State, monkeypatch: pytest.MonkeyPatch) -> Any:
    def doubled(*what: Any, **how: Any) -> Any:
        found = read_commit(*what, **how)
        model = found.tree["model"]
        model.update({name: PerRank([*value, *value]) for name, value in model.items() if isinstance(value, PerRank)})
        return found

    monkeypatch.setattr("elastic_checkpoint.load.into_state.read_commit", doubled)
    return runs.load(state, step=3)


def ddp(rank: int, size: int, folder: str) -> tuple[list[str], list[set[float]], str, str]:
    """The README's recipe with a model that has BatchNorm, wide enough for its statistics to be spread over ranks."""
    lines: list[str] = []
    with ranks_of(folder, rank, size, name="ddp", log=lines.append, rank0=["losses"]) as (runs, _):
        torch.manual_seed(5)
        net = torch.nn.Sequential(torch.nn.BatchNorm1d(9000), torch.nn.Linear(9000, 2))
        model = torch.nn.parallel.DistributedDataParallel(net)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        state: State = {"model": model, "bare": net.state_dict(), "optimizer": optimizer, "losses": [rank], "step": 0}
        for step in (1, 2):
            x = torch.full((4, 9000), float(rank + step)) + torch.arange(4)[:, None]
            model(x).square().mean().backward()
            optimizer.step()
            state["step"] = step
            state["losses"].append(step + rank / 10)
            runs.save(step, state, blocking=bool(step % 2))
        runs.wait()
        saved = digest(net)
        norm = net[0]
        assert isinstance(norm, torch.nn.BatchNorm1d)
        here = [set(tensor.tolist()) for tensor in (norm.running_mean, norm.running_var) if tensor is not None]
        runs.load(state)
        dist.barrier()
        return lines, here, saved, f"{digest(net)} {state['losses']}"


def test_a_ddp_model_with_batchnorm_is_saved_as_rank_0_holds_it_and_that_is_said_once(tmp_path: Path) -> None:
    (lines, here_0, saved, loaded), (others, here_1, _, loaded_1) = returned(run_ranks(ddp, 2, str(tmp_path)))
    assert here_0[0].isdisjoint(here_1[0]), "they differ before they are loaded"
    assert loaded == loaded_1 == f"{saved} [0, 1.0, 2.0]"
    told = [line for line in lines if "running statistics" in line]
    assert len(told) == 1
    assert not [line for line in others if "running statistics" in line]


def _on_device(tensors: dict[str, torch.Tensor]) -> Any:
    return replicas._on_device([tensors[name] for name in sorted(tensors)])


@pytest.mark.parametrize("hashed", [replicas.digest, _on_device])
def test_every_bit_and_every_place_counts_in_the_hash_and_nothing_else(hashed: Callable[..., Any]) -> None:
    """The second one is made on a GPU where there is one, of integers, whose sums are the same on every device."""
    for dtype in (torch.float32, torch.bool, torch.bfloat16, torch.complex64, torch.float8_e4m3fn):
        state = {"a": torch.zeros(3, 5), "b": torch.ones(70), "c": torch.zeros(())}
        state = {name: tensor.to(dtype) for name, tensor in state.items()}
        first = hashed(state)
        assert first == hashed(dict(reversed(state.items())))
        assert first == hashed({name: tensor.clone() for name, tensor in state.items()})
        seen = [first]
        for name, index in [("a", 0), ("a", 14), ("b", 0), ("b", 69), ("c", 0)]:
            other = {name: tensor.clone() for name, tensor in state.items()}
            raw = other[name].flatten().view(torch.uint8)
            raw[index * other[name].element_size()] ^= 1
            other[name] = raw.view(dtype).view(state[name].shape)
            seen.append(hashed(other))
        assert len({str(one) for one in seen}) == len(seen)
    swapped = torch.arange(100.0)
    assert hashed({"a": swapped}) != hashed({"a": swapped.flip(0).contiguous()})
    wide = torch.rand(4, 3, 5, 5).contiguous(memory_format=torch.channels_last)
    assert hashed({"a": wide}) == hashed({"a": wide.clone()})
    assert hashed({"a": wide[:, 1:]}) == hashed({"a": wide[:, 1:].contiguous()})


def test_large_states_are_hashed_in_parts_by_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "_UNIT_BYTES", 1000)
    monkeypatch.setattr(replicas, "_WORTH_THREADS_BYTES", 1)
    monkeypatch.setattr(replicas.os, "sched_getaffinity", lambda pid: set(range(8)))
    state = {f"w{n}": torch.rand(n * 77) for n in range(1, 9)}
    first = replicas.digest(state)
    for name, tensor in state.items():
        for index in (0, len(tensor) - 1):
            before = tensor[index].item()
            tensor[index] = -1
            assert replicas.digest(state) != first, (name, index)
            tensor[index] = before
    assert replicas.digest(state) == first
