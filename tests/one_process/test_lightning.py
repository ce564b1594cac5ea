"""Lightning's Trainer in a run of one worker: what it knows after a resume, and what it is refused by name."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, TensorDataset

import elastic
from elastic.errors import ConfigError, StepError
from elastic.state.modules import roots
from tests.kit.arguments import grouped

pytest.importorskip("lightning")

import lightning as L
from lightning.pytorch import callbacks as those

from elastic.integrations.lightning import ElasticStrategy

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's advice on loaders


def points() -> TensorDataset:
    x = torch.randn(48, 4, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, (x.sum(dim=1) > 0).long())


class Module(L.LightningModule):  # type: ignore[misc]  # it has no types
    def __init__(self) -> None:
        super().__init__()
        elastic.seed(1)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


class Cut(L.Callback):  # type: ignore[misc]
    def __init__(self, at: int | None) -> None:
        self.at = at

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == self.at:
            raise RuntimeError("cut")


def fit(
    url: Path | str | None,
    *callbacks: Any,
    module: type = Module,
    cut: int | None = None,
    loader: Any = None,
    **named: Any,
) -> Any:
    L.seed_everything(0, verbose=False)
    model = module()
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    strategy = {"strategy": ElasticStrategy(str(url), virtual_workers=3, save_every=1)} if url is not None else {}
    trainer = L.Trainer(**{
        "max_epochs": 4, "accelerator": "cpu", "callbacks": [*callbacks, Cut(cut)], **quiet, **strategy, **named
    })  # fmt: skip
    if loader is None:
        loader = DataLoader(points(), batch_size=12, shuffle=True)
    trainer.fit(model, None if loader == "its own" else loader)
    return model


class Counting(Module):
    """What a module adds to Lightning's checkpoints by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.counter = Counter()

    def on_train_batch_end(self, *_: Any) -> None:
        self.counter.steps += 1

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["steps"] = self.counter.steps

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.counter.steps = checkpoint["steps"]


class Counter:
    steps = 0


@pytest.mark.parametrize(
    ("module", "callbacks"),
    [(Counting, []), (Module, [lambda: those.EMAWeightAveraging(decay=0.9)])],
    ids=["of the module", "of averaged weights"],
)
def test_what_hooks_add_to_a_checkpoint_is_part_of_the_run(module: type, callbacks: Any, tmp_path: Path) -> None:
    whole = fit(tmp_path / "whole", *[make() for make in callbacks], module=module)
    with pytest.raises(RuntimeError, match="cut"):
        fit(tmp_path / "cut", *[make() for make in callbacks], module=module, cut=7)
    resumed = fit(tmp_path / "cut", *[make() for make in callbacks], module=module)

    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))
    if module is Counting:
        assert whole.counter.steps == resumed.counter.steps == 16


def test_what_metrics_cache_is_no_state_of_the_run(tmp_path: Path) -> None:
    """A worker that had joined gave its state with others, without a cache that they had, and ended with KeyError."""
    carried: list[dict[str, nn.Module]] = []

    class Looks(L.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            carried.append(roots({}, {"trainer": trainer.strategy._progress}))

    fit(tmp_path, Looks())
    assert carried
    assert [name for found in carried for name in found if "_results" in name] == []


class OneCycle(Module):
    """Lightning's documented idiom for a schedule that must know the run's end."""

    def __init__(self) -> None:
        super().__init__()
        self.loaders = 0

    def train_dataloader(self) -> Any:
        self.loaders += 1
        return DataLoader(points(), batch_size=12, shuffle=True)

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        self.asked = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=self.asked)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class AskedInSetup(OneCycle):
    def setup(self, stage: str) -> None:
        assert self.trainer.estimated_stepping_batches == 16


