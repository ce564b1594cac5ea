"""Faults of which no process dies: something is wrong in one worker, and the run is to find it.

It may end the run, or only the worker: then the drill judges what the same command makes of it, or what the others do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from elastic.drill.faults.base import Aftermath, Flag, Sizes, WorkerFault
from elastic.drill.faults.scene import Scene

if TYPE_CHECKING:
    import torch

_TIMES = {"skip": 0, "repeat": 2}


@dataclass(frozen=True)
class MisleadingFault(WorkerFault):
    """A fault that makes what one worker computes wrong, without an error of its own.

    It waits until there is another worker to compare with: who joins has no share of its first step.

    found_as  names of the errors that say that it was found
    """

    found_as: ClassVar[tuple[str, ...]] = ("ComputesWrongly", "NotLetIn", "CollectiveMismatch", "StepError")

    for_command = True
    restarts = "found"
    misleads = True
    takes = "workers"
    outcome = Aftermath.PERHAPS_LOSS
    workers_min = 2
    settles = 6  # it is found behind the next save at the latest: with others lost before that, nobody would tell

    @classmethod
    def finds(cls, error: str) -> bool:
        return error.startswith(cls.found_as)

    def possible(self, scene: Scene) -> bool:
        return scene.run.world_size > 1 and scene.applied > 0

    def lost_max(self, sizes: Sizes) -> int | None:
        """Return None: where what others hold may come from this worker, all begin again from the newest save."""
        return None


@dataclass(frozen=True)
class CorruptState(MisleadingFault):
    """A bit changes in the memory of the worker that has this rank at that moment.

    The bit is in its largest weight, or in the largest tensor that an optimizer keeps. The fault waits until there is
    one.

    of  "weight" or "moment"
    """

    of: str

    kind = "corrupt_state"
    sentence = "a bit of {said} changes in the memory of worker {worker}"
    flags = (
        Flag("corrupt-weight", "a bit of a weight changes in one worker's memory", {"of": "weight"}, "a weight"),
        Flag("corrupt-moment", "a bit of what an optimizer keeps (Adam's moments) changes there", {"of": "moment"},
             "what the optimizer keeps for a weight"),
    )  # fmt: skip
    usual_phase = "applied"

    def possible(self, scene: Scene) -> bool:
        return super().possible(scene) and next(self._tensors(scene), None) is not None

    def strike(self, scene: Scene) -> None:
        from elastic.drill.faults.bits import flip

        flip(max(self._tensors(scene), key=lambda tensor: tensor.numel()))

    def _tensors(self, scene: Scene) -> Iterator[torch.Tensor]:
        """Yield the tensors that it may strike: those that hold floats."""
        weights, kept = _held(scene)
        found = weights if self.of == "weight" else kept
        return (one for one in found if one.is_floating_point() and one.numel())


@dataclass(frozen=True)
class CorruptGradient(MisleadingFault):
    """A bit of a gradient changes in the next backward pass of the worker that has this rank at that moment.

    It does so before the gradient is added to anything: all workers apply the same wrong sum.
    """

    kind = "corrupt_gradient"
    sentence = "a bit of a gradient changes in worker {worker}"
    flags = (Flag("corrupt-gradient", "a bit of a share's gradient changes before it is added to anything"),)
    found_as = ("ComputesWrongly", "NotLetIn", "StepError")
    usual_phase = "backward"
    checks_shares = True

    def strike(self, scene: Scene) -> None:
        """Change the next gradient that is not zero everywhere, ahead of all others who ask for it."""
        import torch

        from elastic.drill.faults.bits import flip

        hooks: list[Any] = []

        def arrived(gradient: torch.Tensor) -> torch.Tensor | None:
            if not hooks or not bool(gradient.any()):
                return None
            while hooks:
                hooks.pop().remove()
            other = gradient.clone(memory_format=torch.contiguous_format)
            flip(other)
            return other

        weights: list[Any] = _held(scene)[0]  # torch 2.13 does not annotate register_hook
        hooks += [weight.register_hook(arrived) for weight in weights if weight.requires_grad]


@dataclass(frozen=True)
class CorruptBatch(MisleadingFault):
    """A bit of the next batch of the worker that has this rank at that moment changes on its way to the script.

    The bit is in the batch's first tensor, also inside tuples, lists and dicts.
    """

    kind = "corrupt_batch"
    sentence = "a bit of a batch changes on its way to the script of worker {worker}"
    flags = (Flag("corrupt-batch", "a bit of a share's batch changes between the data set and the script"),)
    found_as = ("ComputesWrongly", "NotLetIn", "StepError")
    usual_phase = "data"
    checks_shares = True

    def strike(self, scene: Scene) -> None:
        from elastic.drill.faults.bits import with_a_flip

        scene.change_batch(lambda batch: with_a_flip(batch)[0])


@dataclass(frozen=True)
class StaleState(MisleadingFault):
    """Once the current step is applied, the worker that has this rank at that moment holds its present state again.

    That is its weights, and what its optimizers keep for them, as they are now. It takes part in what follows as if
    nothing were the matter.
    """

    kind = "stale_state"
    sentence = "worker {worker} holds the state of before the step that it has applied"
    flags = (Flag("stale-state", "a worker that has applied a step holds the state of before"),)
    usual_phase = "update"

    def strike(self, scene: Scene) -> None:
        weights, kept = _held(scene)
        before = [(tensor, tensor.detach().clone()) for tensor in (*weights, *kept)]

        def goes_back() -> None:
            for tensor, was in before:
                tensor.data.copy_(was)

        scene.at_next("applied", goes_back)


@dataclass(frozen=True)
class OtherRate(MisleadingFault):
    """The learning rates of the worker that has this rank at that moment are twice as high from then on.

    So they would be after an edit of the script, or of its settings, on one machine alone.
    """

    kind = "other_rate"
    sentence = "the learning rate of worker {worker} alone is twice as high"
    flags = (Flag("other-rate", "one worker's learning rate is another one than the others'"),)
    found_as = ("CollectiveMismatch", "NotLetIn")
    usual_phase = "applied"

    def strike(self, scene: Scene) -> None:
        for optimizer in scene.run.optimizers.values():
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] * 2


@dataclass(frozen=True)
class OutOfStep(MisleadingFault):
    """The worker that has this rank at that moment leaves out its group's next collective, or takes part in it twice.

    What it takes part in next meets another collective. At "exchange" that is the one of the step's row, at "backward"
    of a bucket of gradients, or of the row too where one bucket holds all.

    how  "skip" or "repeat"
    """

    how: str

    kind = "out_of_step"
    sentence = "worker {worker} {said} a collective of the exchange"
    flags = (
        Flag("skip-exchange", "a worker leaves out a collective of the exchange", {"how": "skip"}, "leaves out"),
        Flag("repeat-exchange", "a worker takes part twice in a collective of the exchange", {"how": "repeat"},
             "repeats"),
    )  # fmt: skip
    usual_phase = "exchange"

    def strike(self, scene: Scene) -> None:
        from elastic.group import form

        starts = {name: getattr(form.DistributedGroup, name) for name in ("all_gather", "all_to_all", "all_reduce")}

        def once(name: str) -> Callable[..., form.Work]:
            def start(group: form.DistributedGroup, *arguments: Any) -> form.Work:
                for other, method in starts.items():
                    setattr(form.DistributedGroup, other, method)
                started = [starts[name](group, *arguments) for _ in range(_TIMES[self.how])]
                return started[-1] if started else form.Work(_Nothing(), name, None)

            return start

        for name in starts:
            setattr(form.DistributedGroup, name, once(name))


class _Nothing:
    """The work of a collective that was not started: there is nothing to wait for."""

    def wait(self) -> None:
        return

    def is_completed(self) -> bool:
        return True


def _held(scene: Scene) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the weights that the optimizers update, and the tensors that they keep for them."""
    import torch

    optimizers = scene.run.optimizers.values()
    weights = [weight for made in optimizers for group in made.param_groups for weight in group["params"]]
    kept = [one for made in optimizers for state in made.state.values() for one in state.values()]
    return weights, [one for one in kept if isinstance(one, torch.Tensor)]
