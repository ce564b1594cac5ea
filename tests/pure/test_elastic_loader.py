"""A loader for loops of one's own: the same batches at every number of ranks, and a state of what was trained on."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from elastic import ConfigError, ElasticLoader, IdentityMismatch
from elastic.data.data_plan import LastBatch


class Rows(Dataset[int]):
    """Example i is i."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return index


def step() -> None:
    """An update, by an optimizer of torch's."""
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.0).step()


def trained(loaders: list[ElasticLoader], epochs: int, most: int | None = None) -> list[tuple[int, ...]]:
    """The examples of each step, of all ranks that count, until the epochs are over or so many steps are done."""
    steps: list[tuple[int, ...]] = []
    while loaders[0].epoch < epochs:
        for parts in zip(*loaders, strict=True):
            assert sum(loader.weight for loader in loaders) == pytest.approx(len(loaders))
            counted = [part for part, loader in zip(parts, loaders, strict=True) if loader.weight > 0]
            steps.append(tuple(i for part in counted for i in part.tolist()))
            step()
            if len(steps) == most:
                return steps
    return steps


def ranks(world_size: int, length: int, batch_size: int, **options: Any) -> list[ElasticLoader]:
    return [
        ElasticLoader(Rows(length), batch_size, rank=rank, world_size=world_size, **options)
        for rank in range(world_size)
    ]


@settings(max_examples=40, deadline=None)
@given(
    length=st.integers(8, 60),
    batch_size=st.integers(1, 8),
    worlds=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 7)), min_size=1, max_size=4),
    last_batch=st.sampled_from(["short", "drop", "carry"]),
    seed=st.integers(0, 2**63 - 1),
)
def test_restarts_with_other_ranks_lose_and_repeat_nothing(
    length: int, batch_size: int, worlds: list[tuple[int, int]], last_batch: LastBatch, seed: int
) -> None:
    """Whatever divides whatever, more ranks than examples included: the steps are those of one undisturbed process."""
    options: dict[str, Any] = {"seed": seed, "last_batch": last_batch}
    undisturbed = trained(ranks(1, length, batch_size, **options), epochs=2)
    state, steps = None, []
    for world_size, most in [*worlds, (3, None)]:
        loaders = ranks(world_size, length, batch_size, **options)
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
        steps += trained(loaders, 2, most)
        states = [json.loads(json.dumps(loader.state_dict())) for loader in loaders]
        assert states == states[:1] * world_size
        state = states[0]

    assert steps == undisturbed
    if last_batch == "short":
        assert Counter(i for step in steps for i in step) == Counter([*range(length)] * 2)
    else:
        assert {len(step) for step in steps} == {batch_size}


def test_the_weight_makes_the_mean_of_the_ranks_means_the_batch_s() -> None:
    """DDP adds the ranks' gradients and divides by their number, also where their parts differ."""
    for world_size in (1, 3, 4, 12):
        loaders = ranks(world_size, 50, 10)
        for parts in zip(*loaders, strict=True):
            means = [part.double().mean() * loader.weight for part, loader in zip(parts, loaders, strict=True)]
            own = [part for part, loader in zip(parts, loaders, strict=True) if loader.weight > 0]
            assert sum(means) / world_size == pytest.approx(torch.cat(own).double().mean().item())
            assert len(torch.cat(own)) == 10


def test_a_rank_without_a_part_gets_one_that_weighs_nothing() -> None:
    """It must go through backward, or the others wait for it; and rank 0, whose buffers DDP takes, has a part."""
    loaders = ranks(5, 13, 10)  # the second batch has three
    for loader in loaders:
        iterator = iter(loader)
        next(iterator)
        assert len(next(iterator)) == 1
    assert [loader.weight for loader in loaders] == pytest.approx([5 / 3, 5 / 3, 0, 5 / 3, 0])


def one_ahead(loader: ElasticLoader) -> Iterator[Any]:
    """As accelerate's DataLoaderShard, or a prefetcher to a GPU, does it."""
    iterator = iter(loader)
    here = next(iterator, None)
    while here is not None:
        following = next(iterator, None)
        yield here
        here = following


