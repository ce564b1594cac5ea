"""Truncated back-propagation through time, on any number of workers.

    python recipes/recurrent.py runs/recurrent
    elastic run --standalone --nproc-per-node=4 recipes/recurrent.py runs/recurrent

A loop that carries an LSTM's state from each batch to the next cannot be a run's: the next batch is another share's,
and may be another worker's. So an example is a stretch that is long enough for several chunks: the state begins before
them, on tokens that are read without a gradient, and goes from chunk to chunk within the body, detached, as ever.
"""

import argparse
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import elastic

WARM, LENGTH, CHUNKS = 16, 8, 4  # tokens that the state begins with, tokens a chunk, chunks an example
SYMBOLS, DELAY = 4, 3


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(SYMBOLS, 16)
        self.lstm = nn.LSTM(16, 48, batch_first=True)
        self.head = nn.Linear(48, SYMBOLS)

    def forward(
        self, tokens: torch.Tensor, state: tuple[torch.Tensor, ...] | None
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        hidden, state = self.lstm(self.embedding(tokens), state)
        return self.head(hidden), state


def main() -> None:
    options = arguments()
    elastic.seed(options.seed)
    dataset, model = windows(12_000), Network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    with elastic.Run(
        options.run,
        model=model,
        optimizer=optimizer,
        dataset=dataset,
        batch_size=32,
        virtual_workers=8,
        epochs=options.epochs,
        seed=options.seed,
        save_every=options.save_every,
    ) as run:
        for epoch in run.epochs():
            for (tokens,) in run.batches():
                optimizer.zero_grad()
                with torch.no_grad():
                    _, state = model(tokens[:, :WARM], None)
                loss: Any = 0.0
                for at in range(WARM, WARM + CHUNKS * LENGTH, LENGTH):
                    scores, state = model(tokens[:, at : at + LENGTH], state)
                    following = tokens[:, at + 1 : at + LENGTH + 1]
                    loss = loss + F.cross_entropy(scores.flatten(0, 1), following.flatten()) / CHUNKS
                    state = tuple(one.detach() for one in state)  # no gradient goes further back
                run.add(loss=loss.detach() * len(tokens))
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
            if run.is_coordinator:
                print(f"epoch {epoch:2}  loss {run.sums['loss'] / run.count:.4f}")


def windows(tokens: int) -> TensorDataset:
    """Cut one long sequence into windows: every second symbol repeats the one DELAY before it; least loss 0.693."""
    sequence = torch.randint(SYMBOLS, (tokens,))
    for at in range(DELAY + 1, tokens, 2):
        sequence[at] = sequence[at - DELAY]
    return TensorDataset(sequence.unfold(0, WARM + CHUNKS * LENGTH + 1, CHUNKS * LENGTH))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("run", nargs="?", default="runs/recurrent", help="where the run lives: a folder or a URL")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save-every", type=int, default=20, help="steps")
    return parser.parse_args()


if __name__ == "__main__":
    main()
