"""Which rule has a buffer that shares move, and which may a script choose? `Update(buffers=)` names them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase

import torch
from torch.nn.utils.spectral_norm import SpectralNorm

from elastic.errors import UNTOUCHED, ConfigError, StepError
from elastic.group.snapshot import Buffer
from elastic.state.trained_set import listed

RULES = {
    "first": "what share 0 leaves: a count of passes, a table that all shares fill alike",
    "keep": "as it was before the step, always: what is only noted",
    "mean": "over the shares, by their examples: moving averages, such as a normalisation layer's of your own",
    "sum": "with what each share has added: a count of examples, a histogram",
    "agree": "an error unless all shares leave the same",
}
_OF_VALUES = "function  of a list of the shares' values, in order, gives what it becomes: a queue, a memory bank"
REFUSED = "refused"
NORMS = (torch.nn.modules.batchnorm._NormBase,)
Rule = str | Callable[[list[torch.Tensor]], torch.Tensor]


def override(overrides: Mapping[str, Rule], name: str) -> Rule | None:
    """Return the rule that the script names for a buffer: by its name, else by the first pattern that fits."""
    if name in overrides:
        return overrides[name]
    return next((rule for pattern, rule in overrides.items() if "*" in pattern and fnmatchcase(name, pattern)), None)


def check(overrides: Mapping[str, Rule], buffers: Sequence[Buffer]) -> None:
    """Raise ConfigError for rules that do not fit, and for names that no buffer has."""
    for buffer in buffers:
        rule, value = override(overrides, buffer.name), buffer.start
        if rule is None or value is None:
            continue
        if callable(rule):
            continue
        floats = value.is_floating_point() or value.is_complex()
        misfits = (rule == "mean" and not floats) or (rule == "sum" and value.dtype == torch.bool)
        if rule not in RULES or misfits:
            raise ConfigError(
                f"buffers={{{buffer.name!r}: {rule!r}}}: the buffer is {value.dtype}; 'first', 'keep', 'agree' and a "
                "function fit any, 'sum' numbers, 'mean' floats"
            )
    unknown = [name for name in overrides if not any(override({name: "keep"}, one.name) for one in buffers)]
    if unknown:
        raise ConfigError(
            f"buffers= names {', '.join(unknown)}; the model has {', '.join(b.name for b in buffers) or 'none'}"
        )


def no_rule(names: Sequence[str], share: int) -> StepError:
    """Return the error for buffers that a share wrote to, and that nobody has named a rule for."""
    given = ", ".join(f"{name!r}: rule" for name in names[:8])
    choices = "\n".join(f"           {name!r:<9} {use}" for name, use in RULES.items())
    return StepError(
        f"the forward pass writes to buffers that belong to no normalisation layer of torch's: {listed(names)} (share "
        f"{share})\n"
        "  found  each share of a step starts from the step's buffers, and leaves others: what becomes of them is for "
        f"you to say\n{UNTOUCHED}"
        f"  next   update=Update(buffers={{{given}}}), '*' in a name stands for any part of it, and a rule is one of\n"
        f"{choices}\n           {_OF_VALUES}"
    )


def summed(values: Sequence[torch.Tensor], start: torch.Tensor) -> torch.Tensor:
    """Return the start and what each value has added to it, in the order of shares."""
    wide = torch.complex128 if start.is_complex() else torch.float64 if start.is_floating_point() else torch.int64
    total = start.to(wide)
    for value in values:
        total = total + (value.to(wide) - start.to(wide))
    return total.to(start.dtype)


def default(buffer: Buffer, *, one_share: bool) -> Rule | None:
    """Return the rule of a buffer that the script names none for; None: of a normalisation layer, or there is none."""
    if isinstance(buffer.entry.module, NORMS):
        return None
    return "first" if one_share or _is_spectral(buffer) else None


def _is_spectral(buffer: Buffer) -> bool:
    """Return whether a buffer is of torch's spectral norm: a parametrization, or the hook that it was before."""
    module = buffer.entry.module
    if isinstance(module, torch.nn.utils.parametrizations._SpectralNorm):
        return True
    hooks = [hook for hook in module._forward_pre_hooks.values() if isinstance(hook, SpectralNorm)]
    return any(buffer.entry.attribute in (f"{hook.name}_u", f"{hook.name}_v") for hook in hooks)
