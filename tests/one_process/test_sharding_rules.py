"""Which sharded models a run carries: others are refused by name as it is constructed. k is no part of the identity."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, distribute_module
from torch.utils.data import TensorDataset

import elastic
from elastic.config.check_sharding import check_sharding
from elastic.errors import ConfigError, IdentityMismatch, StepError
from elastic.events.reading import read_events
from elastic.state.applied import mark
from elastic.state.since_boundary import SinceBoundary
from elastic_checkpoint import digest
from tests.kit.arguments import grouped


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.layer(x))  # type: ignore[no-any-return]


def network() -> nn.Sequential:
    return nn.Sequential(Block(), Block(), nn.Linear(4, 2))


@pytest.fixture(scope="module")
def mesh() -> Iterator[DeviceMesh]:
    assert not dist.is_initialized()
    yield elastic.device_mesh("cpu")
    dist.destroy_process_group()


def sharded(mesh: DeviceMesh, model: nn.Sequential | None = None, **options: Any) -> nn.Sequential:
    model = model or network()
    for block in model:
        if isinstance(block, Block):
            fully_shard(block, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    return model


def made(url: Path, model: nn.Module, optimizer: Any = None, **options: Any) -> elastic.Run:
    return elastic.Run(
        url,
        model=model,
        optimizer=optimizer or torch.optim.AdamW(model.parameters(), foreach=True),
        dataset=TensorDataset(torch.zeros(24, 4)),
        batch_size=12,
        virtual_workers=6,
        **grouped({"epochs": 1} | options),
    )


def refused(url: Path, found: str, model: nn.Module, optimizer: Any = None, **options: Any) -> None:
    """The first line names it, and the others say in which state that leaves the run, and what to do instead."""
    with pytest.raises(ConfigError) as raised:
        made(url, model, optimizer, **options)
    first, *others = str(raised.value).splitlines()
    assert re.search(found, first), first
    assert [line for line in others if line.startswith("  next ")], raised.value
    assert not url.exists(), "a refused run wrote something"


def test_a_model_that_is_sharded_over_the_replica_is_carried(mesh: DeviceMesh, tmp_path: Path) -> None:
    run = made(tmp_path / "run", sharded(mesh))
    sharding = run._config.sharding
    assert sharding is not None
    assert (sharding.size, sharding.place, len(sharding.units)) == (1, 0, 3)
    held = [len(unit.parameters) for unit in sharding.units]
    assert sorted(held) == [2, 4, 4]
    assert made(tmp_path / "plain", network())._config.sharding is None


Options = dict[str, Any]


@pytest.mark.parametrize(
    ("found", "options"),
    [
        (r"update=Update\(rebuild=\.\.\.\) does not go", {"rebuild": lambda *_: None}),
        (r"update=Update\(scaler=\.\.\.\) does not go", {"scaler": torch.amp.GradScaler("cpu")}),
        (r'data=Data\(on_bad_example="skip"\) does not go', {"on_bad_example": "skip"}),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_does_not_go_with_a_sharded_model_is_named(
    mesh: DeviceMesh, tmp_path: Path, found: str, options: Options
) -> None:
    refused(tmp_path / "run", found, sharded(mesh), **options)


def hook(model: nn.Module) -> str:
    name, parameter = next(iter(model.named_parameters()))
    parameter.register_hook(lambda gradient: gradient)  # type: ignore[no-untyped-call]
    return name


def hook_after(model: nn.Module) -> str:
    name, parameter = list(model.named_parameters())[-1]
    parameter.register_post_accumulate_grad_hook(lambda _: None)  # type: ignore[no-untyped-call]
    return name


@pytest.mark.parametrize("hooks", [hook, hook_after])
def test_hooks_of_gradients_are_refused_by_the_parameters_name(
    mesh: DeviceMesh, tmp_path: Path, hooks: Callable[[nn.Module], str]
) -> None:
    model = sharded(mesh)
    refused(tmp_path / "run", rf"hooks of gradients on sharded parameters: {hooks(model)}$", model)


class ByNorm(torch.optim.Optimizer):
    """The script's own: each tensor's step is as long as the tensor, as in LARS."""

    def __init__(self, parameters: Any, lr: float = 0.1, *, by: str = "norm") -> None:
        super().__init__(parameters, {"lr": lr, "by": by})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                length = parameter.norm() if group["by"] == "norm" else parameter.abs()
                parameter.sub_(group["lr"] * length * parameter.grad.sign())


def warmed_up(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """At a rate of 0, at which any optimizer gives the same."""
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 10))
    return optimizer


@pytest.mark.parametrize(
    ("found", "optimizer"),
    [
        ("is a fused AdamW", lambda model: torch.optim.AdamW(model.parameters(), fused=True)),
        ("is a fused SGD", lambda model: torch.optim.SGD(model.parameters(), lr=0.1, fused=True)),
        ("is Adafactor", lambda model: torch.optim.Adafactor(model.parameters())),
        ("is ByNorm", lambda model: ByNorm(model.parameters())),
        ("is ByNorm", lambda model: warmed_up(ByNorm(model.parameters()))),
        ("is Adafactor", lambda model: warmed_up(torch.optim.Adafactor(model.parameters()))),
        ("is Muon", lambda model: torch.optim.Muon([one for one in model.parameters() if one.dim() == 2])),
    ],
)
def test_optimizers_whose_bits_depend_on_the_cut_are_refused(
    mesh: DeviceMesh, tmp_path: Path, found: str, optimizer: Callable[[nn.Module], torch.optim.Optimizer]
) -> None:
    model = sharded(mesh)
    refused(tmp_path / "run", rf"optimizer 'optimizer' {found}, whose bits", model, optimizer(model))
    plain = network()
    made(tmp_path / "plain", plain, optimizer(plain))


ELEMENT_BY_ELEMENT = [
    *(getattr(torch.optim, name) for name in ("Adadelta", "Adagrad", "Adam", "Adamax", "ASGD", "NAdam", "RAdam")),
    *(getattr(torch.optim, name) for name in ("RMSprop", "Rprop", "SGD")),
    partial(torch.optim.AdamW, foreach=True, amsgrad=True),
    partial(torch.optim.SGD, momentum=0.9, nesterov=True, weight_decay=0.1),
    partial(ByNorm, by="element"),
]


@pytest.mark.parametrize("made_of", ELEMENT_BY_ELEMENT, ids=lambda one: getattr(one, "__name__", str(one)))
def test_optimizers_that_work_element_by_element_are_carried(
    mesh: DeviceMesh, tmp_path: Path, made_of: Callable[..., torch.optim.Optimizer]
) -> None:
    """Of such a one, whoever wrote it, the trial shows nothing; it draws nothing that the script would miss."""
    model = sharded(mesh)
    before = torch.get_rng_state()
    made(tmp_path / "run", model, made_of(model.parameters(), lr=0.1))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_group_without_parameters_is_carried(mesh: DeviceMesh, tmp_path: Path) -> None:
    model = sharded(mesh)
    groups: list[dict[str, Any]] = [{"params": [*model.parameters()]}, {"params": []}]
    made(tmp_path / "run", model, torch.optim.AdamW(groups, foreach=True))


def test_parameters_that_kernels_round_by_their_place_are_refused_with_their_type(
    mesh: DeviceMesh, tmp_path: Path
) -> None:
    """The ends of a tensor that fill no vector are rounded twice, and the ends are elsewhere in parts."""
    model = sharded(mesh, network().bfloat16())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
    with pytest.raises(ConfigError, match=r"is SGD of parameters in torch\.bfloat16, .*\n.*\n.*MixedPrecision"):
        made(tmp_path / "run", model, optimizer)


def test_torchs_own_hsdp_is_refused(mesh: DeviceMesh, tmp_path: Path) -> None:
    two = init_device_mesh("cpu", (1, 1), mesh_dim_names=("copies", "parts"))
    refused(tmp_path / "run", r"a parameter lies on .* as .*, and a replica's model is sharded once", sharded(two))


def test_units_of_two_meshes_are_refused(mesh: DeviceMesh, tmp_path: Path) -> None:
    model = network()
    fully_shard(model[0], mesh=init_device_mesh("cpu", (1,), mesh_dim_names=("other",)))
    fully_shard(model, mesh=mesh)
    refused(tmp_path / "run", r"a parameter lies on ", model)


def test_a_model_of_dtensors_that_is_no_unit_is_refused(mesh: DeviceMesh, tmp_path: Path) -> None:
    model = network()
    distribute_module(model[2], mesh, lambda _, module, mesh: None)
    assert all(parameter.placements == (Replicate(),) for parameter in model[2].parameters())  # type: ignore[attr-defined]
    refused(tmp_path / "run", r"is a DTensor, and the model is no unit of fully_shard", model)


def test_a_model_of_which_a_part_is_whole_is_refused(mesh: DeviceMesh, tmp_path: Path) -> None:
    model = network()
    fully_shard(model[0], mesh=mesh)
    refused(tmp_path / "run", r"parameters that no unit of fully_shard holds: model\.1\.layer\.weight, ", model)


def test_parameters_that_are_ignored_are_refused(mesh: DeviceMesh, tmp_path: Path) -> None:
    model = network()
    ignored = {model[2].bias}
    assert isinstance(model[2].bias, nn.Parameter)
    fully_shard(model, mesh=mesh, ignored_params=ignored)  # type: ignore[arg-type]
    refused(tmp_path / "run", r"parameter bias of a Linear is in a unit of fully_shard, and not sharded", model)


def test_the_mesh_is_as_large_as_the_replica(mesh: DeviceMesh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sharded over some of torchrun's workers, or over those of another replica's size."""
    model = sharded(mesh)
    run = made(tmp_path / "run", model)
    torchrun = replace(run._launch, world_size=2)
    of_four = replace(run._launch, channel=7, replica_size=4)
    for launch, size in ((torchrun, 2), (of_four, 4)):
        with pytest.raises(ConfigError, match=rf"^the model is sharded over 1 workers, and a replica is of {size}\n"):
            check_sharding(run._config, launch)
    check_sharding(run._config, replace(run._launch, channel=7, world_size=3))


