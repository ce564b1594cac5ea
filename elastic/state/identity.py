"""What must be equal for the bits of the result to be? Recorded in checkpoints, checked on resume and on joining.

Where a run ends (epochs, steps), how often it saves and how its data is loaded are no part of it: they
change when the run finishes, never what a step computes. (Under last_batch="carry" the end of the run cuts
its last step short, so there `epochs` is part of it.) The script's own code is not looked at, but what it gives is
(loop/cross_check.py, loop/storage/step_digest.py), and so is what the data set reads as; of the data's content what the
data set itself says of it (`data_identity()`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import torch

from elastic.errors import ConfigError, IdentityMismatch
from elastic.membership.environment import processor_settings
from elastic.state import compiled, gpu_kernels
from elastic.state.processor import libraries, processor
from elastic.state.sharding import Sharding, precisions_of
from elastic.version import __version__

Identity = dict[str, Any]

CONTENT = "dataset_content"
"""No field: word for what the data set reads as."""
NORM = "norm"
"""Which norm gradients are clipped by, of sharded models alone: clipping.py. The bits that it gives are others."""
PRECISION = "precision"
"""In which precision fully_shard has units compute and send, where it is not that of their parameters."""
SCRIPT = "script"
"""No field: word for which gradients the script's code makes of what it reads."""
_OF_GPU = ("gpu", "cuda", "cudnn", "cudnn_benchmark", "cudnn_deterministic", "gpu_settings")
_ADDED = frozenset({"compiler", "dataset", "processor", "processor_settings", "libraries"})
"""Fields that identities of earlier versions do not have: such a one says nothing about them, and is not refused."""
_OF_DEVICES = (*_OF_GPU, "cpu_capability", "processor", "processor_settings", "libraries")


def identity(
    configuration: Mapping[str, Any],
    models: Mapping[str, torch.nn.Module],
    optimizers: Mapping[str, torch.optim.Optimizer],
    schedulers: Mapping[str, Any],
    device: torch.device,
    sharding: Sharding | None = None,
) -> Identity:
    """Return the fields that must be equal for equal bits, flat and JSON-ready.

    They are equal exactly when the same configuration runs on equivalent software and hardware.

    configuration  the arguments of `Run` that numerics depend on, by name
    sharding       of the models: where it is cut is no part, and in which precision it computes is
    """
    found: Identity = {
        **configuration,
        "model_shapes": _shapes(models),
        "model_layers": _layers(models),
        "trained": _trained(models),
        "optimizer": {name: _optimizer(optimizer) for name, optimizer in optimizers.items()},
        "scheduler": {name: type(scheduler).__qualname__ for name, scheduler in schedulers.items()},
        "compiled": compiled.is_compiled(models),
        "compiler": compiled.settings(models),
        "elastic": __version__,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
    }
    if sharding is not None:
        found[NORM] = "exact"
        if precisions := precisions_of(sharding.units):
            found[PRECISION] = precisions
    if device.type == "cuda":
        found |= {
            "gpu": torch.cuda.get_device_name(device),
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
            "cudnn_benchmark": torch.backends.cudnn.benchmark,
            "cudnn_deterministic": torch.backends.cudnn.deterministic,
            "gpu_settings": gpu_kernels.settings(),
        }
    else:
        found |= {
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "processor": processor(portable=bool(configuration.get("portable"))),
            "processor_settings": processor_settings(),
            "libraries": libraries(),
        }
    return dict(json.loads(json.dumps(found)))  # as it will be read back: tuples are lists


_OF_EXAMPLES = frozenset({"seed", "batch_size", "dataset_length", "last_batch", "order", "epochs"})
"""Fields that say which examples a step reads. With another value a run would skip some and repeat others."""
_OF_THE_RUNNING = {
    "elastic": (
        "install one version of elastic-exact on all nodes; to change it, end the run on all of them, and start it "
        "again from what is saved"
    ),
    "url": (
        "give all workers one URL, which does not depend on the clock, the process or the folder that the script has\n"
        "         changed to: an absolute one, from the command line"
    ),
}
"""Workers that run together must have these equal, or they are not one run; and what to do about each. Saved, they are
on record alone: a later version reads what an earlier one has saved, and a run may be moved."""
NEVER_ACCEPTED = _OF_EXAMPLES | _OF_THE_RUNNING.keys()