@pytest.mark.parametrize("module", [OneCycle, AskedInSetup])
def test_a_module_may_ask_for_the_number_of_steps_before_it_has_an_optimizer(module: type, tmp_path: Path) -> None:
    """The loader is made then, before there is anything that a run could train."""
    whole = fit(tmp_path / "whole", module=module, loader="its own")
    with pytest.raises(RuntimeError, match="cut"):
        fit(tmp_path / "cut", module=module, loader="its own", cut=7)
    resumed = fit(tmp_path / "cut", module=module, loader="its own")

    assert (whole.asked, whole.loaders, whole.trainer.global_step) == (16, 1, 16)
    assert resumed.trainer.global_step == 16
    without_elastic = fit(None, module=module, loader="its own")
    rates = {float(one.trainer.optimizers[0].param_groups[0]["lr"]) for one in (whole, resumed, without_elastic)}
    assert len(rates) == 1
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))


class Partly(Module):
    """Most shares have no label, and their means are 0/0."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        loss = F.cross_entropy(self.net(x), torch.where(x[:, 0] > 1.0, y, -100))
        self.log("loss", loss)
        self.log("of examples", loss, batch_size=len(y))
        return loss

    def on_train_batch_end(self, *_: Any) -> None:
        for name, value in self.trainer.logged_metrics.items():
            assert torch.isfinite(value), name


def test_a_share_that_counts_nothing_leaves_what_is_logged_a_number(tmp_path: Path) -> None:
    counts: Any = lambda batch: int((batch[0][:, 0] > 1.0).sum())  # noqa: E731
    strategy = ElasticStrategy(str(tmp_path), virtual_workers=12, batch_size=24, **grouped(count=counts, on_bad="stop"))
    assert fit(None, module=Partly, strategy=strategy).trainer.global_step == 8


class Manual(Module):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False


class Transfers(Module):
    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return batch


class Maximum(Module):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.log("most", loss, reduce_fx="max")
        return loss


class Skewed(RandomSampler):
    """An order of one's own."""


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield from (points()[i] for i in range(4))


