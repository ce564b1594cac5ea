"""Several ranks save and load one state together: every byte once, at any layout, and all of them or none."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from elastic_checkpoint import (
    Checkpointer,
    CheckpointError,
    NoCheckpoint,
    StateMismatch,
    StorageError,
    UnsupportedValue,
    digest,
)
from elastic_checkpoint.load.group import load as load_module
from elastic_checkpoint.load.group import ranges
from elastic_checkpoint.net import errors, rank_bytes, rank_channel
from elastic_checkpoint.storage import Scrubber
from tests.kit.ranks import Died, Raised, returned, run_ranks
from tests.storage.together import ODD_CHUNK_BYTES, build, fingerprint, ranks_of, train

LAYOUTS = [("plain", 0), ("plain", 2), ("fsdp", 1), ("fsdp", 3), ("fsdp", 4)]


def save(rank: int, size: int, folder: str, layout: str, alone: bool, chunk_bytes: int | None) -> tuple[str, int]:
    """Saves one step; returns what was saved, and how many bytes of it this rank wrote."""
    with ranks_of(folder, rank, 0 if alone else size, chunk_bytes=chunk_bytes, name="save") as (runs, storage):
        state = build(layout, seed=1)
        train(state)
        runs.save(7, state, meta={"by": rank})
        return fingerprint(state), storage.put_bytes


def load(rank: int, size: int, folder: str, layout: str, alone: bool) -> tuple[Any, ...]:
    """Loads into another state, trained or not; returns what it then is, and what was read of data objects."""
    with ranks_of(folder, rank, 0 if alone else size, name=f"load-{layout}-{size}-{alone}") as (runs, storage):
        state = build(layout, seed=2)
        if layout != "fsdp":
            train(state, 1)  # an optimizer with state; elsewhere it has none yet
        step = runs.load(state, step=np.int64(7))  # from an array of steps, say
        return step, state["epoch"], fingerprint(state), storage.got


@pytest.mark.nightly(sample=1)
@pytest.mark.parametrize(("layout", "size"), LAYOUTS)
def test_saved_at_any_layout_it_loads_at_any_other(layout: str, size: int, tmp_path: Path) -> None:
    """Hash chunks end in the middle of pieces and elements here, as they do in large objects."""
    saved = returned(run_ranks(save, max(size, 1), str(tmp_path), layout, not size, ODD_CHUNK_BYTES))
    expected = saved[0][0]
    for other, ranks in LAYOUTS:
        loaded = returned(run_ranks(load, max(ranks, 1), str(tmp_path), other, not ranks))
        for step, epoch, found, _ in loaded:
            assert (step, epoch, found) == (7, 1, expected), f"loaded as {other} on {ranks} ranks"
        if ranks and size:
            reads = Counter((key, start) for *_, got in loaded for key, start, _ in got)
            assert reads
            assert max(reads.values()) == 1, "a chunk is read by one rank"
            assert all(start % ODD_CHUNK_BYTES == 0 for _, start in reads)

    with Checkpointer(tmp_path / "run") as runs:
        assert all(one.ok for one in runs.verify())
        assert runs.read().meta == ({"by": 0, "world_size": size} if size else {"by": 0})
        assert digest(runs.read().tree["model"]) == _saved_alone(tmp_path, layout)


def _saved_alone(folder: Path, layout: str) -> str:
    """The digest of the same model saved by one process; trained by it, where that takes the same sums."""
    with Checkpointer(folder / "run") as runs:
        tree = runs.read().tree
    with Checkpointer(folder / "alone") as runs:
        state = build("plain", seed=3)
        state["model"].load_state_dict(tree["model"])
        runs.save(1, state)
        return digest(runs.read().tree["model"])


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = torch.nn.Linear(2, 2, bias=False)
        self.other = torch.nn.Linear(2, 2, bias=False)
        self.other.weight = self.one.weight


def tied(rank: int, size: int, folder: str) -> None:
    with ranks_of(folder, rank, size, name="tied") as (runs, _):
        model = Tied()
        fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
        runs.save(1, {"model": model})
        saved = runs.read().tree["model"]
        assert saved["one.weight"] is saved["other.weight"]
        with torch.no_grad():
            model.one.weight.zero_()
        runs.load({"model": model})
        found = model.one.weight
        assert isinstance(found, DTensor)
        assert torch.equal(found.full_tensor(), saved["one.weight"])


def test_tied_weights_are_one_tensor_also_where_a_rank_has_no_part_of_them(tmp_path: Path) -> None:
    """Their names must be the same on all ranks, and an empty part has no address to compare."""
    returned(run_ranks(tied, 3, str(tmp_path)))


def part(rank: int, size: int, folder: str) -> tuple[int, list[int]] | None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/part", rank=rank, world_size=size)
    dist.barrier()  # who leaves while others still connect to it makes one of them wait for ever
    group = dist.new_group([1, 2])
    if rank == 0:
        return None
    with Checkpointer(f"{folder}/run", group=group) as runs:
        runs.save(1, {"w": torch.arange(40_000)})
        here = {"w": torch.zeros(40_000, dtype=torch.int64)}
        return runs.load(here), here["w"][-2:].tolist()


def untied(rank: int, size: int, folder: str) -> None:
    with ranks_of(folder, rank, size, name="untied") as (runs, _):
        mesh = init_device_mesh("cpu", (size,))
        same = torch.arange(4.0)
        runs.save(1, {"a": same, "b": torch.tensor([0.0, 1, 2, 9]), "p": same, "w": torch.ones(2)})
        runs.save(2, {"a": same, "b": same.clone(), "p": same.clone(), "w": torch.ones(2)})
        part, w = distribute_tensor(torch.zeros(4), mesh, [Shard(0)]), torch.zeros(2)
        here = {"a": part, "b": part, "p": torch.zeros(4), "w": w}
        with pytest.raises(StateMismatch, match="a: shares memory with b here"):  # which differ on the last rank
            runs.load(here, step=1)
        assert not w.any(), "nothing is touched on any rank"
        assert not part.to_local().any()
        assert runs.load(here) == 2
        assert torch.equal(part.full_tensor(), same)


def test_two_values_for_one_part_of_a_tensor_are_loaded_on_no_rank(tmp_path: Path) -> None:
    returned(run_ranks(untied, 2, str(tmp_path)))


def spread(rank: int, size: int, folder: str) -> tuple[int, int]:
    """Bytes that this rank wrote, of a state with one tensor that is larger than all others together."""
    with ranks_of(folder, rank, size, name="spread") as (runs, storage):
        state = {"large": torch.rand(600_000), "small": [torch.rand(1000) for _ in range(50)], "one": torch.zeros(())}
        runs.save(1, state)
        return storage.put_bytes, 4 * 650_000


def test_replicated_tensors_are_written_once_half_by_each_of_two_ranks(tmp_path: Path) -> None:
    (one, whole), (other, _) = returned(run_ranks(spread, 2, str(tmp_path)))
    assert whole <= one + other < 1.1 * whole, "each byte once, and the objects' headers"
    assert abs(one - other) < 0.05 * whole


def test_each_rank_reads_only_what_it_needs(tmp_path: Path) -> None:
    returned(run_ranks(save, 4, str(tmp_path), "fsdp", False, None))
    whole = sum(path.stat().st_size for path in (tmp_path / "run" / "data").rglob("*.safetensors"))
    same = [got for *_, got in returned(run_ranks(load, 4, str(tmp_path), "fsdp", False))]
    assert sum(size for got in same for _, _, size in got) == whole, "each byte is read by one rank"
    replicated = [got for *_, got in returned(run_ranks(load, 2, str(tmp_path), "plain", False))]
    assert sum(size for got in replicated for _, _, size in got) == whole
    shares = [sum(size for _, _, size in got) for got in replicated]
    assert max(shares) < 0.7 * whole, "and the reading is spread"


def fall_back(rank: int, size: int, folder: str) -> tuple[int, str, str]:
    with ranks_of(folder, rank, size, name="fall") as (runs, _):
        state = build("fsdp", seed=1)
        train(state, 1)
        runs.save(1, state)
        first = fingerprint(state)
        train(state, 1)
        commit = runs.save(2, state)
        if rank == 0:  # the last object holds what the last rank alone wants
            victim = Path(folder, "run", commit.id.shard_key(commit.objects - 1))
            data = bytearray(victim.read_bytes())
            data[-1] ^= 1
            victim.chmod(0o600)
            victim.write_bytes(data)
        dist.barrier()
        with pytest.raises(CheckpointError, match="xxh3_128"):
            runs.load(state, step=2)
        return runs.load(state), fingerprint(state), first


def test_damage_that_one_rank_finds_makes_all_fall_back(tmp_path: Path) -> None:
    for step, found, first in returned(run_ranks(fall_back, 3, str(tmp_path))):
        assert (step, found) == (1, first)


def mismatch(rank: int, size: int, folder: str) -> None:
    with ranks_of(folder, rank, size, name="mismatch") as (runs, _):
        with pytest.raises(NoCheckpoint):
            runs.load({"w": torch.zeros(3)})
        runs.save(1, {"w": torch.ones(3)})
        w = torch.zeros(3)
        here = {"w": w, "more": 1} if rank == 1 else {"w": w}
        with pytest.raises(StateMismatch) as caught:
            runs.load(here)
        assert caught.value.missing == ["more"]
        assert not w.any(), "nothing is touched on any rank"
        assert runs.load({"w": torch.zeros(3)}) == 1


def test_a_state_that_fits_on_some_ranks_only_is_loaded_on_none(tmp_path: Path) -> None:
    returned(run_ranks(mismatch, 2, str(tmp_path)))


def cast(rank: int, size: int, folder: str) -> None:
    with ranks_of(folder, rank, size, name="cast") as (runs, _):
        mesh = init_device_mesh("cpu", (size,))
        values = torch.arange(6.0) / 3
        runs.save(1, {"w": values, "n": torch.tensor(4), "plain": values})
        runs.save(2, {"w": torch.tensor([1.0, 1, 1, 1, 1, 1e30]), "n": torch.tensor(5), "plain": values})

        def here(dtype: torch.dtype) -> dict[str, Any]:
            w = distribute_tensor(torch.zeros(6, dtype=dtype), mesh, [Shard(0)])
            return {"w": w, "n": torch.tensor(0), "plain": torch.zeros(6, dtype=dtype)}

        half, double = here(torch.float16), here(torch.float64)
        with pytest.raises(StateMismatch, match="w: saved float32 with 1 finite"):  # which lies on the last rank
            runs.load(half, cast=True)
        assert not half["w"].to_local().any()
        assert not half["n"], "nothing is touched on any rank"
        step = runs.load(half, step=1, cast={"*": torch.float16})
        assert set(step.cast) == {"w", "plain"}
        assert torch.equal(half["w"].full_tensor(), values.half())
        assert runs.load(double, cast=True) == 2
        assert (double["w"].full_tensor()[-1].item(), double["n"].item()) == (torch.tensor(1e30).item(), 5)


def test_each_rank_casts_its_part_and_none_does_if_a_value_of_one_does_not_fit(tmp_path: Path) -> None:
    returned(run_ranks(cast, 2, str(tmp_path)))


def refused(rank: int, size: int, folder: str) -> None:
    with ranks_of(folder, rank, size, name="refused") as (runs, _):
        runs.save(1, {"w": torch.ones(3)})
        with pytest.raises(UnsupportedValue, match="f "):
            runs.save(2, {"w": torch.ones(3), "f": print if rank == 1 else 1})
        with pytest.raises(CheckpointError, match="do not call the same"):
            runs.save(2 + rank, {"w": torch.ones(3)})
        with pytest.raises(CheckpointError, match="different tensors"):
            runs.save(2, {"w": torch.ones(3 + rank)})
        assert [commit.step for commit in runs.list()] == [1]
        assert runs.save(2, {"w": torch.ones(4)}).step == 2


def load_some(rank: int, size: int, folder: str) -> tuple[int, tuple[str, ...], tuple[str, ...], list[str]]:
    lines: list[str] = []
    with (
        ranks_of(folder, rank, size, name="some") as (saved, _),
        Checkpointer(f"{folder}/run", group="auto", log=lines.append) as runs,
    ):
        saved.save(3, {"w": torch.full((4,), 3.0), "old": torch.ones(2)})
        here = {"w": torch.zeros(4), "new": torch.zeros(rank + 1)}
        step = runs.load(here, strict=False)
        assert here["w"].tolist() == [3.0] * 4
        return step, step.missing, step.unexpected, [line for line in lines if "loaded but for" in line]


def test_names_that_only_one_side_has_are_returned_on_every_rank_and_logged_on_one(tmp_path: Path) -> None:
    found = returned(run_ranks(load_some, 2, str(tmp_path)))
    assert [one[:3] for one in found] == [(3, ("new",), ("old",))] * 2
    assert [len(one[3]) for one in found] == [1, 0]


def test_what_one_rank_cannot_save_all_ranks_refuse_and_the_next_save_works(tmp_path: Path) -> None:
    returned(run_ranks(refused, 2, str(tmp_path)))


def failing(rank: int, size: int, folder: str) -> None:
    def before_put(key: str) -> None:
        if rank == 1 and "s000000002" in key:
            raise StorageError("rank 1's disk is full", operation="put", key=key, attempts=1)

    with ranks_of(folder, rank, size, before_put=before_put, name="failing") as (runs, _):
        runs.save(1, {"w": torch.ones(30_000)})
        with pytest.raises(StorageError, match="disk is full") as caught:
            runs.save(2, {"w": torch.zeros(30_000)})
        assert caught.value.operation == "put"
        assert [commit.step for commit in runs.list()] == [1]


def test_a_rank_whose_storage_fails_makes_the_save_fail_on_all(tmp_path: Path) -> None:
    returned(run_ranks(failing, 2, str(tmp_path)))


def dying(rank: int, size: int, folder: str, victim: int) -> str:
    def before_put(key: str) -> None:
        if rank == victim and "s000000002" in key:
            os.kill(os.getpid(), signal.SIGKILL)

    with ranks_of(folder, rank, size, before_put=before_put, finish_s=600.0, name="dying") as (runs, _):
        runs.save(1, {"w": torch.ones(30_000)})
        with pytest.raises(CheckpointError) as caught:
            runs.save(2, {"w": torch.zeros(30_000)})
        os.write(1, b"")
        return str(caught.value)


@pytest.mark.parametrize(("victim", "told"), [(1, "rank 1 of 3"), (0, "rank 0 of 3 is gone")])
def test_a_rank_that_dies_in_a_save_means_no_commit_and_the_others_say_who(
    victim: int, told: str, tmp_path: Path
) -> None:
    answers = run_ranks(dying, 3, str(tmp_path), victim)
    for rank, answer in enumerate(answers):
        if rank == victim:
            assert answer == Died(-signal.SIGKILL)
        else:
            assert not isinstance(answer, Died | Raised), answer
            assert told in answer
    with Checkpointer(tmp_path / "run") as runs:
        assert [commit.step for commit in runs.list()] == [1]
        assert runs.read().tree["w"].eq(1).all()


def never(rank: int, size: int, folder: str, absent: int) -> str:
    rank_channel._JOIN_S = 3.0
    with ranks_of(folder, rank, size, finish_s=3.0, name=f"never-{absent}") as (runs, _):
        told = ""
        if rank != absent:
            with pytest.raises(CheckpointError) as caught:
                runs.save(1, {"w": torch.ones(3)})
            told = str(caught.value)
        dist.barrier()
        return told


@pytest.mark.parametrize("absent", [0, 2])
def test_a_rank_that_never_calls_the_first_save_is_named(absent: int, tmp_path: Path) -> None:
    """The others could only say that nobody was to be reached."""
    answers = returned(run_ranks(never, 3, str(tmp_path), absent))
    for rank, told in enumerate(answers):
        if rank != absent:
            assert f"rank {absent} of 3 did not come to save or load with the others; rank {rank} waited" in told
    assert Checkpointer(tmp_path / "run").list() == []


def late(rank: int, size: int, folder: str) -> str:
    with ranks_of(folder, rank, size, finish_s=4.0, name="late") as (runs, _):
        runs.save(0, {"w": torch.ones(30_000)})
        if rank == 1:
            dist.barrier()  # the others have given up by then
        with pytest.raises(CheckpointError) as caught:
            runs.save(1, {"w": torch.ones(30_000)})
        if rank != 1:
            dist.barrier()
        dist.barrier()
        assert runs.save(2, {"w": torch.ones(30_000)}).step == 2
        assert [commit.step for commit in runs.list()] == [2, 0]
        return str(caught.value)


def test_a_rank_that_comes_too_late_costs_one_save_and_learns_why(tmp_path: Path) -> None:
    answers = returned(run_ranks(late, 3, str(tmp_path)))
    assert all("rank 1 of 3 gave no sign" in answer for answer in answers)


class Stalls:
    """Holds up whoever asks for its state until `dist.barrier` lets it go."""

    def __init__(self, stalls: bool) -> None:
        self.stalls = stalls

    def state_dict(self) -> dict[str, int]:
        if self.stalls:
            dist.barrier()
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        pass


def given_up(rank: int, size: int, folder: str) -> list[str]:
    rank_channel._SLACK_S = 0.0
    with ranks_of(folder, rank, size, finish_s=4.0, name="given-up") as (runs, _):
        runs.save(0, {"x": Stalls(False)})
        told = []
        for step in (1, 2):
            with pytest.raises(CheckpointError) as caught:
                runs.save(step, {"x": Stalls(rank == 0 and step == 1)})
            told.append(str(caught.value))
            if rank == 1 and step == 1:
                dist.barrier()  # only now rank 0 comes
        return told


def test_a_rank_that_waited_in_vain_and_rank_0_know_at_once_that_they_parted(tmp_path: Path) -> None:
    """They are at different calls from then on: each later one would otherwise wait until its deadline, and fail."""
    of_0, of_1 = returned(run_ranks(given_up, 2, str(tmp_path)))
    assert all("rank 1 of 2 is gone" in text for text in of_0), of_0
    assert "rank 0 of 2 did not answer within 8 s" in of_1[0]
    assert "rank 0 of 2 is gone: it did not answer" in of_1[1]


def babbling(rank: int, size: int, folder: str, who: int, nonsense: dict[str, Any]) -> str:
    if rank == who:
        rank_channel.as_message = lambda said: nonsense
    with ranks_of(folder, rank, size, finish_s=600.0, name="babbling") as (runs, _):
        with pytest.raises(CheckpointError) as caught:
            runs.save(0, {"w": torch.ones(4)})
        return str(caught.value)


@pytest.mark.parametrize(
    ("who", "said", "refusal"),
    [
        (1, {"call": 1, "said": {}}, "no known word: None"),
        (1, {"say": "contribution", "call": 1, "what": "a save"}, "contribution: Object missing required field `said`"),
        (1, {"say": "received", "call": "1"}, "received: Expected `int`, got `str` - at `$.call`"),
        (0, {"say": "answer", "call": 1}, "answer: Object missing required field `answer`"),
        (
            0,
            {"say": "refused", "call": 1, "error": {"text": "no"}},
            "missing required field `type` - at `$.error`",
        ),
        (0, {"say": "hung_up"}, "hung_up: Object missing required field `why`"),
    ],
)
def test_a_rank_that_says_what_is_no_message_is_named_with_what_was_wrong(
    who: int, said: dict[str, Any], refusal: str, tmp_path: Path
) -> None:
    """A KeyError ended the thread that hears the ranks: all waited for their deadline, and learned nothing."""
    answers = returned(run_ranks(babbling, 2, str(tmp_path), who, said))
    assert f"rank {who} of 2 is gone" in answers[1 - who], answers
    assert refusal in answers[1 - who], answers


def dying_in_load(rank: int, size: int, folder: str) -> str:
    with ranks_of(folder, rank, size, finish_s=600.0, name="dying") as (runs, storage):
        runs.save(1, {"w": torch.ones(30_000)})
        if rank == 1:
            storage.before_get = lambda: os.kill(os.getpid(), signal.SIGKILL)
        here = {"w": torch.zeros(30_000)}
        with pytest.raises(CheckpointError) as caught:
            runs.load(here)
        assert not here["w"].any()
        return str(caught.value)


def test_a_rank_that_dies_in_a_load_leaves_the_others_untouched_and_named(tmp_path: Path) -> None:
    answers = run_ranks(dying_in_load, 3, str(tmp_path))
    assert answers[1] == Died(-signal.SIGKILL)
    for answer in (answers[0], answers[2]):
        assert not isinstance(answer, Died | Raised), answer
        assert "rank 1 of 3" in answer


class Fragile:
    """Raises as a script's own code does, while `fails`."""

    def __init__(self, fails: bool) -> None:
        self.fails = fails

    def state_dict(self) -> dict[str, int]:
        if self.fails:
            raise RuntimeError("of the script's own")
        return {"x": 1}

    def load_state_dict(self, state: dict[str, int]) -> None:
        assert state == {"x": 1}


