"""A small sharded model in the loops of other frameworks: Accelerate, Fabric, Hugging Face's Trainer, Lightning's.

With --whole it is not sharded: what its bits are without any of this. Each worker prints one line: the digest of the
whole weights, and how many steps there were. What the framework saves at the end lies beside the run, in URL-saved.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import elastic
import elastic_checkpoint

BATCH, VIRTUAL_WORKERS = 24, 12


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(10, 10), nn.LayerNorm(10), nn.GELU(), nn.Dropout(0.1)) for _ in range(2)
        )
        self.out = nn.Linear(10, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x)
        scores: torch.Tensor = self.out(x)
        return scores


def sharded(network: Network, mesh: Any) -> Network:
    from torch.distributed.fsdp import fully_shard

    for layer in network.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(network, mesh=mesh)
    return network


def points() -> TensorDataset:
    x = torch.randn(BATCH * 4 - 7, 10, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, x[:, :3].argmax(1))


def gpt() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(vocab_size=61, n_positions=16, n_embd=20, n_layer=2, n_head=2, bos_token_id=None, eos_token_id=None)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("framework", choices=("accelerate", "fabric", "transformers", "lightning"))
    parser.add_argument("url")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--clip", type=float, default=0.0)
    parser.add_argument("--kill", type=int, help="the step in which the run's first worker of rank 3 ends")
    options = parser.parse_args()
    elastic.seed(0)
    torch.manual_seed(0)
    run, model = globals()[f"_{options.framework}"](options)
    told = {"rank": run.rank, "weights": elastic_checkpoint.digest(model), "steps": run.step_index}
    print(json.dumps(told), flush=True)


def _die(options: argparse.Namespace, run: elastic.Run) -> None:
    """End here if it is planned."""
    died = Path(f"{options.url}-died")
    if run.step_index == options.kill and run.rank == 3 and not died.exists():
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def _loop(options: argparse.Namespace, framework: Any, save: Any) -> tuple[elastic.Run, nn.Module]:
    """Train in a loop of one's own, which Accelerate and Fabric have alike."""
    network = Network() if options.whole else sharded(Network(), elastic.device_mesh())
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2, foreach=True)
    with elastic.Run(
        options.url,
        model=network,
        optimizer=optimizer,
        dataset=points(),
        batch_size=BATCH,
        virtual_workers=VIRTUAL_WORKERS,
        steps=options.steps,
        save_every=2,
    ) as run:
        framework.follow(run)
        prepare = framework.prepare if options.framework == "accelerate" else framework.setup
        model, wrapped = prepare(network, optimizer)
        for _ in run.epochs():
            for x, y in run.batches():
                _die(options, run)
                wrapped.zero_grad()
                framework.backward(F.cross_entropy(model(x), y))
                if options.clip and options.framework == "accelerate":
                    framework.clip_grad_norm_(model.parameters(), options.clip)
                elif options.clip:
                    framework.clip_gradients(model, wrapped, max_norm=options.clip)
                wrapped.step()
        run.on_coordinator(lambda: save(model, wrapped))
    return run, network


def _accelerate(options: argparse.Namespace) -> tuple[elastic.Run, nn.Module]:
    from elastic.integrations.accelerate import Accelerator

    accelerator = Accelerator()
    return _loop(options, accelerator, lambda model, _: accelerator.save_model(model, f"{options.url}-saved"))


def _fabric(options: argparse.Namespace) -> tuple[elastic.Run, nn.Module]:
    from elastic.integrations.fabric import Fabric

    fabric = Fabric()

    def save(model: nn.Module, optimizer: Any) -> None:
        fabric.save(f"{options.url}-saved", {"model": model, "optimizer": optimizer})

    return _loop(options, fabric, save)


def _transformers(options: argparse.Namespace) -> tuple[elastic.Run, nn.Module]:
    from transformers import TrainerCallback, TrainingArguments

    from elastic.integrations.transformers import ElasticTrainer

    texts = [
        {"input_ids": row, "labels": row}
        for row in torch.randint(61, (BATCH * 4 - 7, 12), generator=torch.Generator().manual_seed(1))
    ]
    of_fsdp: dict[str, Any] = {
        "fsdp": "full_shard auto_wrap",
        "fsdp_config": {"fsdp_version": 2, "transformer_layer_cls_to_wrap": ["GPT2Block"]},
    }
    arguments = TrainingArguments(
        f"{options.url}-out",
        max_steps=options.steps,
        per_device_train_batch_size=BATCH,
        learning_rate=1e-2,
        max_grad_norm=options.clip,
        optim="adamw_torch",
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=2,
        save_steps=2,
        load_best_model_at_end=True,
        report_to="none",
        seed=0,
        **({} if options.whole else of_fsdp),
    )
    trainer = ElasticTrainer(
        gpt(),
        arguments,
        train_dataset=texts,
        eval_dataset=texts[:30],
        elastic={"url": options.url, "virtual_workers": VIRTUAL_WORKERS, "save_every": 2},
    )

    class Dying(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            assert trainer.run is not None
            _die(options, trainer.run)

    trainer.add_callback(Dying())
    trainer.train()
    trainer.save_model(f"{options.url}-saved")
    assert trainer.run is not None
    return trainer.run, trainer.model


def _lightning(options: argparse.Namespace) -> tuple[elastic.Run, nn.Module]:
    import lightning as L
    from lightning.pytorch.callbacks import ModelCheckpoint
    from torch.utils.data import DataLoader
    from torchmetrics import SumMetric

    from elastic.integrations.lightning import ElasticStrategy

    class Module(L.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.network: Any = None
            self.right = SumMetric()

        def configure_model(self) -> None:
            if self.network is None:
                self.network = Network() if options.whole else sharded(Network(), self.device_mesh["data_parallel"])

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            _die(options, self.trainer.strategy.run)
            loss = F.cross_entropy(self.network(batch[0]), batch[1])
            self.log("loss", loss)
            return loss

        def validation_step(self, batch: Any, _: int) -> None:
            self.right((self.network(batch[0]).argmax(1) == batch[1]).sum())
            self.log("right", self.right)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-2, foreach=True)

    module = Module()
    best = ModelCheckpoint(f"{options.url}-best", "best", monitor="right", mode="max")
    trainer = L.Trainer(
        max_steps=options.steps,
        accelerator="cpu",
        gradient_clip_val=options.clip or None,
        strategy=ElasticStrategy(options.url, virtual_workers=VIRTUAL_WORKERS, save_every=2),
        callbacks=[best],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        val_check_interval=0.5,
    )
    trainer.fit(module, DataLoader(points(), BATCH, shuffle=True), DataLoader(points(), BATCH))
    trainer.save_checkpoint(f"{options.url}-saved")
    trainer.validate(module, DataLoader(points(), BATCH), ckpt_path=best.best_model_path, verbose=False)
    return trainer.strategy.run, module


if __name__ == "__main__":
    main()
