"""Training runs whose result does not depend on what happens to their workers.

import elastic

elastic.seed(0)
with elastic.Run("runs/digits", model=model, optimizer=optimizer, dataset=dataset,
                 batch_size=256, virtual_workers=24, epochs=20, seed=0) as run:
    for step in run:
        for x, y in step:
            loss = F.cross_entropy(model(x), y, reduction="sum")
            step.backward(loss, count=len(y))
"""

from elastic.errors import (
    ConfigError,
    ElasticError,
    Evicted,
    IdentityMismatch,
    PeerLost,
    RendezvousTimeout,
    StepError,
)
from elastic.run import Run
from elastic.state.randomness import seed
from elastic.step import Step

__all__ = [
    "ConfigError",
    "ElasticError",
    "Evicted",
    "IdentityMismatch",
    "PeerLost",
    "RendezvousTimeout",
    "Run",
    "Step",
    "StepError",
    "seed",
]