def interrupted(rank: int, size: int, folder: str) -> list[str]:
    """What rank 1's storage, its state, and its user (Ctrl-C) raise. Every call comes back at once, and with a reason:
    the ranks wait ten minutes for one that is silent. finish_s says how long."""
    with ranks_of(folder, rank, size, finish_s=600.0, name="interrupted") as (runs, storage):
        state: dict[str, Any] = {"w": torch.ones(30_000), "fragile": Fragile(False)}
        runs.save(1, state)
        told = []

        def fails(error: BaseException) -> None:
            raise error

        def call(act: Callable[[], object], error: type[BaseException]) -> None:
            with pytest.raises(error if rank == 1 else CheckpointError) as caught:
                act()
            told.append(str(caught.value))

        for error in (ValueError("Bad Request: b/o/x"), KeyboardInterrupt("a user's")):
            storage.before_get = partial(fails, error) if rank == 1 else lambda: None
            call(lambda: runs.load(state), type(error))
        storage.before_get = lambda: None
        assert runs.load(state) == 1
        state["fragile"].state_dict = partial(fails, SystemExit("of the script's")) if rank == 1 else lambda: {"x": 1}
        call(lambda: runs.save(2, state), SystemExit)
        state["fragile"].state_dict = lambda: {"x": 1}
        assert runs.save(3, state).step == 3
        if rank == 1:
            runs._prepare = partial(fails, RuntimeError("before all"))  # type: ignore[method-assign]
        call(lambda: runs.load(state), RuntimeError)
        return told