def check(
    here: Identity, recorded: Identity, *, accept: Collection[str], where: str, saved: bool = False
) -> dict[str, tuple[Any, Any]]:
    """Return the differences that `accept` names, as field -> (here, recorded). Raises IdentityMismatch for any other.

    where  who recorded it, for the message, such as "checkpoint step 1200"
    saved  that is a checkpoint; else a process of the run
    """
    differing = {
        name: (here.get(name), recorded.get(name))
        for name in sorted((here.keys() | recorded.keys()) - (_OF_THE_RUNNING.keys() if saved else set()) - {CONTENT})
        if here.get(name) != recorded.get(name) and (name in recorded or name not in _ADDED)
    }
    refused = {name: pair for name, pair in differing.items() if name not in set(accept) - NEVER_ACCEPTED}
    if refused:
        lines = "".join(
            f"  {path}: {_short(mine)} here, {_short(theirs)} there\n"
            for name, (mine, theirs) in refused.items()
            for path, mine, theirs in _leaves(name, mine, theirs)
        )
        names = ", ".join(repr(name) for name in sorted(set(refused) - NEVER_ACCEPTED))
        ways = f"set {'them' if len(refused) > 1 else 'it'} back, or start under a new URL"
        if apart := [advice for name, advice in _OF_THE_RUNNING.items() if name in refused]:
            ways = "; ".join(apart)
        elif refused.keys() & _OF_EXAMPLES:
            ways += "; what decides which examples a step reads cannot be accepted: some would be skipped"
        else:
            fields = ",".join(sorted(refused))
            ways += (
                f", or give up the same bits with checks=Checks(accept=[{names}]),\n         `elastic run "
                f"--accept={fields}`, or ELASTIC_ACCEPT={fields} in the environment"
            )
        what = f"this run is not the one that {where} belongs to; its result would differ"
        if refused.keys() <= _OF_THE_RUNNING.keys():
            what = f"this worker cannot train together with {where}"
        raise IdentityMismatch(
            f"{what}:\n{lines}  state  nothing was loaded or written\n  next   {ways}",
            refused,
        )
    return {name: pair for name, pair in differing.items() if name in accept}


def check_accept(accept: Collection[str], here: Identity) -> None:
    """Raise ConfigError for names that no identity has, or that cannot be accepted."""
    known = (
        here.keys() | {*_OF_DEVICES, CONTENT, NORM, PRECISION, SCRIPT, "on_bad", "on_bad_example"}
    ) - NEVER_ACCEPTED
    if isinstance(accept, str) or (unknown := sorted(set(accept) - known)):
        given = repr(accept) if isinstance(accept, str) else ", ".join(unknown)
        raise ConfigError(
            f"Checks(accept=), --accept and ELASTIC_ACCEPT take a list of field names, not {given}; they are "
            f"{', '.join(sorted(known))}"
        )


def _leaves(path: str, mine: Any, theirs: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the parts of two values that differ, each with its path: `optimizer.groups[1].eps`."""
    if isinstance(mine, dict) and isinstance(theirs, dict):
        for key in sorted(mine.keys() | theirs.keys()):
            if mine.get(key) != theirs.get(key):
                yield from _leaves(f"{path}.{key}", mine.get(key), theirs.get(key))
    elif isinstance(mine, list) and isinstance(theirs, list) and len(mine) == len(theirs):
        for index, (one, other) in enumerate(zip(mine, theirs, strict=True)):
            if one != other:
                yield from _leaves(f"{path}[{index}]", one, other)
    else:
        yield path, mine, theirs


def _shapes(models: Mapping[str, torch.nn.Module]) -> str:
    """Return a hash of the names, shapes and dtypes of parameters and buffers."""
    rows: Iterable[str] = (
        f"{key}.{name} {tuple(tensor.shape)} {tensor.dtype}"
        for key, model in models.items()
        for name, tensor in [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]
    )
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()[:16]


def _trained(models: Mapping[str, torch.nn.Module]) -> dict[str, Any]:
    """Describe what requires a gradient as the script builds it; later changes travel with the state."""
    parameters = [(f"{key}.{name}", p) for key, model in models.items() for name, p in model.named_parameters()]
    frozen = [name for name, parameter in parameters if not parameter.requires_grad]
    which = hashlib.sha256("\n".join(frozen).encode()).hexdigest()[:16]
    return {"frozen": len(frozen), "of": len(parameters), "which": which}


def _layers(models: Mapping[str, torch.nn.Module]) -> str:
    """Return a hash of what the layers print of themselves: dropout rates and the like have no shape."""
    printed = "\n".join(f"{key}: {model}" for key, model in models.items())
    printed = re.sub(r" at 0x[0-9a-f]+", "", printed)  # no addresses
    printed = re.sub(r"\bFSDP(?=[A-Za-z_]\w*\()", "", printed)  # what fully_shard puts before the name of a class
    return hashlib.sha256(printed.encode()).hexdigest()[:16]


def _optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Describe what an optimizer was built with; what a scheduler moves is compared by where it starts from."""
    groups = []
    for group in optimizer.param_groups:
        moved = {"lr"} if "initial_lr" in group else set()  # schedulers note where they start
        moved |= {"momentum", "betas"} if "max_momentum" in group else set()
        options = {name: _plain(value) for name, value in group.items() if name != "params" and name not in moved}
        groups.append(options | {"tensors": len(group["params"])})
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
