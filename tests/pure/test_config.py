"""What cannot work is refused before anything starts, by an error that says what to do instead."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset, TensorDataset

import elastic
from elastic.config.argument_groups import GROUPS, OF_RUN, arguments_of
from elastic.errors import ConfigError
from elastic.membership import environment
from elastic.membership.environment import Launch
from tests.kit.arguments import grouped

TORCHRUN = {
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node-a",
    "MASTER_PORT": "29500",
}


def arguments(**changes: Any) -> dict[str, Any]:
    """A Run's arguments that work, but for the changes."""
    model = changes.get("model", nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1) if isinstance(model, nn.Module) else None
    return {
        "model": model,
        "optimizer": optimizer,
        "dataset": TensorDataset(torch.zeros(40, 3)),
        "batch_size": 12,
        "virtual_workers": 6,
        "epochs": 1,
    } | changes


def refused(url: Path, match: str, **changes: Any) -> None:
    with pytest.raises(ConfigError, match=match):
        elastic.Run(url, **grouped(arguments(**changes)))
    assert not url.exists(), "a refused run wrote something"


@pytest.mark.parametrize(
    ("url", "match"),
    [
        ("", r"the URL cannot be opened\n  found     it is empty"),
        ("nosuch://x", r"nosuch://x cannot be opened\n  found     nothing here opens nosuch://"),
        ("nul\0", "holds the character of number 0"),
        (b"bytes", "it is of type bytes"),
        (3, "it is of type int"),
    ],
)
def test_a_url_at_which_no_storage_can_be_opened_is_refused_as_a_checkpointer_refuses_it(
    url: Any, match: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty one was the current folder."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=match):
        elastic.Run(url, **arguments())
    assert list(tmp_path.iterdir()) == []


class Endless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(40))

    def __len__(self) -> int:
        return 40


class Unknown:
    def __getitem__(self, index: int) -> int:
        return index


class Unnumbered:
    def __len__(self) -> int:
        return 40


@pytest.mark.parametrize(
    ("match", "changes"),
    [
        (r"neither epochs nor steps is given(.|\n)*pass epochs=20", {"epochs": None}),
        (r"Unknown has no length(.|\n)*__len__ and __getitem__", {"dataset": Unknown()}),
        (r"Unnumbered has no length or no dataset\[i\]", {"dataset": Unnumbered()}),
        (r"Endless has no length or no dataset\[i\](.|\n)*wrap an iterable", {"dataset": Endless()}),
        (r"dataset_length = 0", {"dataset": []}),
        (r"batch_size = 5 gives 6 virtual workers(.|\n)*batch_size >= 6", {"batch_size": 5}),
        (r"batch_size = 12.0 is a float", {"batch_size": 12.0}),
        (r"virtual_workers = 0; expected 1 or more", {"virtual_workers": 0}),
        (r"steps = -1; expected 1 or more", {"steps": -1}),
        (r"elastic.Data: micro_batch_size = 0", {"micro_batch_size": 0}),
        (r"elastic.Saving: keep_every=0; expected a number of steps(.|\n)*or None", {"keep_every": 0}),
        (r"keep_every='10min'; expected a number of steps", {"keep_every": "10min"}),
        (r"elastic.Saving: failures_max=0; expected after how many(.|\n)*or None", {"failures_max": 0}),
        (r"elastic.Saving: failures_max=True", {"failures_max": True}),
        (r"seed = True is a bool", {"seed": True}),
        (r"seed = -1 is outside", {"seed": -1}),
        (r"elastic.Data: last_batch = 'round'; expected", {"last_batch": "round"}),
        (r'"drop" leaves nothing: 40 examples', {"last_batch": "drop", "batch_size": 41}),
        (r"elastic.Compute: mode='quick'; expected 'exact' or 'fast'", {"mode": "quick"}),
        (r"threads=0; expected the number", {"threads": 0}),
        (r"save_every='hourly'; expected a number of steps, a time such as '10min'", {"save_every": "hourly"}),
        (r"save_every=0; expected", {"save_every": 0}),
        (r"save_every=\[\] names nothing", {"save_every": []}),
        (r"names two intervals of one kind", {"save_every": ["auto", "10min"]}),
        (r"names two intervals of one kind", {"save_every": [10, 20]}),
        (r"save_every='02:30'; expected(.|\n)*'02:30 UTC'", {"save_every": "02:30"}),
        (r"save_every='25:30 UTC': hour must be", {"save_every": ["auto", "25:30 UTC"]}),
        (r"save_every='02:30 Mars/Base': (.|\n)*'02:30 UTC'", {"save_every": "02:30 Mars/Base"}),
        (r"save_every=True; expected", {"save_every": True}),
        (r"Compute\(device=meta\); gloo on CPU and NCCL on CUDA", {"device": "meta"}),
        (r"extra=\{'ema': Linear|extra=\{'ema': list\} has no state_dict", {"extra": {"ema": []}}),
        (r"model=list; expected a torch.nn", {"model": [], "optimizer": None}),
        (r"model=\{\} is empty", {"model": {}, "optimizer": None}),
        (r"optimizer=NoneType; expected a torch.optim", {"optimizer": None}),
    ],
    ids=lambda value: None if isinstance(value, dict) else value[:30],
)
def test_an_argument_that_cannot_work_is_refused_with_advice(
    tmp_path: Path, match: str, changes: dict[str, Any]
) -> None:
    refused(tmp_path / "run", match, **changes)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_that_is_not_there_is_refused(tmp_path: Path) -> None:
    refused(
        tmp_path / "run",
        r"device=cuda, and torch .* sees no GPU here; use compute=Compute\(device='cpu'\)",
        device="cuda",
    )


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"batchsize": 3}, r"Run has no argument batchsize\n  next  batch_size="),
        ({"keep": 5}, r"keep is given as saving=Saving\(keep=\.\.\.\)"),
        ({"save_failures_max": 5}, r"next  saving=Saving\(failures_max=\.\.\.\)"),
        ({"clip_grad_nrom": 1.0}, r"next  update=Update\(clip_grad_norm=\.\.\.\)"),
        ({"update": print}, r"update=builtin_function_or_method; expected an elastic.Update, which takes .*apply="),
    ],
)
def test_a_name_that_run_does_not_know_is_told_its_place(given: dict[str, Any], match: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=match):
        elastic.Run(tmp_path / "run", **arguments(**given))