def test_whatever_a_rank_raises_the_others_hear_at_once_with_its_name_and_its_reason(tmp_path: Path) -> None:
    of_0, _, of_2 = returned(run_ranks(interrupted, 3, str(tmp_path)))
    for told in (of_0, of_2):
        expected = ("ValueError", "KeyboardInterrupt", "SystemExit", "RuntimeError")
        for text, kind in zip(told, expected, strict=True):
            assert "rank 1 of 3 failed: " in text
            assert kind in text


def test_the_reason_that_others_hear_holds_no_secret() -> None:
    error = ValueError("400 for\nkey hunter22")
    told = errors.error_document(error, Scrubber("s3://bucket", {"secret": "hunter22"}))
    assert told.text == "ValueError: 400 for key ***"
    assert "hunter22" not in errors.error_document(error).text, "the secrets of this storage are not known"


def damaged_manifest(rank: int, size: int, folder: str) -> tuple[int, float]:
    with ranks_of(folder, rank, size, name="manifest") as (runs, _):
        w = torch.ones(8)
        runs.save(1, {"w": w})
        commit = runs.save(2, {"w": 2 * w})
        if rank == 0:
            victim = Path(folder, "run", commit.id.manifest_key)
            data = victim.read_bytes()
            victim.chmod(0o600)
            victim.write_bytes(data.replace(b"w", b"v", 1))
        if size > 1:
            dist.barrier()
        loaded = torch.zeros(8)
        return runs.load({"w": loaded}), float(loaded.sum())