def test_replicas_of_several_workers_need_a_sharded_model(tmp_path: Path) -> None:
    run = made(tmp_path / "run", network())
    with pytest.raises(
        ConfigError, match=r"^replicas are of 2 workers \(--replica-size\), and the model is not sharded\n"
    ):
        check_sharding(run._config, replace(run._launch, channel=7, replica_size=2))


def test_how_a_model_is_sharded_is_no_part_of_the_identity(mesh: DeviceMesh, tmp_path: Path) -> None:
    """Neither by the names of FSDP's classes, nor by the units; what a layer computes is, and the kind of norm."""
    plain, units, root = network(), sharded(mesh), network()
    fully_shard(root, mesh=mesh)
    assert type(units[0]).__name__ == "FSDPBlock"
    known = [identity_of(tmp_path / name, model) for name, model in (("a", plain), ("b", units), ("c", root))]
    assert known[1] == known[2]
    assert known[0] | {"norm": "exact"} == known[1]
    other = network()
    other[0].norm = nn.LayerNorm(4, eps=1e-3)
    assert identity_of(tmp_path / "d", sharded(mesh, other)) != known[1]


def test_a_write_to_a_workers_own_part_of_a_weight_is_a_write_to_it(mesh: DeviceMesh, tmp_path: Path) -> None:
    """By a body, which may write to none; between a boundary and a step; and to what an object in `extra=` keeps."""
    model = sharded(mesh)
    weight: Any = model[2].weight
    since, before = SinceBoundary({}, model.parameters), mark(weight)
    since.note()
    write(weight)
    assert since.changed() == ["weights"]
    assert mark(weight) != before
    with pytest.raises(StepError, match=r"^the body of the inner loop wrote to weights in step 0: 2\.weight\n"):
        trained(made(tmp_path / "run", model), model, behind_each=lambda: write(weight))


