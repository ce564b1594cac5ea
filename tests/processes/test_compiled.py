"""torch.compile under a run: what it gives does not depend on the sizes that a worker happens to have met.

The backend "eager" stands for the compiler where no kernel matters; where one does, a C++ compiler is needed.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import elastic
from elastic.drill.cluster import Cluster
from elastic.drill.end import End
from elastic.drill.faults import At
from elastic.errors import IdentityMismatch, StepError
from elastic.state import compiled
from tests.kit.arguments import grouped

pytestmark = pytest.mark.nightly(sample=2, of="compiled steps")

PROGRAM = Path(__file__).parents[1] / "kit" / "programs" / "compiled.py"

needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None,
    reason="torch.compile makes C++ of a model: this needs a machine with g++ or clang++",
)


@pytest.fixture(autouse=True)
def afresh(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """One compilation at a time, and each only once: C++ takes seconds."""
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "compiled"))
    torch._dynamo.reset()


@pytest.mark.nightly(sample=1, of="what is compiled")
@needs_compiler
@pytest.mark.timeout(1200)
def test_a_compiled_run_has_the_same_bits_alone_and_through_a_kill(
    elastic_cluster: Callable[..., Cluster], elastic_undisturbed: Callable[..., End]
) -> None:
    """Alone, a worker meets shares of two sizes; of two workers, each meets one; a replacement compiles late. Kernels
    for any size, or made for whichever came first, have other bits."""
    alone = elastic_undisturbed(script=PROGRAM, steps=4, within_s=560)
    run = elastic_cluster(script=PROGRAM, workers=2, launcher="elastic", steps=4)
    run.kill(worker=1, when=At(step=2, phase="in_backward"))
    end = run.finish(within_s=560)
    assert end.verdict.ok, f"{end.verdict}\n{end.output}"
    assert end.weights_sha256 == alone.weights_sha256


def train(
    url: Path,
    model: nn.Module,
    forward: Callable[[torch.Tensor], torch.Tensor],
    *,
    update: Callable[..., None] | None = None,
    **arguments: Any,
) -> list[int]:
    """Steps whose shares have 2, 3 and 1 examples. Returns the sizes that `forward` was given."""
    sizes = []
    data = TensorDataset(torch.randn(11, 4, generator=torch.Generator().manual_seed(0)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given: dict[str, Any] = {"dataset": data, "batch_size": 5, "virtual_workers": 2, "epochs": 1, "apply": update}
    with elastic.Run(url, model=model, optimizer=optimizer, **grouped(given | arguments)) as run:
        for step in run:
            for (points,) in step:
                sizes.append(len(points))
                step.backward(forward(points).square().sum(), count=len(points))
    return sizes


def test_each_size_has_a_graph_of_its_own_also_after_a_warm_up(tmp_path: Path) -> None:
    """A warm-up makes a graph for any size; what it compiled is compiled again, and later code is as torch has it."""
    made: list[int | str] = []

    def double(points: torch.Tensor) -> torch.Tensor:
        return 2 * points

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        made.append("any" if isinstance(inputs[0], torch.SymInt) else int(inputs[0].shape[0]))
        return graph.forward

    doubled: Callable[..., Any] = torch.compile(double, backend=backend)
    for size in (7, 8):
        doubled(torch.randn(size, 4))
    assert made == [7, "any"]

    made.clear()
    model = nn.Linear(4, 1)
    sizes = train(tmp_path / "run", model, lambda points: model(doubled(points)))
    assert len(sizes) > len(set(sizes))
    assert made == list(dict.fromkeys(sizes))
    assert torch._dynamo.config.automatic_dynamic_shapes


@pytest.mark.nightly(sample=1, of="what is compiled")
@needs_compiler
@pytest.mark.parametrize("how", ["dynamic=True", "mark_dynamic"])
def test_kernels_for_any_size_are_refused_by_name(tmp_path: Path, how: str) -> None:
    """Their code follows the size that a worker met first."""
    model = nn.Linear(4, 1)
    forward = torch.compile(model, dynamic=True if how == "dynamic=True" else None)

    def marked(points: torch.Tensor) -> torch.Tensor:
        if how == "mark_dynamic":
            torch._dynamo.mark_dynamic(points, 0)
        result: torch.Tensor = forward(points)
        return result

    with pytest.raises(StepError, match=how) as refused:
        train(tmp_path / "run", model, marked)
    assert "the model is as it was before this step" in str(refused.value)
    assert 'mode="fast"' in str(refused.value)


@needs_compiler
def test_views_into_larger_tensors_are_no_kernels_for_any_size(tmp_path: Path) -> None:
    """Shifted inputs, and gradients in a compiled optimizer step: torch has a symbol for where they begin."""
    model = nn.Linear(3, 1)
    forward = torch.compile(model)
    optimizer = torch.optim.Adam(model.parameters())
    update = torch.compile(optimizer.step)
    with elastic.Run(
        tmp_path / "run",
        model=model,
        optimizer=optimizer,
        dataset=TensorDataset(torch.randn(4, 4)),
        batch_size=2,
        virtual_workers=1,
        epochs=1,
        update=elastic.Update(apply=lambda run, step: update()),
    ) as run:
        for step in run:
            for (points,) in step:
                step.backward(forward(points[:, 1:]).square().sum(), count=len(points))
    assert run.step_index == 2


def test_what_follows_from_a_history_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stance, or torch's giving up after many sizes, leaves a late worker with other code than the rest."""
    model = nn.Linear(4, 1)

    def updated(*_: object) -> None:
        torch.compiler.set_stance("eager_on_recompile")  # once there is something that is compiled

    with torch.compiler.set_stance("default"), pytest.raises(StepError, match="set_stance"):
        train(tmp_path / "stance", model, torch.compile(model, backend="eager"), update=updated)

    monkeypatch.setattr(compiled, "SIZES_MAX", 2)
    with (
        torch._dynamo.config.patch(recompile_limit=1),
        pytest.raises(StepError, match="compiled for 2 different inputs"),
    ):
        train(tmp_path / "sizes", model, torch.compile(model, backend="eager"))