@pytest.mark.parametrize("size", [1, 2])
def test_a_damaged_manifest_makes_all_fall_back(tmp_path: Path, size: int) -> None:
    assert returned(run_ranks(damaged_manifest, size, str(tmp_path))) == [(1, 8.0)] * size


def partly(rank: int, size: int, folder: str) -> tuple[list[tuple[int, int]], int]:
    """Bytes that this rank allocated and read, of a model alone and of all; and how often it read a manifest."""
    with ranks_of(folder, rank, size, chunk_bytes=1000, name="partly", shard_bytes=2**20) as (runs, storage):
        mesh = init_device_mesh("cpu", (size,))

        def part(value: float) -> DTensor:
            return distribute_tensor(torch.full((60, 100), float(value)), mesh, [Shard(0)])

        state = {"model": {f"p{n}": part(n) for n in range(3)}, "optimizer": {f"m{n}": part(-n) for n in range(6)}}
        runs.save(1, state)
        allocated: list[int] = []
        init = ranges.TensorBuffers.__init__

        def counted(self: ranges.TensorBuffers, *args: Any) -> None:
            init(self, *args)
            allocated.append(self.bytes)

        ranges.TensorBuffers.__init__ = counted  # type: ignore[method-assign, assignment]
        manifests: list[int] = []
        read = load_module.read_manifest
        load_module.read_manifest = lambda *args: manifests.append(1) or read(*args)  # type: ignore[func-returns-value]
        found = []
        for here in ({"model": state["model"]}, state):
            for tensors in here.values():
                for tensor in tensors.values():
                    tensor.to_local().fill_(99.0)
            storage.got.clear()
            runs.load(here, strict=False)
            found.append((allocated[-1], sum(size for *_, size in storage.got)))
            assert all(t.to_local().eq(n).all() for n, t in enumerate(here["model"].values()))
        return found, len(manifests)