class Repeats(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.again, self.last = Block(), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.again(self.again(x)))  # type: ignore[no-any-return]


def test_a_unit_that_is_called_twice_in_a_pass_is_refused_by_name(mesh: DeviceMesh, tmp_path: Path) -> None:
    """Its gradients would count as those of two shares; within the unit around it, it may be called as often."""
    twice, within, plain = Repeats(), Repeats(), Repeats()
    fully_shard(twice.again, mesh=mesh)
    for model in (twice, within):
        fully_shard(model, mesh=mesh)
    with pytest.raises(
        StepError, match=r"^model\.again, a unit of fully_shard, was called more than once in one pass\n"
    ):
        trained(made(tmp_path / "run", twice), twice)
    plain.load_state_dict({name: one.full_tensor() for name, one in within.state_dict().items()})
    for model, name in ((within, "within"), (plain, "plain")):
        trained(made(tmp_path / name, model), model)
    assert digest(within) == digest(plain)


def where(loop: str, passed: Callable[[], None], run: elastic.Run, model: nn.Module) -> None:
    """Train, with one more pass at this place."""
    optimizer: Any = next(iter(run._config.optimizers.values()))
    with run:
        if loop == "before":
            passed()
        if loop == "behind":
            for (x,) in run.batches():
                optimizer.zero_grad()
                model(x).mean().backward()
                passed()  # until the last share's backward pass has exchanged the step it is of the body
                optimizer.step()
        for step in run if loop != "behind" else ():
            for (x,) in step:
                if loop == "body":
                    passed()
                step.backward(model(x).sum(), count=len(x))
            if loop == "between":
                passed()


