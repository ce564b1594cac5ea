"""A transformers Trainer as it is, which goes on from the newest checkpoint in its output folder."""
# mypy: ignore-errors

import os
import sys
import time

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint


class Points(torch.utils.data.Dataset):
    def __init__(self) -> None:
        self.points = torch.randn(360, 8, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.points)

    def __getitem__(self, index):
        return {"x": self.points[index], "labels": self.points[index, :3].argmax()}


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(8, 3)

    def forward(self, x, labels):
        logits = self.layer(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Slow(TrainerCallback):
    def __init__(self, step_s: float) -> None:
        self.step_s = step_s

    def on_step_end(self, args, state, control, **_):
        time.sleep(self.step_s)


def main(folder: str, step_s: float = 0.0) -> None:
    arguments = TrainingArguments(
        output_dir=folder,
        num_train_epochs=2,
        per_device_train_batch_size=8,
        learning_rate=1e-2,
        save_steps=5,
        logging_steps=1,
        use_cpu=True,
        ddp_backend="gloo",
        report_to=[],
        disable_tqdm=True,
    )
    last = get_last_checkpoint(folder) if os.path.isdir(folder) else None
    if arguments.process_index == 0:
        print(f"world size {arguments.world_size}, {f'from {last}' if last else 'anew'}", flush=True)
    trainer = Trainer(model=Classifier(), args=arguments, train_dataset=Points(), callbacks=[Slow(step_s)])
    result = trainer.train(resume_from_checkpoint=last)
    if arguments.process_index == 0:
        print(f"done: loss {result.training_loss:.4f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], *map(float, sys.argv[2:]))
