"""Reaches the moments inside a backward pass, an exchange, an update and a transfer, by hooks put on from outside.

Each function makes `act` be called once, in the middle of what comes next of its kind, at a point of the computation
and not after a time. `act` may never return, and may raise. Each returns a function that takes the hooks off again,
for when a peer is lost and what was to come next does not come.
"""
# mypy: disable-error-code="no-untyped-call"
# torch 2.13 does not annotate its hooks and dispatch modes.

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

Act = Callable[[], None]
Unhook = Callable[[], None]


def backward(optimizers: Iterable[torch.optim.Optimizer], act: Act) -> Unhook:
    """Act inside autograd, when half of the parameters have got their gradient in the next backward pass."""
    parameters = _parameters(optimizers)
    remaining = max(1, len(parameters) // 2)
    hooks: list[Any] = []

    def arrived(_: torch.Tensor) -> None:
        nonlocal remaining
        remaining -= 1
        if remaining == 0:
            _remove(hooks)
            act()

    hooks += [parameter.register_post_accumulate_grad_hook(arrived) for parameter in parameters]
    return lambda: _remove(hooks)


def exchange(act: Act) -> Unhook:
    """Act when a collective is started and about to be waited for. A worker on its own never waits for one."""
    from elastic.group import form

    wait = form.Work.wait

    def unhook() -> None:
        form.Work.wait = wait  # type: ignore[method-assign]  # the class has no hook, and needs none

    def wait_once(self: form.Work) -> None:
        unhook()
        act()
        wait(self)

    form.Work.wait = wait_once  # type: ignore[method-assign]  # as above
    return unhook


def transfer(act: Act) -> Unhook:
    """Act when the parts of a state have begun to leave for a peer, or to come, in the next of what carries them.

    What carries most of a state to a newcomer does so in a thread of its own.
    """
    from elastic.group import form

    carries = {name: getattr(form.DistributedGroup, name) for name in ("all_to_all", "send", "receive")}

    def unhook() -> None:
        for name, method in carries.items():
            setattr(form.DistributedGroup, name, method)  # as in `exchange`

    def once(name: str) -> Callable[..., form.Work]:
        def carry(self: form.DistributedGroup, *arguments: Any) -> form.Work:
            unhook()
            pending: form.Work = carries[name](self, *arguments)
            act()
            return pending

        return carry

    for name in carries:
        setattr(form.DistributedGroup, name, once(name))
    return unhook


def update(optimizers: Iterable[torch.optim.Optimizer], act: Act) -> Unhook:
    """Act inside the optimizers' next steps, when half of all parameters, or what one operation writes, are written."""
    optimizers = list(optimizers)
    writes = _Writes(_parameters(optimizers), act)
    hooks: list[Any] = []

    def enter(*_: Any) -> None:
        writes.__enter__()

    def leave(*_: Any) -> None:
        writes.__exit__(None, None, None)
        if writes.enough:
            _remove(hooks)

    for optimizer in optimizers:
        hooks += [optimizer.register_step_pre_hook(enter), optimizer.register_step_post_hook(leave)]
    return lambda: _remove(hooks)


class _Writes(TorchDispatchMode):
    """A dispatch mode that calls `act` once operations have written to half of the tensors."""

    def __init__(self, tensors: list[torch.nn.Parameter], act: Act) -> None:
        super().__init__()
        self._unwritten = {id(tensor) for tensor in tensors}
        self._others = len(self._unwritten) - max(1, len(self._unwritten) // 2)
        self._act = act
        self.enough = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        declared = func._schema.arguments
        given = {**{d.name: a for d, a in zip(declared, args, strict=False)}, **(kwargs or {})}
        for argument in declared:
            if argument.alias_info is not None and argument.alias_info.is_write and argument.name in given:
                written = given[argument.name]
                self._unwritten -= {id(one) for one in (written if isinstance(written, (list, tuple)) else [written])}
        if not self.enough and len(self._unwritten) <= self._others:
            self.enough = True
            self._act()
        return result


def _remove(hooks: Iterable[Any]) -> None:
    for hook in hooks:
        hook.remove()


def _parameters(optimizers: Iterable[torch.optim.Optimizer]) -> list[torch.nn.Parameter]:
    return [
        p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"] if p.requires_grad
    ]