@pytest.mark.parametrize("loop", ["before", "between", "behind"])
def test_a_pass_outside_the_body_is_refused_by_name(mesh: DeviceMesh, tmp_path: Path, loop: str) -> None:
    """Of one worker alone, too, so that a script finds out before it has more; after the run it is the script's own."""
    model = sharded(mesh)

    def passed() -> None:
        with torch.no_grad():
            model(torch.zeros(2, 4))

    run = made(tmp_path / "run", model)
    with pytest.raises(StepError, match=r"^a forward pass of model, a unit of fully_shard, outside the loop's body"):
        where(loop, passed, run, model)
    model.reshard()  # type: ignore[operator]
    passed()
    model.reshard()  # type: ignore[operator]
    where("body", passed, made(tmp_path / "body", model), model)


def trained(run: elastic.Run, model: nn.Module, behind_each: Callable[[], None] = lambda: None) -> None:
    with run:
        for step in run:
            for (x,) in step:
                step.backward(model(x).sum(), count=len(x))
                behind_each()


def write(weight: Any) -> None:
    with torch.no_grad():
        weight.to_local().add_(1)


def test_the_precision_that_units_compute_in_is_part_of_the_identity(mesh: DeviceMesh, tmp_path: Path) -> None:
    """What rounds, and in which units: a run goes on in another precision where that is accepted alone."""
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    whole, rounded, at_root = sharded(mesh), sharded(mesh, mp_policy=half), network()
    fully_shard(at_root, mesh=mesh, mp_policy=half)
    known = [identity_of(tmp_path / name, one) for name, one in (("a", whole), ("b", rounded), ("c", at_root))]
    assert known[1].pop("precision") != known[2].pop("precision")
    assert known[0] == known[1] == known[2]
    with pytest.raises(IdentityMismatch, match="precision"):
        identity_of(tmp_path / "a", sharded(mesh, mp_policy=half), epochs=2)
    identity_of(tmp_path / "a", sharded(mesh, mp_policy=half), epochs=2, accept=["precision"])


def test_units_that_are_offloaded_are_refused(mesh: DeviceMesh, tmp_path: Path) -> None:
    refused(tmp_path / "run", "CPUOffloadPolicy", sharded(mesh, offload_policy=CPUOffloadPolicy(pin_memory=False)))


def identity_of(url: Path, model: nn.Module, **options: Any) -> Any:
    with made(url, model, **options):
        pass
    *_, identity = [event["identity"] for event in read_events(url) if event["event"] == "run_started"]
    return {key: value for key, value in identity.items() if key != "url"}