def test_a_rank_allocates_and_reads_what_it_loads_and_one_rank_reads_the_manifest(tmp_path: Path) -> None:
    """A model without its optimizer, for evaluation, is a third of what was saved."""
    answers = returned(run_ranks(partly, 3, str(tmp_path)))
    local = 20 * 100 * 4
    for (of_model, of_all), _ in answers:
        assert of_model[0] == 3 * local
        assert 3 * local <= of_model[1] <= 3 * local + 2 * 1000, "whole hash chunks are read"
        assert of_all[0] == 9 * local
    assert [manifests for _, manifests in answers] == [2, 0, 0]


def passed_on(rank: int, size: int, folder: str) -> tuple[int, int]:
    """Bytes that this rank received, where ranks 0 and 1 want one tensor and rank 2 another; and read."""
    with ranks_of(folder, rank, size, chunk_bytes=1000, name="passed", shard_bytes=2**20) as (runs, storage):
        state = {"a": torch.arange(50_000.0), "b": torch.arange(50_000.0) + 1}
        runs.save(1, state)
        received: list[int] = []
        receive = rank_bytes.RankBytes.receive

        def counted(self: rank_bytes.RankBytes, data: torch.Tensor, source: int, tag: int) -> Any:
            received.append(data.nbytes)
            return receive(self, data, source, tag)

        rank_bytes.RankBytes.receive = counted  # type: ignore[method-assign]
        name = "b" if rank == 2 else "a"
        here = {name: torch.zeros(50_000)}
        storage.got.clear()
        runs.load(here, strict=False)
        assert here[name].equal(state[name])
        return sum(received), sum(size for *_, size in storage.got)


