"""Recognise handwritten digits, on any number of workers, through any faults, with one result.

    python recipes/digits.py runs/digits
    torchrun --standalone --nproc-per-node=4 recipes/digits.py runs/digits

Its loop is over steps (recipes/gpt.py keeps a plain one): what that adds is `elastic.Run(...)`, the inner loop over the
step's shares, and `step.backward(loss_sum, count)` in place of `loss.backward()` and `optimizer.step()`.
"""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import elastic


def main() -> None:
    options = arguments()
    elastic.seed(options.seed)
    training_set, test_set = digits()
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=1e-2, total_steps=options.epochs * -(-len(training_set) // 256)
    )

    with elastic.Run(
        options.run,  # a folder or s3://bucket/…: the same command resumes what lies there
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        dataset=training_set,
        batch_size=256,
        virtual_workers=12,
        epochs=options.epochs,
        seed=options.seed,
        update=elastic.Update(clip_grad_norm=1.0),
        save_every=options.save_every,
    ) as run:
        for step in run:
            for images, labels in step:  # this worker's shares of the step's 256 images
                logits = model(images)
                loss = F.cross_entropy(logits, labels, reduction="sum")
                step.backward(loss, count=len(labels))
                step.add(loss=loss, correct=(logits.argmax(1) == labels).sum())
            if run.is_coordinator and step.last_of_epoch:
                print(f"epoch {step.epoch:2}  loss {step.sums['loss'] / step.count:.4f}  {run.world_size} worker(s)")

        right = run.evaluate(test_set, lambda images, labels: {"n": (model(images).argmax(1) == labels).sum()})["n"]
        if run.is_coordinator:
            print(f"accuracy on {len(test_set)} held-out images: {right / len(test_set):.2%}")


def network() -> nn.Module:
    """Return a network from 1×8×8 images to 10 classes: 56,000 parameters, with BatchNorm and dropout."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 32),
        nn.ReLU(),
        nn.Dropout(0.25),
        nn.Linear(32, 10),
    )


def digits() -> tuple[TensorDataset, TensorDataset]:
    """Return scikit-learn's 1,797 scanned digits for training and for testing, which has every sixth."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(data.target)
    held_out = torch.arange(len(labels)) % 6 == 0
    return TensorDataset(images[~held_out], labels[~held_out]), TensorDataset(images[held_out], labels[held_out])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("run", nargs="?", default="runs/digits", help="where the run lives: a folder or a URL")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--save-every",
        default="auto",
        type=lambda s: int(s) if s.isdigit() else s,
        help='steps, a time such as "30s", or "auto"',
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
