"""What is trained in the benchmark: the digits recipe's network, an MLP of 1 M parameters, and a character-level GPT of
10.6 M.

The first has small kernels, so it shows what a step costs beside them; the last has 42 MB of gradients, so it shows
what moving them costs; the MLP, few kernels over much memory, has some of both. Data are tensors in memory: nobody
waits for a disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from recipes import digits

VIRTUAL_WORKERS = 8


@dataclass(eq=False)
class Workload:
    """make    the model, as the caller has seeded torch
    data       inputs and targets of every example
    batch_size examples per step, at every world size
    block      steps that are timed as one; blocks of the loops alternate
    """

    name: str
    make: Callable[[], nn.Module]
    data: TensorDataset
    batch_size: int
    block: int

    def loss(self, model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The sum over the batch; of a text, over its tokens."""
        scores = model(inputs)
        return F.cross_entropy(scores.flatten(0, -2), targets.flatten(), reduction="sum")

    @property
    def per_example(self) -> int:
        """What a mean divides by: 1, or the tokens of a text."""
        return self.data.tensors[1][0].numel()

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """The fastest AdamW that torch has on a CPU: the rest of a step stands out more beside it."""
        return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


def workloads() -> Mapping[str, Workload]:
    text = torch.randint(CHARACTERS, (1024, CONTEXT + 1), generator=torch.Generator().manual_seed(0))
    texts = TensorDataset(text[:, :-1].contiguous(), text[:, 1:].contiguous())
    return {
        "digits": Workload("digits", digits.network, digits.digits()[0], batch_size=256, block=4),
        "mlp": Workload("mlp", mlp, vectors(), batch_size=64, block=8),
        "gpt": Workload("gpt", CharacterGPT, texts, batch_size=16, block=1),
    }


MLP_WIDTH = 512


def mlp() -> nn.Module:
    hidden = [layer for _ in range(4) for layer in (nn.Linear(MLP_WIDTH, MLP_WIDTH), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(MLP_WIDTH, 10))


def vectors() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(4096, MLP_WIDTH, generator=generator)
    return TensorDataset(inputs, torch.randint(10, (len(inputs),), generator=generator))


CHARACTERS = 96
CONTEXT = 64
WIDTH = 384


class CharacterGPT(nn.Module):
    """(batch, time) tokens to (batch, time, CHARACTERS) scores: 6 layers, 6 heads, pre-norm, dropout, tied head."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(CHARACTERS, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.layers = nn.Sequential(*(_Layer() for _ in range(6)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, CHARACTERS, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        scores: torch.Tensor = self.head(self.norm(self.layers(x)))
        return scores


class _Layer(nn.Module):
    def __init__(self, heads: int = 6) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mix, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.think = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.mix(self.norm_1(x)).unflatten(-1, (3, self.heads, -1)).transpose(1, 3)
        query, key, value = heads.unbind(2)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.dropout(self.out(mixed.transpose(1, 2).flatten(2)))
        result: torch.Tensor = x + self.dropout(self.think(self.norm_2(x)))
        return result