def test_what_several_ranks_want_is_read_once_and_sent_to_those_alone(tmp_path: Path) -> None:
    (got_0, read_0), (got_1, read_1), (got_2, read_2) = returned(run_ranks(passed_on, 3, str(tmp_path)))
    whole = 50_000 * 4
    spare = 20 * 1000  # chunks that hold an end of a piece, and so something of the other tensor
    assert whole - spare <= read_0 + read_1 <= whole + spare
    assert abs(got_0 - read_1) <= spare
    assert abs(got_1 - read_0) <= spare
    assert got_2 <= spare
    assert whole - spare <= read_2 <= whole + spare


def of_another_secret(rank: int, size: int, folder: str) -> str:
    os.environ["ELASTIC_SECRET"] = f"of the run of rank {rank}, and random"
    with (
        ranks_of(folder, rank, size, finish_s=2.0, name="secrets") as (runs, _),
        pytest.raises(CheckpointError) as caught,
    ):
        runs.save(0, {"w": torch.ones(3)})
    return str(caught.value)


def test_ranks_that_have_different_secrets_do_not_save_together_and_each_says_why(tmp_path: Path) -> None:
    """Under torchrun each node has its own environment."""
    for answer in returned(run_ranks(of_another_secret, 2, str(tmp_path))):
        assert "it has another ELASTIC_SECRET" in answer, answer
        assert "give all nodes of the run the same ELASTIC_SECRET" in answer
        assert "and random" not in answer
