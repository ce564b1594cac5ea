"""transformers' Trainer in a run of one worker: what it knows after a resume, and what it is refused by name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}

import pytest
import torch
from torch import nn

import elastic
from elastic.errors import ConfigError, StepError
from elastic.events.reading import read_events
from elastic.report.report import report
from tests.kit.arguments import grouped

pytest.importorskip("transformers", reason="needs transformers, and so Python 3.11")

import transformers
from accelerate.state import AcceleratorState

from elastic.integrations.accelerate import Accelerator
from elastic.integrations.transformers import ElasticTrainer  # which imports it


class Texts(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __init__(self, length: int, seed: int) -> None:
        self.rows = torch.randint(0, 30, (length, 8), generator=torch.Generator().manual_seed(seed))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


class Endless(torch.utils.data.IterableDataset[dict[str, torch.Tensor]]):
    def __iter__(self) -> Any:
        yield from (Texts(4, 1)[i] for i in range(4))


class Cut(transformers.TrainerCallback):  # type: ignore[misc]  # it has no types
    def __init__(self, at: int | None) -> None:
        self.at = at

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.at:
            raise KeyboardInterrupt


def trainer(url: Path, *callbacks: Any, kind: type = ElasticTrainer, given: Any = None, **arguments: Any) -> Any:
    elastic.seed(0)
    transformers.set_seed(0)
    named: dict[str, Any] = {
        "output_dir": f"{url}-out",
        "num_train_epochs": 3,
        "logging_steps": 2,
        "eval_strategy": "steps",
        "eval_steps": 2,
        "save_strategy": "no",
        "metric_for_best_model": "eval_loss",
        "report_to": "none",
        "use_cpu": True,
        "seed": 0,
    }
    size = {"vocab_size": 30, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 1}
    network = transformers.GPT2LMHeadModel(transformers.GPT2Config(**size, bos_token_id=None, eos_token_id=None))
    dataset = arguments.pop("dataset", Texts(32, 1))
    return kind(
        model=network,
        args=transformers.TrainingArguments(**(named | arguments)),
        train_dataset=dataset,
        eval_dataset=Texts(8, 2),
        callbacks=list(callbacks),
        elastic={"url": str(url), "batch_size": 8, "virtual_workers": 4, "save_every": 1} | (given or {}),
    )


def known(ended: Any) -> Any:
    """The log without times, and the weights."""
    log = [{k: v for k, v in entry.items() if not k.endswith(("_runtime", "_per_second"))} for entry in
           ended.state.log_history]  # fmt: skip
    return log, [parameter.tolist() for parameter in ended.model.parameters()]


def test_what_is_evaluated_at_the_start_is_evaluated_once(tmp_path: Path) -> None:
    """A second time it counts for the patience of early stopping, and the run would end earlier."""

    def train(url: Path, cut: int | None = None) -> Any:
        stopping = transformers.EarlyStoppingCallback(early_stopping_patience=3, early_stopping_threshold=10.0)
        made = trainer(url, stopping, Cut(cut), eval_on_start=True)
        made.train()
        return made

    whole = train(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "cut", 3)
    resumed = train(tmp_path / "cut")

    assert whole.state.global_step == resumed.state.global_step == 8  # of 12
    assert known(resumed) == known(whole)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"gradient_accumulation_steps": 2}, "gradient_accumulation_steps=2: a run cannot carry"),
        ({"train_sampling_strategy": "sequential"}, "train_sampling_strategy="),
        ({"auto_find_batch_size": True}, "auto_find_batch_size"),
        ({"enable_jit_checkpoint": True}, "enable_jit_checkpoint"),
        ({"include_num_input_tokens_seen": "all"}, "include_num_input_tokens_seen='all'"),
        ({"dataset": Endless(), "max_steps": 4}, "an IterableDataset to train on"),
        ({"given": {"virtual_workers": None, "steps": 3}}, "steps, which the Trainer decides"),
        (
            {"given": {"update": elastic.Update(scaler=torch.amp.GradScaler("cpu"))}},
            "a scaler, which a trainer's loop does not call",
        ),
        (
            {"given": {"virtual_worker": 3}},
            r"Run has no argument virtual_worker\n  next  virtual_workers=",
        ),
    ],
)
def test_what_cannot_be_carried_is_refused_by_name(arguments: dict[str, Any], match: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=match):
        trainer(tmp_path, **arguments)


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        ("use_liger_kernel", True, "use_liger_kernel"),
        ("optim", "lomo", "optim='lomo'"),
        ("optim", "galore_adamw_layerwise", "optim='galore_adamw_layerwise'"),
        ("_n_gpu", 2, "n_gpu=2"),
    ],
)
def test_what_this_machine_lacks_is_refused_before_it_is_asked_for(
    name: str, value: Any, match: str, tmp_path: Path
) -> None:
    """Arguments whose packages or devices are not here: refused by what they say, on any machine."""
    from elastic.integrations.transformers import _check

    made = trainer(tmp_path)
    object.__setattr__(made.args, name, value)
    with pytest.raises(ConfigError, match=match):
        _check(made, {"url": "x", "virtual_workers": 2})


def test_an_elastic_argument_that_is_missing_is_named(tmp_path: Path) -> None:
    from elastic.integrations.transformers import _check

    with pytest.raises(ConfigError, match="lacks url, virtual_workers"):
        _check(trainer(tmp_path), {})


@pytest.mark.parametrize("given", [("out/checkpoint-4",), {"resume_from_checkpoint": True}, {"trial": {"lr": 1}}])
def test_a_run_goes_on_from_what_it_saved_itself(given: Any, tmp_path: Path) -> None:
    made = trainer(tmp_path)
    with pytest.raises(ConfigError, match="goes on from what it saved itself"):
        made.train(*given) if isinstance(given, tuple) else made.train(**given)


class OwnSampler(ElasticTrainer):
    def _get_train_sampler(self, *_: Any) -> Any:
        return torch.utils.data.SequentialSampler(self.train_dataset)


class Drawing(ElasticTrainer):
    def _get_train_sampler(self, *_: Any) -> Any:
        return torch.utils.data.RandomSampler(self.train_dataset, replacement=True, num_samples=16)


class OwnLoader(ElasticTrainer):
    def get_train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(self.train_dataset, batch_size=8)


@pytest.mark.parametrize(
    ("kind", "match"),
    [
        (OwnSampler, "sampler is a SequentialSampler"),
        (Drawing, r"RandomSampler\(replacement=True, num_samples=16\)"),
        (OwnLoader, "get_train_dataloader is overridden"),
    ],
)
def test_an_order_of_its_own_is_refused(kind: type, match: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=match):
        trainer(tmp_path, kind=kind).train()


@pytest.mark.parametrize(
    "said",
    [{"WORLD_SIZE": "2"}, {"LOCAL_WORLD_SIZE": "2"}, {"LOCAL_WORLD_SIZE": "1", "ELASTIC_SEVERAL_NODES": "1"}],
    ids=["torchrun", "elastic run", "elastic run, one worker a node"],
)
def test_a_trainer_that_is_not_elastic_does_not_train_by_itself_under_a_launcher(
    said: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = trainer(tmp_path)
    plain = transformers.Trainer(
        model=nn.Linear(2, 2), args=made.args, train_dataset=Texts(4, 1), eval_dataset=Texts(4, 1)
    )
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="is no ElasticTrainer"):
        plain.train()


class Padded(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Of one label each, or of ten: a share of four has 4 or 40, or none at all."""

    def __init__(self, counts: list[int]) -> None:
        self.counts = counts

    def __len__(self) -> int:
        return len(self.counts)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        drawn = torch.randint(0, 6, (2, 10), generator=torch.Generator().manual_seed(index))
        labels = torch.where(torch.arange(10) < self.counts[index], drawn[1], -100)
        return {"input_ids": drawn[0], "labels": labels}