def test_fast_mode_compiles_as_torch_does(tmp_path: Path) -> None:
    model = nn.Linear(4, 1)
    train(tmp_path / "run", model, torch.compile(model, dynamic=True, backend="eager"), mode="fast")


def test_an_agent_hears_of_each_compilation() -> None:
    """One that takes a minute, in the middle of a run, is no hang."""
    heard: list[str] = []
    function = torch.compile(lambda x: x + 1, backend="eager")
    with compiled.Compiling(begun=lambda: heard.append("begun"), ended=lambda: heard.append("ended")):
        for size in (2, 3):
            function(torch.zeros(size))
        function(torch.zeros(2))
    function(torch.zeros(4))
    assert heard == ["begun", "ended"] * 2


def test_compiler_settings_belong_to_the_identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def resumed(model: Any, **arguments: Any) -> None:
        train(tmp_path / "run", model, lambda points: nn.functional.linear(points, plain.weight), **arguments)

    plain = nn.Linear(4, 1, bias=False)
    resumed(torch.compile(plain), steps=1)
    with pytest.raises(IdentityMismatch, match=r"compiler.models\[0\]: \"model: .*max_autotune") as refused:
        resumed(torch.compile(plain, mode="max-autotune-no-cudagraphs"))
    assert refused.value.fields.keys() == {"compiler"}
    monkeypatch.setenv("TORCHINDUCTOR_FREEZING", "1")
    with pytest.raises(IdentityMismatch, match="FREEZING"):
        resumed(torch.compile(plain))
    with torch._inductor.config.patch(epilogue_fusion=False), pytest.raises(IdentityMismatch, match="epilogue_fusion"):
        resumed(torch.compile(plain))
    monkeypatch.delenv("TORCHINDUCTOR_FREEZING")
    resumed(torch.compile(plain))