def test_a_loop_that_asks_for_one_batch_more_says_so() -> None:
    """At the last batch, too, where there is nothing to ask for."""
    loader = ElasticLoader(Rows(22), 4, rank=0, world_size=3, read_ahead=True)
    plain = ElasticLoader(Rows(22), 4, rank=0, world_size=3)
    for count, (ahead, batch) in enumerate(zip(one_ahead(loader), plain, strict=True)):
        assert torch.equal(ahead, batch)
        assert loader.weight == plain.weight
        assert loader.state_dict()["step"] == count
        step()
        assert loader.state_dict()["step"] == count + 1
    assert (loader.step, loader.epoch) == (6, 1)


def test_accumulated_batches_count_with_their_update() -> None:
    """Gradients that no update has used are lost with the process; so are several optimizers' steps one."""
    loader = ElasticLoader(Rows(40), 4)
    found = []
    for count, _ in enumerate(loader, 1):
        if count % 3 == 0:
            step()
            step()
        found.append(loader.step)
    assert found == [0, 0, 3, 3, 3, 6, 6, 6, 9, 9]
    assert loader.epoch == 1  # the loop has gone on; what it left untrained is in the state
    assert loader.state_dict()["step"] == 9


def test_without_an_optimizer_the_loop_says_what_is_trained() -> None:
    loader = ElasticLoader(Rows(40), 4)
    for count, _ in enumerate(loader, 1):
        loader.trained()
        assert loader.state_dict()["step"] == count
    silent = ElasticLoader(Rows(40), 4)
    next(batches := iter(silent))
    silent.state_dict()  # before the first update
    next(batches)
    with pytest.warns(UserWarning, match=r"loader\.trained\(\)"):
        assert silent.state_dict()["step"] == 0


def test_an_iteration_goes_on_where_the_last_one_broke_off() -> None:
    """A look at the first batch takes nothing away; what was trained on does not come again."""
    loader = ElasticLoader(Rows(40), 4)
    first = next(iter(loader))
    assert torch.equal(first, next(iter(loader)))
    rest = []
    for batch in loader:
        step()
        rest += batch.tolist()
        if len(rest) == 12:
            break
    for batch in loader:
        step()
        rest += batch.tolist()
    assert sorted(rest) == list(range(40))
    assert [loader.epoch, len(loader)] == [1, 10]
    assert sorted(i for batch in loader for i in batch.tolist()) == list(range(40))


