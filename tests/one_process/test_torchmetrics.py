"""A metric of torchmetrics counts whole batches, and goes on with the run; one beside the run is told of by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from elastic.errors import ConfigError, StepError
from tests.one_process.test_plain_loop import assert_goes_on_the_same
from tests.one_process.test_plain_misuse import Plain, good

torchmetrics = pytest.importorskip("torchmetrics")
of_classes = pytest.importorskip("torchmetrics.classification")
elastic_torchmetrics = pytest.importorskip("elastic.integrations.torchmetrics")


def several() -> Any:
    """Two that share their states, and one whose states are another's."""
    accuracy, recall = (of_classes.MulticlassAccuracy(2, average="micro"), of_classes.MulticlassRecall(2))
    auroc = of_classes.MulticlassAUROC(2, thresholds=5)
    return torchmetrics.MetricCollection({"accuracy": accuracy, "recall": recall, "auroc": auroc}, prefix="train/")


def test_metrics_go_on_with_the_run_and_are_of_all_examples(tmp_path: Path) -> None:
    def train(url: Path, cut_after: int | None) -> list[Any]:
        found: list[Any] = []
        metrics = elastic_torchmetrics.Synced(several())
        loss = elastic_torchmetrics.Synced(torchmetrics.MeanMetric())
        loop = Plain(
            url, epochs=2, extra={"metrics": metrics, "loss": loss}, cross_check=None if url.name == "whole" else 0.0
        )
        with loop.run as run:
            metrics.follow(run)
            loss.follow(run)
            for _ in run.epochs():
                by_itself = several()
                for x, y in run.batches():
                    loop.optimizer.zero_grad()
                    scores = loop.model(x)
                    mean: Any = torch.nn.functional.cross_entropy(scores, y)
                    metrics.update(scores, y)
                    loss(mean, len(y))
                    by_itself.update(scores, y)
                    mean.backward()
                    loop.optimizer.step()
                    if run.step_index == cut_after:
                        raise KeyboardInterrupt
                values = {name: float(value) for name, value in metrics.compute().items()}
                if cut_after is None and run.finished:
                    found.append((values, float(loss.compute())))
                if url.name == "whole":
                    assert values == {name: float(value) for name, value in by_itself.compute().items()}
                metrics.reset()
                loss.reset()
        return found

    assert_goes_on_the_same(train, tmp_path)


def test_what_is_no_sum_comes_late_or_follows_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="MulticlassAUROC keeps preds, which is no sum over examples"):
        elastic_torchmetrics.Synced(of_classes.MulticlassAUROC(2, thresholds=None))

    accuracy = elastic_torchmetrics.Synced(of_classes.MulticlassAccuracy(2))

    def late(loop: Plain, x: torch.Tensor, y: torch.Tensor) -> None:
        good(loop, x, y)
        accuracy.update(loop.model.eval()(x), y)

    with pytest.raises(ConfigError, match=r"follows no run(.|\n)*accuracy\.follow\(run\)"):
        Plain(tmp_path / "alone").train(late)
    with pytest.raises(ConfigError, match=r'is not handed over(.|\n)*Run\(extra=\{"accuracy": accuracy\}\)'):
        accuracy.follow(Plain(tmp_path / "apart").run)
    loop = Plain(tmp_path / "late", extra={"accuracy": accuracy})
    accuracy.follow(loop.run)
    with pytest.raises(StepError, match=r"run\.add was called after the backward pass(.|\n)*call it before backward"):
        loop.train(late)
