"""The GPT of gpt.py over a slow network: workers meet once in many steps (DiLoCo; Douillard et al. 2023, 2311.08105).

    python recipes/gpt_data.py                    # the source of Python's standard library, as token files
    elastic run --standalone --nproc-per-node=2 recipes/diloco.py runs/diloco

A step of the run is an outer round. Each of its shares trains a copy of the model on its own windows with AdamW, and
tells nobody meanwhile. How far each weight moved is that round's gradient of it (the "pseudo-gradient"): the run takes
the mean over the shares, and SGD with Nesterov's momentum steps by it. So the shares are what the paper calls workers:
always as many, and how many processes carry them changes nothing in the result.

AdamW begins each round anew. With --keep-moments each share begins with the mean of what the shares of the round before
ended with, which sends three times as much.
"""

import argparse
import copy
import math
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from gpt import CONTEXT, GPT, decay_groups  # type: ignore[import-not-found]  # beside this script
from torch import Tensor, nn
from torch.utils.data import Subset

import elastic

SHARES, WINDOWS = 4, 4  # shares in a round, and windows in an inner step of one
INNER_LR, OUTER_LR = 1e-3, 0.7


def main() -> None:
    options = arguments()
    elastic.seed(options.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    held_out = elastic.TokenDataset(options.data / "val.npy", CONTEXT)
    validation_set = Subset(held_out, range(0, len(held_out), max(1, len(held_out) // options.validate)))
    model = GPT(options.layers, options.width).to(device)
    outer = torch.optim.SGD(model.parameters(), lr=OUTER_LR, momentum=0.9, nesterov=True)
    moments = Moments(model) if options.keep_moments else None

    with elastic.Run(
        options.run,  # a folder or s3://bucket/…: the same command resumes what lies there
        model={"gpt": model} if moments is None else {"gpt": model, "moments": moments},
        optimizer=outer,
        dataset=elastic.TokenDataset(options.data / "train.npy", CONTEXT),
        batch_size=SHARES * WINDOWS * options.inner_steps,
        virtual_workers=SHARES,
        steps=options.steps,
        seed=options.seed,
        save_every=options.save_every,
        data=elastic.Data(last_batch="drop"),
        update=elastic.Update(buffers={"moments.*": "mean"} if moments is not None else {}),
    ) as run:
        for inputs, targets in run.batches():  # a share of a round: the windows of all of its inner steps
            outer.zero_grad()
            rate = INNER_LR * (0.55 + 0.45 * math.cos(math.pi * run.step_index / options.steps))
            trained, loss = inner_steps(model, moments, inputs, targets, rate)
            run.add(loss=loss * len(inputs))
            moved = [(old - new).detach() for old, new in zip(model.parameters(), trained.parameters(), strict=True)]
            torch.autograd.backward([*model.parameters()], moved)  # after the last share: the round's only exchange
            outer.step()
            if run.stepped and run.is_coordinator:
                print(f"round {run.step_index:3}  loss {run.sums['loss'] / run.count:.3f}  {run.world_size} worker(s)")

        total = run.evaluate(validation_set, lambda x, y: {"loss": loss_of(model, x, y) * len(x)})["loss"]
        if run.is_coordinator:
            print(f"validation loss {total / len(validation_set):.3f} nats a byte")


class Moments(nn.Module):
    """AdamW's state at the end of a round, as buffers, which the run carries as it carries BatchNorm's averages."""

    KEYS = ("step", "exp_avg", "exp_avg_sq")

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        for number, parameter in enumerate(model.parameters()):
            for key in self.KEYS:
                shape = () if key == "step" else parameter.shape
                self.register_buffer(f"{key}_{number}", torch.zeros(shape, device=parameter.device))

    def hand_to(self, optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
        for number, parameter in enumerate(model.parameters()):
            optimizer.state[parameter] = {key: self.get_buffer(f"{key}_{number}").clone() for key in self.KEYS}

    def take_from(self, optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
        for number, parameter in enumerate(model.parameters()):
            for key in self.KEYS:
                self.get_buffer(f"{key}_{number}").copy_(optimizer.state[parameter][key])


def inner_steps(
    model: nn.Module, moments: Moments | None, inputs: Tensor, targets: Tensor, rate: float
) -> tuple[nn.Module, Tensor]:
    """Train a copy of the model on a share's windows; return it, and the mean loss on the way."""
    trained = copy.deepcopy(model)  # nothing of it outlives the share: the next one may be another process's
    optimizer = torch.optim.AdamW(decay_groups(trained), lr=rate, betas=(0.9, 0.95))
    if moments is not None:
        moments.hand_to(optimizer, trained)
    losses = []
    for x, y in zip(torch.split(inputs, WINDOWS), torch.split(targets, WINDOWS), strict=True):
        optimizer.zero_grad()
        loss: Any = loss_of(trained, x, y)
        loss.backward()
        nn.utils.clip_grad_norm_(trained.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())
    if moments is not None:
        moments.take_from(optimizer, trained)
    return trained, torch.stack(losses).mean()


def loss_of(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("run", nargs="?", default="runs/diloco", help="where the run lives: a folder or a URL")
    parser.add_argument("--data", type=Path, default=Path("runs/gpt-data"), help="the token files of gpt_data.py")
    parser.add_argument("--steps", type=int, default=20, help="outer rounds")
    parser.add_argument("--inner-steps", type=int, default=15, help="of each share in a round")
    parser.add_argument("--keep-moments", action="store_true", help="AdamW goes on from round to round")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256, help="channels, a multiple of 4")
    parser.add_argument("--validate", type=int, default=96, help="on so many windows")
    parser.add_argument("--save-every", default="auto", type=lambda s: int(s) if s.isdigit() else s)
    return parser.parse_args()


if __name__ == "__main__":
    main()