@pytest.mark.parametrize(
    ("group", "given", "match"),
    [
        (elastic.Saving, {"on_bad": "skip"}, r"^on_bad is given as update=Update\(on_bad=\.\.\.\)$"),
        (elastic.Data, {"cross_check": 0.1}, r"^cross_check is given as checks=Checks\(cross_check=\.\.\.\)$"),
        (elastic.Saving, {"save_every": 5}, r"^save_every is given as Run\(save_every=\.\.\.\)$"),
        (elastic.Saving, {"keeep": 3}, r"^elastic\.Saving has no argument keeep\n  next  keep=$"),
        (elastic.Checks, {"treads": 1}, r"^elastic\.Checks has no argument treads\n  next  compute=Compute\(threads="),
        (elastic.Checks, {"qqq": 1}, r"^elastic\.Checks has no argument qqq\n  next  one of cross_check, accept$"),
    ],
)
def test_a_name_that_a_group_does_not_know_is_told_its_place(group: Any, given: dict[str, Any], match: str) -> None:
    """Python's own TypeError named the class alone."""
    with pytest.raises(ConfigError, match=match):
        group(**given)


def test_each_argument_stands_in_one_place() -> None:
    """Else `Run(keep=5)` would be told one of two places."""
    own = [field.name for group in GROUPS.values() for field in fields(group)] + arguments_of(elastic.Run)
    assert len(own) == len(set(own))
    assert sorted([*OF_RUN, *GROUPS]) == sorted(arguments_of(elastic.Run))


@pytest.mark.parametrize(
    ("model", "match"),
    [
        (nn.Sequential(nn.Linear(3, 2), nn.SyncBatchNorm(2)), r"model\.1 is a SyncBatchNorm(.|\n)*use BatchNorm"),
        (nn.DataParallel(nn.Linear(3, 2)), r"model is a DataParallel(.|\n)*hand over the plain model"),
        (nn.Embedding(5, 2, sparse=True), r"model gives sparse gradients(.|\n)*sparse=False"),
        (nn.EmbeddingBag(5, 2, mode="sum", sparse=True), r"model gives sparse gradients"),
        (nn.LazyLinear(2), r"model\.weight is not initialised yet; run one forward pass"),
        (nn.Linear(3, 2, dtype=torch.complex64), r"model\.weight is torch.complex64; use torch.view_as_real"),
    ],
    ids=["sync-batchnorm", "data-parallel", "sparse", "sparse-bag", "lazy", "complex"],
)
def test_a_model_that_a_step_of_shares_cannot_train_is_refused(tmp_path: Path, model: nn.Module, match: str) -> None:
    plain = torch.optim.SGD(nn.Linear(3, 2).parameters(), lr=0.1)
    refused(tmp_path / "run", match, model=model, optimizer=plain)


