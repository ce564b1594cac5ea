"""What else tests/gpu trains: a small language model in a plain loop, as people write them for a GPU.

Embeddings, causal attention and a sum of scattered words, whose fastest kernels sum in any order; a scaler for float16
or autocast in bfloat16; compiled, if it is asked for. The script asks for no deterministic kernels.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import elastic

WORDS, LENGTH, WIDTH = 64, 32, 64


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.mix, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)
        self.dropout = nn.Dropout(0.1)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x = self.words(text)
        query, key, value = self.mix(x).unflatten(-1, (3, 4, -1)).transpose(1, 3).unbind(2)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.dropout(self.out(mixed.transpose(1, 2).flatten(2)))
        seen = torch.zeros(len(text), WORDS, x.shape[-1], device=x.device, dtype=x.dtype)
        seen = seen.scatter_add(1, text[..., None].expand_as(x), x)
        scores: torch.Tensor = self.head(self.norm(x + seen.mean(1, keepdim=True)))
        return scores


class Texts:
    def __init__(self, length: int) -> None:
        self.texts = torch.randint(WORDS, (length, LENGTH + 1), generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.texts[index, :-1], self.texts[index, 1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", choices=["float32", "bfloat16", "float16"], default="bfloat16")
    parser.add_argument("--compile", type=int, default=0)
    parser.add_argument("--unhurried", type=int, default=0, help="goes slowly while fewer workers than this share it")
    options = parser.parse_args()

    elastic.seed(0)
    model = Language().to(options.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=options.device == "cuda")
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps)
    halves = options.precision == "float16"
    scaler = torch.amp.GradScaler(options.device, init_scale=2.0**30) if halves else None  # the first steps overflow
    network = torch.compile(model) if options.compile else model
    with elastic.Run(
        options.url,
        model=model,
        optimizer=optimizer,
        scheduler=schedule,
        update=elastic.Update(scaler=scaler),
        dataset=Texts(options.steps * 24),
        batch_size=24,
        virtual_workers=6,
        steps=options.steps,
        save_every=4,
        seed=0,
    ) as run:
        for text, following in run.batches():
            optimizer.zero_grad()
            dtype = torch.float32 if options.precision == "float32" else getattr(torch, options.precision)
            with torch.autocast(options.device, dtype=dtype, enabled=options.precision != "float32"):
                scores = network(text)
            loss: Any = F.cross_entropy(scores.flatten(0, 1).float(), following.flatten())
            if scaler is None:
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
            else:
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
            schedule.step()
            if run.stepped and run.world_size < options.unhurried:
                time.sleep(0.05)


if __name__ == "__main__":
    main()
