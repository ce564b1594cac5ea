"""A GAN on any number of workers: the discriminator learns, then the generator learns from the new discriminator.

    python recipes/gan.py runs/gan
    elastic run --standalone --nproc-per-node=4 recipes/gan.py runs/gan

A step of a run is one update by one batch, so the two take turns: each even step is the discriminator's, each odd one
the generator's, and who lost a worker in between redoes the current step alone. What a step does not train is frozen
before its batches, and its optimizer need not step. An epoch has half as many updates of each network as a loop has
that makes both by one batch: it takes twice the epochs. Networks that learn from pairs learn from each step's own.
"""

import argparse
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import elastic

NOISE = 8  # dimensions


def main() -> None:
    options = arguments()
    elastic.seed(options.seed)
    networks = {"discriminator": network(2, 1), "generator": network(NOISE, 2)}
    discriminator, generator = networks.values()
    optimizers = {
        name: torch.optim.Adam(one.parameters(), lr=1e-3, betas=(0.5, 0.999)) for name, one in networks.items()
    }

    with elastic.Run(
        options.run,
        model=networks,
        optimizer=optimizers,
        dataset=ring(2048),
        batch_size=128,
        virtual_workers=8,
        epochs=options.epochs,
        seed=options.seed,
        save_every=options.save_every,
    ) as run:
        for step in run.steps():
            learner = "discriminator" if step.index % 2 == 0 else "generator"
            for name, one in networks.items():
                one.requires_grad_(name == learner)
            for (real,) in step:  # this worker's shares of the step's 128 points
                made = generator(torch.randn(len(real), NOISE))
                loss: Any
                if learner == "discriminator":
                    loss = is_taken_for(discriminator(real), 1.0) + is_taken_for(discriminator(made), 0.0)
                else:
                    loss = is_taken_for(discriminator(made), 1.0)
                run.add(loss=loss.detach() * len(real))
                loss.backward()
            optimizers[learner].step()
            optimizers[learner].zero_grad()
            if run.is_coordinator and (step.last_of_epoch or step.index < 2):
                print(f"step {step.index:4}  {learner:13}  loss {run.sums['loss'] / run.count:.4f}")

        if run.is_coordinator:
            with torch.no_grad():
                radii = generator(torch.randn(1000, NOISE)).norm(dim=1)
            print(f"distance from the middle: {radii.mean():.3f} ± {radii.std():.3f}, of the ring 1.000 ± 0.050")


def is_taken_for(scores: torch.Tensor, what: float) -> torch.Tensor:
    """Return the loss of the discriminator's scores if all of them should say `what`: real (1.0) or made (0.0)."""
    return F.binary_cross_entropy_with_logits(scores, torch.full_like(scores, what))


def network(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(inputs, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, outputs)
    )


def ring(points: int) -> TensorDataset:
    """Return random points on a circle around the middle, a little off it."""
    angles = torch.rand(points) * 2 * math.pi
    radii = 1 + 0.05 * torch.randn(points)
    return TensorDataset(torch.stack([radii * angles.cos(), radii * angles.sin()], dim=1))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("run", nargs="?", default="runs/gan", help="where the run lives: a folder or a URL")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save-every", type=int, default=50, help="steps")
    return parser.parse_args()


if __name__ == "__main__":
    main()
