"""What must be equal for the bits of the result to be? Recorded in checkpoints, checked on resume and on joining.

Where a run ends (epochs, steps), how often it saves and how its data is loaded are no part of it: they
change when the run finishes, never what a step computes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch

from elastic.errors import ConfigError, IdentityMismatch

Identity = dict[str, Any]


def identity(
    configuration: Mapping[str, Any],
    models: Mapping[str, torch.nn.Module],
    optimizers: Mapping[str, torch.optim.Optimizer],
    schedulers: Mapping[str, Any],
    device: torch.device,
) -> Identity:
    """Flat, JSON-ready, equal exactly when the same configuration runs on equivalent software and hardware.

    configuration  the arguments of `Run` that numerics depend on, by name
    """
    found: Identity = {
        **configuration,
        "model_shapes": _shapes(models),
        "optimizer": {name: _optimizer(optimizer) for name, optimizer in optimizers.items()},
        "scheduler": {name: type(scheduler).__qualname__ for name, scheduler in schedulers.items()},
        "compiled": any(hasattr(module, "_orig_mod") for model in models.values() for module in model.modules()),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
    }
    if device.type == "cuda":
        found |= {
            "gpu": torch.cuda.get_device_name(device),
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
            "cudnn_benchmark": torch.backends.cudnn.benchmark,
            "cudnn_deterministic": torch.backends.cudnn.deterministic,
        }
    else:
        found |= {"cpu_capability": torch.backends.cpu.get_cpu_capability()}
    return dict(json.loads(json.dumps(found)))  # as it will be read back: tuples are lists


def check(here: Identity, recorded: Identity, *, accept: Collection[str], where: str) -> dict[str, tuple[Any, Any]]:
    """The differences that `accept` names, as field -> (here, recorded). Raises IdentityMismatch for any other.

    where  who recorded it, for the message, such as "checkpoint step 1200"
    """
    differing = {
        name: (here.get(name), recorded.get(name))
        for name in sorted(here.keys() | recorded.keys())
        if here.get(name) != recorded.get(name)
    }
    refused = {name: pair for name, pair in differing.items() if name not in accept}
    if refused:
        lines = "".join(
            f"  {name}: {_short(mine)} here, {_short(theirs)} there\n" for name, (mine, theirs) in refused.items()
        )
        names = ", ".join(repr(name) for name in refused)
        raise IdentityMismatch(
            f"this run is not the one that {where} belongs to; its result would differ:\n{lines}"
            "  state  nothing was loaded or written\n"
            f"  next   set the field{'s' if len(refused) > 1 else ''} back, start under a new URL, or give up the same "
            f"bits with Run(accept=[{names}])",
            refused,
        )
    return {name: pair for name, pair in differing.items() if name in accept}


def check_accept(accept: Collection[str], here: Identity) -> None:
    unknown = sorted(set(accept) - here.keys())
    if unknown:
        raise ConfigError(f"accept= names {', '.join(unknown)}; the fields of a run's identity are {', '.join(here)}")


def _shapes(models: Mapping[str, torch.nn.Module]) -> str:
    rows: Iterable[str] = (
        f"{key}.{name} {tuple(tensor.shape)} {tensor.dtype} {tensor.requires_grad}"
        for key, model in models.items()
        for name, tensor in [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]
    )
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()[:16]


def _optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    groups = [
        {name: _plain(value) for name, value in group.items() if name != "params"} | {"tensors": len(group["params"])}
        for group in optimizer.param_groups
    ]
    return {"class": type(optimizer).__qualname__, "groups": groups}


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return type(value).__qualname__


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else f"{text[:200]}…"
