"""What applying a step means, unless the script says otherwise: clip, step the optimizers, step the schedulers.

Every worker holds the same exact gradients and does the same arithmetic, so every worker ends with the same bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from elastic.run import Run
    from elastic.step import Step


def default_update(run: Run, _step: Step) -> None:
    """Unscale, clip, step. The norm that is clipped is that of all parameters of all models together."""
    config = run._config
    optimizers = list(config.optimizers.values())
    if config.scaler is not None:
        for optimizer in optimizers:
            config.scaler.unscale_(optimizer)
    if config.clip_grad_norm is not None:
        torch.nn.utils.clip_grad_norm_(config.parameters().values(), config.clip_grad_norm)
    for optimizer in optimizers:
        if config.scaler is not None:
            config.scaler.step(optimizer)
        else:
            optimizer.step()
    if config.scaler is not None:
        config.scaler.update()
    for scheduler in config.schedulers.values():
        scheduler.step()