STATE = ElasticLoader(Rows(40), 4).state_dict()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"dataset_length": 41}, "dataset_length  41 in the state, 40 here"),
        ({"batch_size": 8}, "batch_size  8 in the state, 4 here"),
        ({"seed": 1}, "seed  1 in the state, 0 here"),
        ({"seed": False}, "seed  False in the state, 0 here"),
        ({"last_batch": "drop"}, "last_batch  'drop' in the state, 'short' here"),
    ],
)
def test_a_state_of_other_batches_is_refused_by_name(changed: dict[str, Any], said: str) -> None:
    loader = ElasticLoader(Rows(40), 4)
    with pytest.raises(IdentityMismatch, match=said) as caught:
        loader.load_state_dict({**STATE, "step": 3, **changed})
    assert list(caught.value.fields) == list(changed)
    assert loader.step == 0


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (None, "that is a NoneType; expected a dict"),
        ([], "that is a list"),
        ({}, "a loader's state of nothing; expected 'batch_size'"),
        ({**STATE, "more": 1}, "expected"),
        ({1: 2, "a": b"x"}, "a loader's state of '1', 'a'"),
        ({**STATE, "version": 2}, "version 2; expected 1"),
        ({**STATE, "version": "9" * 1000}, "version '999"),
        *(
            ({**STATE, "step": wrong}, "expected an integer from 0")
            for wrong in (-1, 2**60, 3.0, True, "3", None, float("nan"), [3], torch.tensor(3))
        ),
    ],
)
def test_what_is_no_state_is_refused(state: Any, said: str) -> None:
    """It was read from a file, in which anything may be."""
    loader = ElasticLoader(Rows(40), 4)
    with pytest.raises(ConfigError, match=said) as caught:
        loader.load_state_dict(state)
    assert len(str(caught.value)) < 1000
    assert (loader.step, loader.epoch) == (0, 0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"shuffle": True}, "shuffle = True: an ElasticLoader takes none"),
        ({"sampler": [1]}, "deals the examples out"),
        ({"in_order": False}, "would lose some on a resume"),
        ({"batch_sampler": [[1]]}, "give batch_size="),
        ({"drop_last": True}, 'last_batch="drop"'),
        ({"rank": 1}, "rank = 1 and world_size = None"),
        ({"rank": 2, "world_size": 2}, "0 <= rank < world_size"),
        ({"rank": 0, "world_size": True}, "world_size = True"),
        ({"batch_size": 0}, "batch_size = 0"),
        ({"timeout": 5}, "timeout = 5 without num_workers"),
        ({"seed": -1}, "seed = -1"),
        ({"last_batch": "pad"}, "last_batch = 'pad'"),
        ({"last_batch": "carry", "batch_size": 41}, "some epochs would have no batch of their own"),
    ],
)
def test_what_cannot_work_is_refused_at_once(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ElasticLoader(**{"dataset": Rows(40), "batch_size": 4, **arguments})


def test_a_stream_is_refused() -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(3))

    with pytest.raises(ConfigError, match=r"a Stream; expected one with dataset\[i\]"):
        ElasticLoader(Stream(), 1)


def test_the_launcher_s_ranks_are_read_anew_by_each_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loader is often made before the process group is, and Lightning starts its processes after that."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("ELASTIC_CHANNEL", raising=False)
    loader = ElasticLoader(Rows(40), 4)
    assert len(next(iter(loader))) == 4
    for name, value in zip(names, ("1", "2", "1", "2", "localhost", "29500"), strict=True):
        monkeypatch.setenv(name, value)
    assert len(next(iter(loader))) == 2
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda: 4)
    assert len(next(iter(loader))) == 1
    monkeypatch.undo()
    monkeypatch.setenv("ELASTIC_CHANNEL", "3")
    with pytest.raises(ConfigError, match="a worker of `elastic run` has no rank of its own"):
        iter(loader)


def test_trainers_leave_it_alone_and_cannot_skip_through_it() -> None:
    """accelerate and Lightning shard what is a DataLoader; accelerate skips by iterating over a sampler."""
    loader = ElasticLoader(Rows(40), 4)
    loader.set_epoch(7)
    loader.sampler.set_epoch(7)
    assert loader.epoch == 0
    assert DataLoader not in ElasticLoader.__mro__
    for sampler in (loader.sampler, loader.batch_sampler):
        with pytest.raises(ConfigError, match="ignore_data_skip"):
            iter(DataLoader(Rows(40), batch_sampler=sampler))
    with pytest.raises(AttributeError, match="'ElasticLoader' object has no attribute 'nothing'"):
        loader.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_a_data_set_with_a_state_of_its_own_is_refused_and_the_advice_works() -> None:
    """torchdata would carry it. Each rank and each loader process has one of its own, and there may be others soon."""

    class Levelled(Rows):
        level = 1

        def __getitem__(self, index: int) -> int:
            return index * self.level

        def state_dict(self) -> dict[str, Any]:
            return {"level": self.level}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.level = state["level"]

    data = Levelled(12)
    with pytest.raises(ConfigError, match=r"a Levelled, has a state_dict of its own(.|\n)*  next   .*Subset\(data"):
        ElasticLoader(data, 4)
    loader = ElasticLoader(Subset(data, range(len(data))), 4)
    data.level = 3
    assert sorted(i for batch in loader for i in batch.tolist()) == list(range(0, 36, 3))