def test_a_model_in_ddp_is_refused(tmp_path: Path) -> None:
    """A real DistributedDataParallel, of one process."""
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(nn.Linear(3, 2))
        refused(tmp_path / "run", r"model is a DistributedDataParallel(.|\n)*hand over the plain model", model=model)
    finally:
        torch.distributed.destroy_process_group()


def test_optimizers_must_hold_the_model_s_parameters_each_once(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    foreign = torch.optim.SGD(nn.Linear(3, 2).parameters(), lr=0.1)
    one, two = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))
    lbfgs = torch.optim.LBFGS(model.parameters())

    refused(tmp_path / "run", r"holds a parameter of shape \(2, 3\) that is not one of the model's", optimizer=foreign)
    refused(
        tmp_path / "run",
        r"model\.weight is in optimizers 'one' and 'two'(.|\n)*update it twice",
        model=model,
        optimizer={"one": one, "two": two},
    )
    refused(tmp_path / "run", r"LBFGS evaluates the loss several times", model=model, optimizer=lbfgs)


def test_more_workers_than_shares_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = Launch(rank=0, world_size=8, local_world_size=8, master_addr="127.0.0.1", master_port=1)
    monkeypatch.setattr(environment, "read", lambda: launch)

    with pytest.raises(ConfigError, match=r"8 workers cannot share 6 virtual workers: 2 would(.|\n)*at most 6 workers"):
        elastic.Run(tmp_path / "run", **arguments())
    with pytest.raises(ConfigError, match="lives in one process's memory and several share the run") as refused:
        elastic.Run("memory://me:secret@host/run", **arguments(virtual_workers=8))
    assert "secret" not in str(refused.value)


def test_half_of_a_launch_is_an_error_here_and_not_a_hang_later() -> None:
    with pytest.raises(ConfigError, match=r"RANK=3 WORLD_SIZE=None, but (.|\n)*unset RANK and WORLD_SIZE"):
        environment.read({"RANK": "3"})
    without_port = {name: value for name, value in TORCHRUN.items() if name != "MASTER_PORT"}
    with pytest.raises(ConfigError, match="MASTER_PORT is missing"):
        environment.read(without_port)


def test_a_launch_is_read_from_what_torchrun_sets() -> None:
    agent = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "job-7", "TORCHELASTIC_RESTART_COUNT": "2"}
    expected = Launch(
        rank=3,
        local_rank=1,
        world_size=4,
        local_world_size=2,
        launcher="torchrun",
        master_addr="node-a",
        master_port=29500,
    )

    assert environment.read({}) == Launch()
    assert environment.read(TORCHRUN) == expected
    full = environment.read(TORCHRUN | agent)
    assert (full.agent_hosts_store, full.job, full.restart, full.one_node) == (True, "job-7", 2, False)
    assert environment.read(TORCHRUN | {"TORCHELASTIC_RUN_ID": "none"}).job is None


def test_a_worker_of_a_replica_of_several_is_told_its_name_and_place() -> None:
    of_agent = {"ELASTIC_CHANNEL": "7", "LOCAL_RANK": "5", "LOCAL_WORLD_SIZE": "8"}
    alone = environment.read(of_agent)
    assert (alone.replica_size, alone.replica, alone.replica_rank) == (1, "", 0)
    one = environment.read(of_agent | {"ELASTIC_REPLICA": "4:host-a1b2c3", "RANK": "1", "WORLD_SIZE": "4"})
    assert (one.replica_size, one.replica, one.replica_rank) == (4, "host-a1b2c3", 1)
    assert (one.local_rank, one.rank, one.world_size) == (5, 0, 1), "ranks of the run come from views"


def test_a_worker_whose_rank_is_hidden_from_a_library_has_no_place_meanwhile() -> None:
    of_agent = {"ELASTIC_CHANNEL": "7", "LOCAL_RANK": "1", "ELASTIC_WORLD": "RANK,WORLD_SIZE"}
    assert not environment.read(of_agent).placed
    placed = environment.read(of_agent | {"RANK": "3", "WORLD_SIZE": "4"})
    assert (placed.placed, placed.rank, placed.world_size) == (True, 3, 4)


def test_credentials_are_in_no_repr(tmp_path: Path) -> None:
    """Tools that report an exception show what the variables of its frames hold."""
    saving = elastic.Saving(storage_options={"token": "s3cret"})
    run = elastic.Run(tmp_path / "run", saving=saving, **arguments())
    assert "s3cret" not in repr([saving, run._config, vars(run)])