def test_a_loader_that_does_not_shuffle_gives_the_examples_in_their_order(tmp_path: Path) -> None:
    """As under Lightning alone, whatever the number of workers; an order that the strategy is given stays."""
    read: list[int] = []

    class Noting(TensorDataset):
        def __getitem__(self, index: int) -> Any:
            read.append(index)
            return super().__getitem__(index)  # type: ignore[no-untyped-call]

    data = Noting(*points().tensors)
    unchecked = ElasticStrategy(str(tmp_path / "run"), virtual_workers=3, checks=elastic.Checks(cross_check=None))
    fit(None, loader=DataLoader(data, batch_size=12), max_epochs=2, strategy=unchecked)
    assert read[-96:] == [*range(48), *range(48)]


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"module": Manual}, "manual optimization"),
        ({"module": Transfers}, "on_before_batch_transfer"),
        ({"module": Maximum}, "logs 'most' as a Tensor, reduced by max"),
        ({"accumulate_grad_batches": 2}, "accumulate_grad_batches=2"),
        ({"limit_train_batches": 2}, "limit_train_batches=2"),
        ({"overfit_batches": 1}, "limit_train_batches=1|overfit_batches"),
        ({"fast_dev_run": True}, "limit_train_batches=1|fast_dev_run"),
        ({"reload_dataloaders_every_n_epochs": 1}, "reload_dataloaders_every_n_epochs"),
        ({"max_epochs": -1}, "max_epochs and max_steps without an end"),
        ({"max_time": "00:00:01:00"}, "a Timer, or max_time"),
        ({"callbacks": [those.Timer("00:00:01:00")]}, "a Timer, or max_time"),
        ({"val_check_interval": "00:00:10:00"}, "val_check_interval= in time"),
        ({"callbacks": [those.ModelCheckpoint(train_time_interval=timedelta(minutes=1))], "enable_checkpointing": True},
         "a ModelCheckpoint with train_time_interval"),
        ({"callbacks": [those.GradientAccumulationScheduler({2: 2})]}, "a GradientAccumulationScheduler"),
        ({"callbacks": [those.LearningRateFinder(num_training_steps=5)]}, "a LearningRateFinder"),
        ({"callbacks": [those.BatchSizeFinder()]}, "a BatchSizeFinder"),
        ({"callbacks": [those.StochasticWeightAveraging(swa_lrs=1e-3)]}, "a StochasticWeightAveraging"),
        ({"sync_batchnorm": True}, "sync_batchnorm"),
        ({"loader": [DataLoader(points(), batch_size=12, shuffle=True) for _ in range(2)]}, "or there are several"),
        ({"loader": DataLoader(points(), batch_size=12, sampler=RandomSampler(points(), replacement=True))},
         r"reads by a RandomSampler\(replacement=True, num_samples=48\)"),
        ({"loader": DataLoader(points(), batch_size=12, sampler=RandomSampler(points(), num_samples=24))},
         r"reads by a RandomSampler\(replacement=False, num_samples=24\)"),
        ({"loader": DataLoader(points(), batch_size=12, sampler=Skewed(points()))}, "reads by a Skewed"),
        ({"loader": DataLoader(Endless(), batch_size=12)}, "an IterableDataset to train on"),
        ({"strategy": ElasticStrategy(virtual_workers=3)}, "no url"),
        ({"strategy": ElasticStrategy("somewhere")}, "no virtual_workers"),
    ],
)  # fmt: skip
def test_what_cannot_be_carried_is_refused_by_name(given: dict[str, Any], match: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=match):
        fit(None if "strategy" in given else tmp_path, **given)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"model": Module}, r"model, which the Trainer decides\n  next  trainer\.fit\(model"),
        ({"epochs": 3}, r"epochs, which the Trainer decides\n  next  Trainer\(max_epochs=\)"),
        ({"update": elastic.Update(scaler=torch.amp.GradScaler("cpu"))}, "a scaler, which a trainer's loop"),
        ({"data": elastic.Data(num_workers=2)}, r"data=Data\(num_workers=\.\.\.\), which the Trainer decides"),
        ({"save_evry": 3}, r"Run has no argument save_evry\n  next  save_every="),
        ({"keep": 3}, r"keep is given as saving=Saving\(keep=\.\.\.\)"),
    ],
)
def test_an_argument_that_is_not_for_a_strategy_is_refused_when_it_is_made(given: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        ElasticStrategy("somewhere", virtual_workers=3, **given)


class Skips(Module):
    def training_step(self, batch: Any, index: int) -> Any:
        return None if index == 2 else super().training_step(batch, index)


def test_a_batch_that_gives_no_loss_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StepError, match="training_step returned no loss for a share of step 2"):
        fit(tmp_path, module=Skips)


def test_a_run_goes_on_from_what_it_saved_itself(tmp_path: Path) -> None:
    trainer = L.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
                        strategy=ElasticStrategy(str(tmp_path / "run"), virtual_workers=3))  # fmt: skip
    plain = L.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False)
    plain.strategy.connect(Module())
    plain.save_checkpoint(tmp_path / "one.ckpt")
    with pytest.raises(ConfigError, match="ckpt_path"):
        trainer.fit(Module(), DataLoader(points(), batch_size=12, shuffle=True), ckpt_path=str(tmp_path / "one.ckpt"))


class Unpacks(L.Callback):  # type: ignore[misc]
    def __init__(self, look: Callable[[Any], Any]) -> None:
        self.look = look

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, *_: Any) -> None:
        self.look(batch)


@pytest.mark.parametrize(("look", "what"), [(tuple, "unpacked"), (lambda batch: batch[0].shape, r"asked for \[0\]")])
def test_a_hook_that_looks_for_examples_in_a_whole_step_is_refused_by_name(
    tmp_path: Path, look: Callable[[Any], Any], what: str
) -> None:
    """It was a ValueError or a KeyError of Python's, at one worker too."""
    with pytest.raises(StepError, match=f"a hook around a batch has {what}.*a whole step(.|\n)*in training_step"):
        fit(tmp_path, Unpacks(look))
