"""A small GPT that learns to write Python, byte by byte, on any number of workers, through any faults.

    python recipes/gpt_data.py                    # the source of Python's standard library, as token files
    python recipes/gpt.py runs/gpt
    elastic run --standalone --nproc-per-node=2 recipes/gpt.py runs/gpt

Two minutes on two cores take it to 1.67 nats a byte; a table of how frequent bytes are reaches 3.24 (2026-11-23).
The loop is a plain one, over `run.batches()`; what it adds to one without elastic is `elastic.Run(...)`.
In names of tensors B are windows, T bytes in a window, C channels and H heads.
"""

import argparse
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Subset

import elastic

BYTES, CONTEXT = 256, 128
BATCH, SHARES = 16, 8  # windows in a step, and into how many shares they are cut
PEAK_LR, WARM_UP = 2e-3, 20


def main() -> None:
    options = arguments(__doc__, "runs/gpt")
    elastic.seed(options.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    training_set = elastic.TokenDataset(options.data / "train.npy", CONTEXT)
    held_out = elastic.TokenDataset(options.data / "val.npy", CONTEXT)
    validation_set = Subset(held_out, range(0, len(held_out), max(1, len(held_out) // options.validate)))
    model = GPT(options.layers, options.width).to(device)
    optimizer = torch.optim.AdamW(decay_groups(model), lr=PEAK_LR, betas=(0.9, 0.95), fused=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: warm_up_and_cosine(step, options.steps))
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=has_bf16(device))

    def loss_of(inputs: Tensor, targets: Tensor) -> Tensor:
        with autocast:
            return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())

    with elastic.Run(
        options.run,  # a folder or s3://bucket/…: the same command resumes what lies there
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        dataset=training_set,
        batch_size=BATCH,
        virtual_workers=SHARES,
        steps=options.steps,
        seed=options.seed,
        save_every=options.save_every,
    ) as run:
        began, first = time.perf_counter(), run.step_index
        for inputs, targets in run.batches():
            optimizer.zero_grad()
            loss: Any = loss_of(inputs, targets)
            run.add(loss=loss.detach() * len(inputs))
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            if run.stepped and run.is_coordinator and run.step_index % 20 == 0:
                per_s = (run.step_index - first) * BATCH * CONTEXT / (time.perf_counter() - began)
                mean = run.sums["loss"] / run.count
                print(f"step {run.step_index:4}  loss {mean:.3f}  {per_s:,.0f} tokens/s  {run.world_size} worker(s)")

        total = run.evaluate(validation_set, lambda x, y: {"loss": loss_of(x, y) * len(x)})["loss"]
        if run.is_coordinator:
            unigram = entropy(np.load(options.data / "train.npy", mmap_mode="r"))
            print(f"validation loss {total / len(validation_set):.3f} nats a byte; unigram entropy {unigram:.3f}")
            print(sample(model, "def ", options.sample))


class GPT(nn.Module):
    """Bytes [B, T] to logits [B, T, 256]; 3.3 million parameters with 4 layers of width 256."""

    def __init__(self, layers: int = 4, width: int = 256, heads: int = 4) -> None:
        super().__init__()
        self.bytes = nn.Embedding(BYTES, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, BYTES, bias=False)
        self.head.weight = self.bytes.weight
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                into_residual = name.endswith(("project.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / (math.sqrt(2 * layers) if into_residual else 1))

    def forward(self, bytes_BT: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(self.blocks(self.bytes(bytes_BT))))
        return logits


class Block(nn.Module):
    """Attention to what came before, and a layer of its own for each byte."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend = nn.Linear(width, 3 * width, bias=False)
        self.project = nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x_BTC: Tensor) -> Tensor:
        qkv = self.attend(self.norm_1(x_BTC)).chunk(3, dim=-1)
        q_BHTC, k_BHTC, v_BHTC = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in qkv)
        mixed_BHTC = F.scaled_dot_product_attention(rotated(q_BHTC), rotated(k_BHTC), v_BHTC, is_causal=True)
        x_BTC = x_BTC + self.project(mixed_BHTC.transpose(1, 2).flatten(2))
        added_BTC: Tensor = self.down(F.relu(self.up(self.norm_2(x_BTC))).square())
        return x_BTC + added_BTC


def rotated(x_BHTC: Tensor) -> Tensor:
    """Rotate queries or keys by angles that grow with the place (RoPE): attention sees how far apart two bytes are."""
    half = x_BHTC.shape[-1] // 2
    speeds = 10_000.0 ** (-torch.arange(half, device=x_BHTC.device) / half)
    angles = torch.arange(x_BHTC.shape[-2], device=x_BHTC.device)[:, None] * speeds
    cos, sin = angles.cos().to(x_BHTC.dtype), angles.sin().to(x_BHTC.dtype)
    a, b = x_BHTC.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


def decay_groups(model: nn.Module) -> list[dict[str, object]]:
    """Return the parameters in two groups: weight decay is for matrices, and not for biases and norms."""
    return [
        {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]


def warm_up_and_cosine(step: int, steps: int) -> float:
    """Return the learning rate as a part of its peak: up in a line, down to a tenth along a cosine."""
    if step < WARM_UP:
        return (step + 1) / WARM_UP
    passed = (step - WARM_UP) / max(1, steps - WARM_UP)
    return 0.55 + 0.45 * math.cos(math.pi * min(1.0, passed))


def has_bf16(device: torch.device) -> bool:
    """Return whether the device computes in bfloat16 faster than in float32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    able = torch.cpu.get_capabilities()
    return bool(able.get("avx512_bf16") or able.get("amx_bf16"))


def entropy(tokens: np.ndarray) -> float:
    """Return the nats a byte that a table of frequencies reaches, which knows nothing of the bytes before."""
    shares = np.bincount(tokens, minlength=BYTES) / len(tokens)
    return float(-(shares * np.log(shares, where=shares > 0, out=np.zeros(BYTES))).sum())


@torch.no_grad()
def sample(model: GPT, begin: str, length: int) -> str:
    """Return `begin` and the `length` bytes that the model writes after it, at a temperature of 0.7."""
    model.eval()
    device = model.head.weight.device
    written = torch.tensor([list(begin.encode())], device=device)
    draw = torch.Generator(device).manual_seed(0)
    for _ in range(length):
        chances = (model(written[:, -CONTEXT:])[:, -1] / 0.7).softmax(-1)
        written = torch.cat([written, torch.multinomial(chances, 1, generator=draw)], dim=1)
    return bytes(written[0].tolist()).decode(errors="replace")


def arguments(page: str | None, run: str) -> argparse.Namespace:
    """Parse the flags of a script. page: its docstring; run: where its runs live, unless a flag says otherwise."""
    parser = argparse.ArgumentParser(description=page.splitlines()[0] if page else None)
    parser.add_argument("run", nargs="?", default=run, help="where the run lives: a folder or a URL")
    parser.add_argument("--data", type=Path, default=Path("runs/gpt-data"), help="the token files of gpt_data.py")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256, help="channels, a multiple of 4")
    parser.add_argument("--validate", type=int, default=96, help="on so many windows")
    parser.add_argument("--sample", type=int, default=400, help="bytes that are written at the end")
    parser.add_argument("--save-every", default="auto", type=lambda s: int(s) if s.isdigit() else s)
    return parser.parse_args()


if __name__ == "__main__":
    main()
