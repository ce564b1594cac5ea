"""Every question that only a GPU can answer: `make gpu`, on a machine with one or more, within half an hour.

Workers beyond the number of GPUs share them, and exchange over gloo; with two GPUs or more the same tests run over
NCCL. Each prints the device's name and its figures (-s shows them); DEVICE=cpu rehearses all but the figures.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import elastic
import elastic_checkpoint
from elastic.drill.cluster import Cluster
from elastic.drill.end import End
from elastic.drill.faults import At, Fault, Kill, Plan, Stop
from elastic.group.form import LocalGroup
from elastic.group.gradients import GradientSum
from elastic.group.tree import schedule
from elastic_checkpoint import Checkpointer
from tests.gpu.program import network

MakeCluster = Callable[..., Cluster]
Undisturbed = Callable[..., End]
STEPS = 60
WORKERS = 3
ROOT = Path(__file__).parents[2]
LANGUAGE = Path(__file__).with_name("language.py")


def named(device: torch.device) -> str:
    if device.type == "cpu":
        return "cpu, a rehearsal"
    return f"{torch.cuda.get_device_name()} x {torch.cuda.device_count()}, torch {torch.__version__}"


@pytest.fixture
def reference(elastic_undisturbed: Undisturbed, device: torch.device) -> End:
    return elastic_undisturbed(steps=STEPS, device=device.type)


def trained(
    elastic_cluster: MakeCluster, device: torch.device, workers: int, *faults: Fault, **options: Any
) -> Cluster:
    return elastic_cluster(
        workers=workers, launcher="elastic", steps=STEPS, device=device.type, plan=Plan(faults), **options
    )


def judged(run: Cluster, reference: End) -> End:
    end = run.finish(within_s=400, reference=reference.events)
    assert end.verdict.ok, f"{end.verdict}\n{end.output}"
    assert (end.exit_code, end.left_behind, end.not_reached) == (0, (), ()), end.output
    return end


def test_as_many_workers_as_gpus(tmp_path: Path, device: torch.device) -> None:
    """They are counted by a process of its own: forks of the one that asked can still use them."""
    script = tmp_path / "train.py"
    script.touch()
    asks = f"""if True:
        import os, torch
        from elastic.launch.arguments import parse
        print(parse(["--nproc-per-node=auto", {str(script)!r}]).workers)
        child = os.fork()
        if child == 0:
            os._exit(torch.cuda._is_in_bad_fork())
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    """
    found = subprocess.run([sys.executable, "-c", asks], check=True, cwd=ROOT, capture_output=True, text=True)
    gpus = torch.cuda.device_count() if device.type == "cuda" else 0
    assert int(found.stdout) == (gpus or os.cpu_count())


@pytest.mark.timeout(600)
@pytest.mark.parametrize("workers", [1, 2, WORKERS])
def test_the_bits_are_the_same_at_every_world_size(
    elastic_cluster: MakeCluster, reference: End, device: torch.device, workers: int
) -> None:
    end = judged(trained(elastic_cluster, device, workers), reference)
    print(f"\n{named(device)}: {workers} workers, weights {end.weights_sha256} as alone")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "options",
    [{"precision": "bfloat16"}, {"precision": "float16"}, {"precision": "float32", "compile": 1}],
    ids=["bfloat16", "a scaler", "compiled"],
)
def test_a_plain_loop_has_the_same_bits_alone_and_through_kills(
    elastic_cluster: MakeCluster, elastic_undisturbed: Undisturbed, device: torch.device, options: dict[str, Any]
) -> None:
    """Attention, embeddings and scattered sums, in a script that asks for no deterministic kernels."""
    asked = {"script": LANGUAGE, "steps": 40, "device": device.type, **options}
    alone = elastic_undisturbed(**asked)
    faults = (Kill(1, At(None, "in_backward", world_size=3)), Kill(0, At(None, "in_update", world_size=3)))
    run = elastic_cluster(workers=3, launcher="elastic", plan=Plan(faults), unhurried=3, **asked)
    end = judged(run, alone)
    print(f"\n{named(device)}: {options}, weights {end.weights_sha256} as alone, views of {end.world_sizes}")


class Sampled(torch.nn.Module):
    """The gradient of grid_sample has no deterministic kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.grid = torch.nn.Parameter(torch.rand(1, 4, 4, 2))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        grid = self.grid.expand(len(images), -1, -1, -1)
        return torch.nn.functional.grid_sample(images, grid, align_corners=False)


def test_what_has_no_deterministic_kernel_is_refused_by_name(tmp_path: Path, device: torch.device) -> None:
    if device.type == "cpu":
        pytest.skip("the CPU's kernels all sum in one order")
    data = torch.utils.data.TensorDataset(torch.randn(16, 3, 8, 8))

    def train(mode: Any) -> None:
        model = Sampled().to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with elastic.Run(
            tmp_path / mode, model=model, optimizer=optimizer, dataset=data, batch_size=8, virtual_workers=2, steps=2,
            compute=elastic.Compute(mode=mode),
        ) as run:  # fmt: skip
            for step in run:
                for (images,) in step:
                    step.backward(model(images).sum(), len(images))

    with pytest.raises(elastic.StepError, match=r"grid_sampler_2d\w* has no deterministic kernel on a GPU"):
        train("exact")
    train("fast")
    assert torch.get_deterministic_debug_mode() == 0


