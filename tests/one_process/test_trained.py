"""What a script does to parameters, groups and hooks between steps is carried; in the inner loop's body it is refused.

One process, so that each rule is seen to hold at one worker, too. What several workers make of the same scripts is in
tests/kit/cases/trained.py, and what a loss does to them in tests/processes/test_trained.py.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import elastic
import elastic_checkpoint
from elastic.errors import ConfigError, StepError
from tests.kit.arguments import grouped

Act = Callable[["Script"], None]
STEPS = 6


class Script:
    """Two layers, the second one frozen, which train for six steps unless they are interrupted.

    between  after each inner loop; top: before it; body: in it, before backward; late: in it, after that
    """

    def __init__(
        self,
        url: Path,
        *,
        between: Act | None = None,
        top: Act | None = None,
        body: Act | None = None,
        late: Act | None = None,
        **options: Any,
    ) -> None:
        elastic.seed(2)
        self.model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        self.model[2].requires_grad_(False)
        self.optimizer = torch.optim.AdamW(self.model[0].parameters(), lr=0.05)
        self.between, self.top, self.body, self.late = between, top, body, late
        self.step: elastic.Step
        self.loss: torch.Tensor
        given: dict[str, Any] = {"batch_size": 12, "virtual_workers": 3, "steps": STEPS, "save_every": 1}
        data = TensorDataset(torch.randn(24, 4), torch.randn(24, 4))
        self.run = elastic.Run(
            url, model=self.model, optimizer=self.optimizer, dataset=data, **grouped(given | options)
        )

    def train(self, *, interrupted_after: int | None = None, first: Act | None = None) -> Script:
        """first: between the start and the loop."""
        with self.run as run:
            if first is not None:
                first(self)
            for self.step in run:
                if self.top is not None:
                    self.top(self)
                for x, y in self.step:
                    if self.body is not None:
                        self.body(self)
                    self.loss = (self.model(x) - y).square().sum()
                    self.step.backward(self.loss, len(y))
                    if self.late is not None:
                        self.late(self)
                if self.step.index == interrupted_after:
                    raise KeyboardInterrupt
                if self.between is not None:
                    self.between(self)
        return self

    @property
    def state(self) -> str:
        return elastic_checkpoint.digest({"model": self.model, "optimizer": self.optimizer})


def interrupted_and_resumed(url: Path, *, after: int = 4, first: Act | None = None, **script: Any) -> Script:
    """The state when step `after` begins is that of the newest save."""
    with pytest.raises(KeyboardInterrupt):
        Script(url, **script).train(interrupted_after=after, first=first)
    resumed = Script(url, **script)
    resumed.train(first=first)
    return resumed


def layer(script: Script, number: int) -> Any:
    return script.model[number]


# between steps: carried


def swap(script: Script) -> None:
    """Layer by layer, and each with a group of its own."""
    if script.step.index == 2:
        layer(script, 0).requires_grad_(False)
        layer(script, 2).requires_grad_(True)
        script.optimizer.add_param_group({"params": list(layer(script, 2).parameters()), "lr": 0.2})


def set_at_the_top(script: Script) -> None:
    layer(script, 0).requires_grad_(script.step.index % 2 == 0)
    layer(script, 2).requires_grad_(script.step.index % 2 == 1)


@pytest.mark.parametrize("script", [{"between": swap}, {"top": set_at_the_top}], ids=["between", "at the top"])
def test_what_was_frozen_unfrozen_and_grouped_between_steps_is_so_after_a_restart(
    tmp_path: Path, script: dict[str, Any]
) -> None:
    """The script of a resume starts from its first line, and never passes the step at which it did so."""
    whole = Script(tmp_path / "whole", **script).train()
    resumed = interrupted_and_resumed(tmp_path / "resumed", **script)

    assert resumed.state == whole.state
    assert whole.state != Script(tmp_path / "plain").train().state
    assert [len(group["params"]) for group in resumed.optimizer.param_groups] == [
        len(group["params"]) for group in whole.optimizer.param_groups
    ]


def test_a_layer_that_was_frozen_is_not_trained_on_by_its_last_gradient(tmp_path: Path) -> None:
    """Optimizers apply whatever stands in `.grad`, and a resume or a newcomer has nothing there."""
    first: list[torch.Tensor] = []

    def freeze_and_watch(script: Script) -> None:
        layer(script, 2).requires_grad_(True)
        layer(script, 0).requires_grad_(False)
        first.append(layer(script, 0).weight.detach().clone())

    Script(tmp_path, between=freeze_and_watch).train()
    assert all(torch.equal(weight, first[0]) for weight in first)


# parameters that join


class Adapted(nn.Module):
    """A layer with something beside it."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.adapter = layer, nn.Linear(4, 4)
        nn.init.constant_(self.adapter.weight, 0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(x) + self.adapter(x)
        return result


def grow(script: Script) -> None:
    adapted = Adapted(layer(script, 0))
    script.model[0] = adapted
    script.optimizer.add_param_group({"params": list(adapted.adapter.parameters())})


def grow_midway(script: Script) -> None:
    if script.step.index == 2:
        grow(script)


def test_parameters_that_join_between_steps_are_refused_where_nobody_could_make_them_again(tmp_path: Path) -> None:
    """Alone it would go well to the end, or to the first restart."""
    with pytest.raises(StepError, match=r"0\.adapter\.weight is new(.|\n)*requires_grad_\(False\)(.|\n)*rebuild="):
        Script(tmp_path, between=grow_midway).train()


def test_parameters_that_join_are_carried_where_rebuild_makes_them_again(tmp_path: Path) -> None:
    def grown(url: Path) -> Script:
        made: list[Script] = []
        made.append(Script(url, between=grow_midway, rebuild=lambda step: grow(made[0]) if step > 2 else None))
        return made[0]

    whole = grown(tmp_path / "whole").train()
    with pytest.raises(KeyboardInterrupt):
        grown(tmp_path / "resumed").train(interrupted_after=4)
    assert grown(tmp_path / "resumed").train().state == whole.state

    with pytest.raises(KeyboardInterrupt):
        grown(tmp_path / "wrong").train(interrupted_after=4)
    with pytest.raises(ConfigError, match=r"0\.adapter\.weight only in the run(.|\n)*did not make them equal"):
        Script(tmp_path / "wrong", rebuild=lambda _: None).train()


def test_a_parameter_of_no_model_in_a_group_is_refused_at_that_step(tmp_path: Path) -> None:
    stray = nn.Parameter(torch.ones(2))

    def add(script: Script) -> None:
        if script.step.index == 1:
            script.optimizer.add_param_group({"params": [stray]})

    with pytest.raises(StepError, match="not one of the model's"):
        Script(tmp_path, between=add).train()


# the body: refused


def clip_by_data(script: Script) -> None:
    for parameter in script.model.parameters():
        parameter.data.clamp_(-0.01, 0.01)


def clip(script: Script) -> None:
    with torch.no_grad():
        layer(script, 0).weight.clamp_(-0.01, 0.01)


def assign_data(script: Script) -> None:
    layer(script, 0).weight.data = layer(script, 0).weight.data * 0.5


def average(script: Script) -> None:
    script.run._config.extra["teacher"].update_parameters(script.model)


class Seen:
    """What a script counts for itself."""

    def __init__(self) -> None:
        self.mean = torch.zeros(4)

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.mean.copy_(state["mean"])


def see(script: Script) -> None:
    script.run._config.extra["seen"].mean.lerp_(layer(script, 0).weight.detach()[0], 0.1)


def toggle(script: Script) -> None:
    layer(script, 2).requires_grad_(script.step.index % 2 == 0)


def unfreeze_for_backward(script: Script) -> None:
    layer(script, 2).requires_grad_(True)


def freeze_again(script: Script) -> None:
    layer(script, 2).requires_grad_(False)


def warm_up(script: Script) -> None:
    script.optimizer.param_groups[0]["lr"] = 0.01 * script.step.index


def add_group(script: Script) -> None:
    script.optimizer.add_param_group({"params": []})


def add_hook(script: Script) -> None:
    layer(script, 0).weight.register_hook(lambda gradient: gradient)


REFUSED: dict[str, tuple[dict[str, Act], str]] = {
    "weights clipped through .data": ({"late": clip_by_data}, r"wrote to weights in step 0: 0\.weight, 0\.bias"),
    "weights clipped": ({"late": clip}, r"wrote to weights in step 0: 0\.weight\n"),
    "weights exchanged": ({"body": assign_data}, r"wrote to weights in step 0: 0\.weight\n"),
    "a teacher updated": ({"late": average}, r"wrote to weights in step 0: extra\.teacher\.module\.0\.weight"),
    "an object in extra": ({"late": see}, r"changed extra\['seen'\] in step 0"),
    "unfrozen": ({"body": toggle}, r"changed what the step trains: 2\.weight is trained and was frozen"),
    "unfrozen for a moment": (
        {"body": unfreeze_for_backward, "late": freeze_again},
        r"does not train have got a gradient: 2\.weight, 2\.bias",
    ),
    "a learning rate": ({"body": warm_up}, r"set options of optimizer 'optimizer' in step 0"),
    "a group": ({"body": add_group}, "parameters were added to an optimizer"),
    "a hook": ({"body": add_hook}, "hooks of parameters were registered"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_the_body_changes_is_refused_by_name_at_its_first_step(tmp_path: Path, what: str) -> None:
    """How often the body runs on a worker depends on the world size. Alone, too, and nothing of it is saved."""
    acts, message = REFUSED[what]
    script = Script(tmp_path, **acts)
    if "teacher" in what:
        script = Script(tmp_path, **acts, extra={"teacher": torch.optim.swa_utils.AveragedModel(script.model)})
    if "extra" in what:
        script = Script(tmp_path, **acts, extra={"seen": Seen()})
    with pytest.raises(StepError, match=message):
        script.train()


def test_what_a_body_puts_back_or_only_reads_is_no_change(tmp_path: Path) -> None:
    """A discriminator is frozen while the generator's loss is made; norms are read from `.data`."""
    norms: list[float] = []

    def frozen_meanwhile(script: Script) -> None:
        layer(script, 0).requires_grad_(False)
        script.model(torch.ones(1, 4))
        layer(script, 0).requires_grad_(True)
        norms.append(float(layer(script, 0).weight.data.norm()))
        copy.deepcopy(script.model)

    assert Script(tmp_path / "a", body=frozen_meanwhile).train().state == Script(tmp_path / "b").train().state
    assert len(norms) >= 3 * STEPS  # shares that are cross-checked come once more


def test_data_of_parameters_is_torchs_own_again_after_a_run(tmp_path: Path) -> None:
    assert "data" not in vars(nn.Parameter)
    with pytest.raises(StepError):
        Script(tmp_path, late=clip_by_data).train()
    assert "data" not in vars(nn.Parameter)


# hooks


def test_a_hook_sees_each_shares_own_gradient_whenever_it_was_registered(tmp_path: Path) -> None:
    """Before the start, after it, or at the top of the first step: what it makes of the gradient counts."""

    def halve(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.mul_(0.5)

    def register(script: Script) -> None:
        for parameter in layer(script, 0).parameters():
            parameter.register_post_accumulate_grad_hook(halve)

    early = Script(tmp_path / "early")
    register(early)
    states = [
        early.train().state,
        Script(tmp_path / "later").train(first=register).state,
        Script(tmp_path / "top", top=lambda script: register(script) if script.step.index == 0 else None).train().state,
        Script(tmp_path / "plain", overlap=False).train(first=register).state,
    ]
    assert len(set(states)) == 1
    assert states[0] != Script(tmp_path / "without").train().state


def test_hooks_that_come_between_steps_or_are_missing_after_a_restart_are_refused(tmp_path: Path) -> None:
    def register(script: Script) -> None:
        if script.step.index == 2:
            layer(script, 0).weight.register_hook(lambda gradient: gradient * 0.5)

    def register_first(script: Script) -> None:
        if script.step.index == 0:
            layer(script, 0).weight.register_hook(lambda gradient: gradient * 0.5)

    with pytest.raises(StepError, match=r"0\.weight has 1, and had 0(.|\n)*before the loop"):
        Script(tmp_path / "between", between=register).train()
    with pytest.raises(StepError, match=r"0\.weight has 0, and had 1(.|\n)*before the loop"):
        interrupted_and_resumed(tmp_path / "restart", top=register_first)


def test_hooks_that_hang_around_the_inner_loop_only_are_there_after_a_restart(tmp_path: Path) -> None:
    """Saves come between steps, where they do not hang."""
    hooks: list[Any] = []

    def hang(script: Script) -> None:
        hooks.append(layer(script, 0).weight.register_hook(lambda gradient: gradient * 0.5))

    def take_off(script: Script) -> None:
        hooks.pop().remove()

    whole = Script(tmp_path / "whole", top=hang, between=take_off).train()
    assert interrupted_and_resumed(tmp_path / "resumed", top=hang, between=take_off).state == whole.state


# errors that the body swallows


class _Boom(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("out of memory, say")


def test_a_backward_pass_that_broke_off_and_was_caught_ends_the_step(tmp_path: Path) -> None:
    """Half of a share's gradients would be applied, with the count of all of it."""
    script = Script(tmp_path)

    def train() -> None:
        with script.run as run:
            for step in run:
                for number, (x, y) in enumerate(step):
                    output = script.model(x)
                    loss = (_Boom.apply(output) if number == 1 else output).sub(y).square().sum()  # type: ignore[no-untyped-call]
                    with suppress(RuntimeError):
                        step.backward(loss, len(y))

    with pytest.raises(StepError, match=r"failed for share 0 of step 0(.|\n)*out of memory, say"):
        train()
    assert script.run.step_index == 0


# what travels