class Tagger(nn.Module):
    """A forward that takes no count of labels, as one's own modules have it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Embedding(6, 8), nn.Linear(8, 6))

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> Any:
        scores = self.net(input_ids)
        return {"loss": self.loss(scores, labels), "logits": scores}

    def loss(self, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten())


class Shifted(Tagger):
    def loss(self, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return super().loss(scores[:, :-1], labels[:, 1:])


class ByHand(Tagger):
    """A mean over what is labelled, of which the graph says nothing."""

    def loss(self, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        counts = labels.ne(-100)
        chosen = scores.log_softmax(-1).gather(-1, labels.clamp(min=0)[..., None])[..., 0]
        return -(chosen * counts).sum() / counts.sum()


def labelled(batch: Any) -> int:
    return int(batch["labels"].ne(-100).sum())


def tagged(url: Path, kind: type[Tagger], dataset: Padded, **given: Any) -> Any:
    """One step over all of the dataset, in shares of four."""
    elastic.seed(0)
    made = ElasticTrainer(
        model=kind(),
        args=transformers.TrainingArguments(
            output_dir=f"{url}-out", max_steps=1, learning_rate=0.5, optim="sgd", max_grad_norm=1e9,
            lr_scheduler_type="constant", logging_steps=1, save_strategy="no", report_to="none", use_cpu=True, seed=0,
        ),
        train_dataset=dataset,
        elastic={"url": str(url), "batch_size": len(dataset), "virtual_workers": len(dataset) // 4}
        | grouped(given),
    )  # fmt: skip
    made.train()
    return made


def stepped_whole(kind: type[Tagger], dataset: Padded) -> tuple[Any, float]:
    """Without elastic, by the loss of the whole batch."""
    elastic.seed(0)
    network = kind()
    batch = torch.utils.data.default_collate([dataset[i] for i in range(len(dataset))])
    loss = network(**batch)["loss"]
    loss.backward()
    torch.optim.SGD(network.parameters(), lr=0.5).step()
    return network, loss.item()


@pytest.mark.parametrize(
    ("kind", "given"),
    [(Tagger, {}), (Shifted, {"count": lambda batch: labelled({"labels": batch["labels"][:, 1:]})}),
     (ByHand, {"count": labelled})],
)  # fmt: skip
@pytest.mark.parametrize("counts", [[1, 10, 10, 1, 1, 2, 1, 7], [9, 0, 0, 0, 0, 0, 0, 0]], ids=["unequal", "of none"])
def test_padded_labels_weigh_by_their_number(kind: type, given: Any, counts: list[int], tmp_path: Path) -> None:
    """A module whose forward takes no count is the usual one, and a share of few labels must not count for many. One
    of none has 0/0 for its mean, which is no bad step."""
    counts = counts if kind is not Shifted else [2 * one for one in counts]
    made = tagged(tmp_path, kind, Padded(counts), on_bad="stop", **given)
    network, loss = stepped_whole(kind, Padded(counts))

    pairs = zip(made.model.parameters(), network.parameters(), strict=True)
    assert all(torch.allclose(one, other, rtol=1e-4, atol=1e-6) for one, other in pairs)
    assert made.state.log_history[0]["loss"] == pytest.approx(loss, rel=1e-3)


@pytest.mark.parametrize("kind", [Shifted, ByHand])
def test_a_loss_that_is_a_mean_over_something_else_is_refused(kind: type, tmp_path: Path) -> None:
    with pytest.raises(StepError, match=rf"the loss of {kind.__name__} in step 0 is a mean over something else"):
        tagged(tmp_path, kind, Padded([1, 10, 10, 1, 1, 2, 1, 7]))


def test_a_mean_over_full_labels_needs_no_words(tmp_path: Path) -> None:
    """Where every example has as many labels as any other, a mean over labels is one over examples."""
    made = tagged(tmp_path, ByHand, Padded([10] * 8))
    network, _ = stepped_whole(ByHand, Padded([10] * 8))

    pairs = zip(made.model.parameters(), network.parameters(), strict=True)
    assert all(torch.allclose(one, other, rtol=1e-4, atol=1e-6) for one, other in pairs)


def test_the_best_checkpoint_is_one_that_was_saved(tmp_path: Path) -> None:
    """Evaluations may come more often than saves: the best of them has no folder, which the end would look for."""
    made = trainer(tmp_path / "run", eval_steps=1, save_strategy="steps", save_steps=2, save_total_limit=1,
                   learning_rate=0.0, load_best_model_at_end=False)  # fmt: skip
    made.train()

    assert made.state.best_global_step == 1  # with a rate of 0, none is better than the first
    assert made.state.best_model_checkpoint is None


def test_what_is_told_of_a_batch_is_added_up(tmp_path: Path) -> None:
    """What the refusals name is a way."""

    class Telling(ElasticTrainer):
        run: Any

        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            if model.training:
                self.run.add(words=torch.tensor(float(inputs["input_ids"].numel())))
            return super().compute_loss(model, inputs, *args, **kwargs)

        def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
            words = {"words": float(self.run.sums["words"])} if self.run.sums else {}  # none where the run is over
            super().log(logs | words, *args, **kwargs)

    made = trainer(tmp_path, kind=Telling)
    made.train()
    assert {entry.get("words") for entry in made.state.log_history[:-1]} == {64.0}
    values = report(read_events(tmp_path)).last_values
    assert values.keys() == {"loss", "words"}, "what the Trainer adds up for itself is not shown"


def test_a_second_training_is_refused(tmp_path: Path) -> None:
    made = trainer(tmp_path)
    made.train()
    with pytest.raises(ConfigError, match=r"train\(\) was called a second time"):
        made.train()


@pytest.mark.parametrize("of_agent", [{"ELASTIC_WORLD": "RANK,WORLD_SIZE"}, {"ELASTIC_REPLICA": "2:host-a1b2c3"}])
def test_an_accelerator_may_be_made_before_the_run_where_elastic_run_has_given_ranks(
    monkeypatch: pytest.MonkeyPatch, of_agent: dict[str, str]
) -> None:
    """Both that and the Trainer's part hide the launcher, one in the other."""
    ranks = {"ELASTIC_CHANNEL": "7", "LOCAL_RANK": "1", "RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    for name, value in (ranks | of_agent).items():
        monkeypatch.setenv(name, value)
    AcceleratorState._reset_state(reset_partial_state=True)
    try:
        accelerator = Accelerator()
        assert (accelerator.num_processes, accelerator.is_main_process) == (1, False)
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)
    assert os.environ["RANK"] == "1"