@pytest.mark.timeout(600)
def test_killed_and_stopped_workers_change_nothing(
    elastic_cluster: MakeCluster, reference: End, device: torch.device
) -> None:
    """SIGKILL inside a backward pass and an exchange, whose kernels wait for the dead one's part; and SIGSTOP there,
    which sends no reset."""

    def complete(phase: str) -> At:
        return At(None, phase, world_size=WORKERS)

    faults = (
        Kill(1, complete("in_backward")),
        Kill(0, complete("in_exchange")),
        Stop(2, complete("in_exchange")),
        Kill(2, complete("in_update")),
    )
    end = judged(trained(elastic_cluster, device, WORKERS, *faults, unhurried=WORKERS), reference)

    assert end.steps_redone <= len(faults)
    print(f"\n{named(device)}: views of {end.world_sizes}, {end.steps_redone} steps redone")


@pytest.mark.timeout(600)
def test_workers_are_forked_from_a_process_whose_imports_have_asked_for_gpus(
    elastic_cluster: MakeCluster, reference: End, device: torch.device
) -> None:
    """A fork of a process that has initialised CUDA cannot use it; a fresh interpreter takes seconds to replace one."""
    end = judged(trained(elastic_cluster, device, 2, Kill(1, At(10, "forward")), unhurried=2), reference)

    assert "afresh" not in end.output, end.output
    assert "NVML" not in end.output, end.output  # torch warns where it finds the driver's library closed
    own = {line for line in end.output.splitlines() if "worker on" in line}
    print(f"\n{named(device)}:", *sorted(own), sep="\n  ")
    if device.type == "cuda":
        assert {line.split("current device ")[1].split(",")[0] for line in own} == {
            str(worker % torch.cuda.device_count()) for worker in range(2)
        }


def test_gradients_leave_while_the_backward_pass_runs_and_nobody_waits_for_the_gpu(device: torch.device) -> None:
    """One copy of a few numbers to the GPU in a hook would make each bucket wait for all before it."""
    model = network().to(device)
    parameters = list(model.parameters())
    plan = schedule(4, 4, (range(4),))
    sums = GradientSum(
        parameters,
        [str(i) for i in range(len(parameters))],
        LocalGroup(),
        overlap=True,
        ordered=True,
        bucket_bytes=1 << 16,
    )
    sums.open()
    for measured in (False, True):  # the first time makes what is kept
        sums.begin(plan)
        for share, merges in enumerate(plan.merges[0]):
            loss = model(torch.randn(8, 3, 16, 16, device=device)).sum()
            sums.begin_pass(merges, piece=0, pieces=1, last=share == 3)
            if device.type == "cuda":
                torch.cuda.set_sync_debug_mode("error" if measured else "default")
            loss.backward()
            sums.end_pass()
            if device.type == "cuda":
                torch.cuda.set_sync_debug_mode("default")
        sums.finish(8)
    sums.close()
    assert all(parameter.grad is not None for parameter in parameters)


def test_a_save_copies_into_pinned_memory_beside_training(tmp_path: Path, device: torch.device) -> None:
    """What is changed on the GPU right after `save` has returned is not in the checkpoint."""
    said: list[str] = []
    tensors = {f"layer{i}": torch.randn(256, 1024, device=device) for i in range(16)}
    tensors["channels_last"] = torch.randn(8, 16, 32, 32, device=device).to(memory_format=torch.channels_last)
    with Checkpointer(tmp_path, log=said.append) as checkpoints:
        for step in (1, 2, 3):
            before = elastic_checkpoint.digest(tensors)
            saving = checkpoints.save(step, {"w": tensors}, blocking=False)
            for tensor in tensors.values():
                tensor.add_(1)
            saving.wait(60)
            loaded = {"w": {name: torch.empty_like(tensor) for name, tensor in tensors.items()}}
            checkpoints.load(loaded)
            assert elastic_checkpoint.digest(loaded["w"]) == before
    assert not [line for line in said if "locked" in line], said


def test_a_save_beside_a_step_is_whole_however_late_the_gpu_is(tmp_path: Path, device: torch.device) -> None:
    """Behind queued work the copy begins late. The next forward pass moves a buffer meanwhile, and the update, which
    waits for the copy, writes to what was lent."""
    lent = {f"layer{i}": torch.randn(1024, 1024, device=device) for i in range(8)}
    tensors = {**lent, "buffer": torch.randn(1 << 20, device=device), "steps": torch.zeros((), device=device)}
    queued = torch.randn(2048, 2048, device=device)

    def computed() -> None:
        for _ in range(50 if device.type == "cuda" else 1):
            queued.copy_(queued @ queued / 2048)

    with Checkpointer(tmp_path) as checkpoints:
        checkpoints.save(0, {"w": tensors}, blocking=False).wait(60)  # memory is made
        for step in range(1, 6):
            before = elastic_checkpoint.digest(tensors)
            computed()
            saving = checkpoints.save(step, {"w": tensors}, blocking=False, steady=lent.values())
            tensors["buffer"].add_(1)
            tensors["steps"].add_(1)
            computed()
            saving.staged()
            for tensor in lent.values():
                tensor.add_(1)
            saving.wait(60)
            assert saving.beside_s > 0, "the copy was made beside the step"
            loaded = {"w": {name: torch.empty_like(tensor) for name, tensor in tensors.items()}}
            checkpoints.load(loaded)
            assert elastic_checkpoint.digest(loaded["w"]) == before


@pytest.mark.timeout(900)
def test_throughput_beside_plain_loops(device: torch.device) -> None:
    """Figures for the pages; nothing is asserted of them."""
    measured("tests.gpu.throughput", device)


@pytest.mark.timeout(300)
def test_what_a_save_costs(device: torch.device) -> None:
    measured("tests.gpu.saves", device)


def measured(module: str, device: torch.device) -> None:
    command = [sys.executable, "-m", module, device.type]
    found = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=800)
    print(f"\n{named(device)}\n{found.stdout}")
    assert found.returncode == 0, found.stderr
