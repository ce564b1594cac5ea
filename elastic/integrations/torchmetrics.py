"""torchmetrics in a run: a metric over whole batches, the same on every worker, carried with the run's state.

    accuracy = Synced(MulticlassAccuracy(num_classes=3))      # or a MetricCollection
    with elastic.Run(..., extra={"accuracy": accuracy}) as run:
        accuracy.follow(run)
        for epoch in run.epochs():
            for x, y in run.batches():
                ...
                accuracy.update(scores, y)                     # before backward
                ...
            print(accuracy.compute())                          # on all workers alike
            accuracy.reset()

By itself a metric would count this worker's shares, and torchmetrics, which adds up over ranks as it computes, would
lose what a lost worker had counted. So what each share adds to a metric's states travels with the step's sums, and
counts where the step is applied: once, whatever happens to the workers.

Checked with torchmetrics 1.9.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torchmetrics
from torchmetrics.utilities import dim_zero_sum

from elastic.errors import ConfigError

if TYPE_CHECKING:
    from elastic.run import Run


class Synced:
    """A torchmetrics metric, or collection of them, over whole batches of a loop over `Run.batches` or `Run.steps`.

    Hand it over, `Run(extra={"accuracy": accuracy})`, and have it follow the run before the loop. Between two steps
    `compute` and `reset` are those of the metric, over all steps that were applied since it was reset.
    (`for step in run` has `step.add` alone.)

    Args:
        metric: Its states are sums, as those of accuracies, confusion matrices, errors and means are. They travel in
            each step, so they should not be of more than some thousand numbers.

    Raises:
        ConfigError: It keeps something else: all scores, as AUROC without `thresholds=` does, a largest value. Compute
            those over a whole data set, from what `Run.evaluate` sums, or on the coordinator.
    """

    __slots__ = ("__weakref__", "_add", "_metric", "_states", "_totals")  # no attribute that looks like the run's

    def __init__(self, metric: torchmetrics.Metric | torchmetrics.MetricCollection) -> None:
        if isinstance(metric, torchmetrics.MetricCollection):  # those that share states would not update their own
            members = dict(metric.items(keep_base=True, copy_state=False))
            metric = torchmetrics.MetricCollection(
                members, prefix=metric.prefix, postfix=metric.postfix, compute_groups=False
            )
        self._metric = metric
        self._states = {f"{path}.{name}".removeprefix("."): (one, name) for path, one, name in _states(metric)}
        self._totals = self._now()
        self._add: Callable[[Mapping[str, Any]], None] | None = None

    def follow(self, run: Run) -> None:
        """Count what that run applies. Raises ConfigError where the run was not handed it."""
        own = next((name for name, one in run.extra.items() if one is self), None)
        if own is None:
            raise ConfigError(
                f"Synced({type(self._metric).__name__}) is not handed over: no save would hold what it has counted, "
                'and who joins would begin anew\n  next  Run(extra={"accuracy": accuracy})'
            )
        names = {state: f"{own}.{state}" for state in self._states}

        def add(states: Mapping[str, torch.Tensor]) -> None:
            run.add(**{names[state]: value for state, value in states.items()})

        def applied(_: Run, step: Any) -> None:
            for state, total in self._totals.items():
                if names[state] in step.sums:
                    added = torch.as_tensor(step.sums[names[state]], dtype=total.dtype, device=total.device)
                    self._totals[state] = total + added
            self._put(self._totals)

        self._add = add
        run.on_apply(applied)

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Count examples as the metric's own does, with the same arguments; in the loop's body, before `backward`."""
        self._take(*args, **kwargs)
        self._put(self._totals)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Count as `update` does; return the metric of these alone, which are this worker's."""
        self._take(*args, **kwargs)
        alone = self._metric.clone().compute()
        self._put(self._totals)
        return alone

    def compute(self) -> Any:
        """Return the metric over all examples of the steps that were applied since `reset`."""
        return self._metric.compute()

    def reset(self) -> None:
        """Forget what was counted. Call it between two steps, on all workers."""
        self._metric.reset()
        self._totals = self._now()

    def state_dict(self) -> dict[str, Any]:
        return dict(self._totals)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._totals = {name: state[name].to(now.device) for name, now in self._now().items()}
        self._put(self._totals)

    def _take(self, *args: Any, **kwargs: Any) -> None:
        """Add what these arguments alone come to to the step's sums, and leave it in the metric. Raises ConfigError."""
        if self._add is None:
            raise ConfigError(
                f"Synced({type(self._metric).__name__}) follows no run, and would count this worker's shares alone\n"
                '  next  accuracy.follow(run) before the loop; and Run(extra={"accuracy": accuracy})'
            )
        self._metric.reset()
        self._metric.update(*args, **kwargs)
        self._add(self._now())

    def _now(self) -> dict[str, torch.Tensor]:
        return {state: getattr(one, name).detach().clone() for state, (one, name) in self._states.items()}

    def _put(self, values: Mapping[str, torch.Tensor]) -> None:
        for state, (one, name) in self._states.items():
            setattr(one, name, values[state].clone())


def _states(metric: torch.nn.Module) -> Iterator[tuple[str, torchmetrics.Metric, str]]:
    """Yield (path, metric, name) of the states of a metric and of those in it. Raises ConfigError if one is no sum."""
    for path, one in metric.named_modules():
        if not isinstance(one, torchmetrics.Metric):
            continue
        for name in one.metric_state:
            if one._reductions[name] is not dim_zero_sum:
                raise ConfigError(
                    f"{type(one).__name__} keeps {name}, which is no sum over examples, and a step adds up sums\n"
                    "  next  one whose states are sums, as AUROC(thresholds=100) has them; else over a whole data set, "
                    "between two\n        steps: from what run.evaluate adds up, or in run.on_coordinator(function)"
                )
            yield path, one, name
