"""What becomes of a model's buffers in a step that V shares computed? The same, whoever computed them.

Every share starts from the buffers of the step. Afterwards a float buffer that some share changed is the
mean over the shares, weighted by their examples, in fp32 and in the tree's order; one that none changed
stays as it is; integer and bool buffers (BatchNorm's counter) must agree over the shares, and a worker
without a share takes them from the one that holds share 0. A buffer that fits none of this is refused by
name, and `Run(buffers={"name": "first" | "keep"})` says what to do: take share 0's, or never change it.
A mean in fp32 suits running statistics; what counts or must stay exact is better an integer, or "first".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import xxhash

from elastic.errors import ConfigError, StepError
from elastic.group.form import Group
from elastic.group.gradients import UNTOUCHED
from elastic.group.tree import Schedule
from elastic.group.treesum import NOTHING, TreeSum

_COMPARED_BYTES = 1 << 20
"""Smaller buffers are compared by value: BatchNorm's kernel changes its running statistics without counting a
version (torch 2.13). Larger ones (masks, tables) are trusted to their version counter: comparing them costs time."""

RULES = ("mean", "agree", "first", "keep")


@dataclass(frozen=True, eq=False)
class _Buffer:
    """A buffer, the module that holds it, its tensor for the life of the run, and its rule."""

    name: str
    module: torch.nn.Module
    attribute: str
    tensor: torch.Tensor
    rule: str

    def now(self) -> torch.Tensor:
        """What the forward pass left: usually `tensor`, changed in place; some models assign a new one."""
        found = self.module._buffers[self.attribute]
        assert found is not None
        return found


class Buffers:
    """The buffers of the run's models in one view."""

    def __init__(
        self, models: Mapping[str, torch.nn.Module], overrides: Mapping[str, str], group: Group, device: torch.device
    ) -> None:
        self._group = group
        self._device = device
        self._all = _found(models, overrides)
        self._means = [buffer for buffer in self._all if buffer.rule == "mean"]
        self._exact = [buffer for buffer in self._all if buffer.rule in ("agree", "first")]
        self._first = any(buffer.rule == "first" for buffer in self._all)
        self._start = {buffer.name: buffer.tensor.clone() for buffer in self._all}
        self._versions = {buffer.name: buffer.tensor._version for buffer in self._all}
        # A small buffer that was changed once is kept and put back with every share, without a look: comparing all of
        # them twice a share took 1.3 ms of a step of the digits network, 40 ms (measured, 2026-11-21).
        self._lively: list[_Buffer] = []
        self._still = self._all
        self._agreed: list[torch.Tensor] | None = None
        self.moving: list[str] = []
        self._sums: dict[Schedule, TreeSum] = {}
        self._sum: TreeSum | None = None
        self._shares: list[tuple[int, dict[str, torch.Tensor]]] = []
        self._in_step = False

    def begin(self) -> None:
        """Notes the values that every share of the step starts from. Call with the model in its applied state."""
        for buffer in self._still:
            if self._changed(buffer):
                self._start[buffer.name].copy_(buffer.tensor)
                self._versions[buffer.name] = buffer.tensor._version
        if self._lively:
            torch._foreach_copy_([self._start[b.name] for b in self._lively], [b.tensor for b in self._lively])
        self._agreed = None
        self._shares = []
        self._sum = None
        self._in_step = True

    def share_done(self, share: int, examples: int) -> None:
        """Takes what a share of `examples` examples left, and puts the step's buffers back for the next one."""
        stirred = [buffer for buffer in self._still if self._changed(buffer)]
        changed: dict[str, torch.Tensor] = {}
        for buffer in (*self._lively, *stirred):
            now, start = buffer.now(), self._start[buffer.name]
            if now.shape != start.shape or now.dtype != start.dtype:
                raise StepError(
                    f"share {share} made buffer {buffer.name}, {tuple(start.shape)} {start.dtype}, "
                    f"{tuple(now.shape)} {now.dtype}\n"
                    f"{UNTOUCHED}  next   keep its shape, or take it out of the model's buffers"
                )
            if buffer.rule != "keep":
                changed[buffer.name] = now.detach().clone()
        self._shares.append((examples, changed))
        if self._exact:
            self._agree(share, changed)
        self.restore()
        if stirred:
            self._lively += [buffer for buffer in stirred if buffer.tensor.nbytes <= _COMPARED_BYTES]
            self._still = [buffer for buffer in self._all if buffer not in self._lively]

    def restore(self) -> None:
        """Puts the step's buffers back, as they were at `begin`. Between two steps there is nothing to put back."""
        if not self._in_step:
            return
        for buffer in self._all:
            if buffer.now() is not buffer.tensor:
                setattr(buffer.module, buffer.attribute, buffer.tensor)
        for buffer in self._still:
            if self._changed(buffer):
                buffer.tensor.copy_(self._start[buffer.name])
                self._versions[buffer.name] = buffer.tensor._version
        if self._lively:
            torch._foreach_copy_([b.tensor for b in self._lively], [self._start[b.name] for b in self._lively])

    def newly_moving(self) -> list[str]:
        """Float buffers that this rank's shares changed and that are not known to move yet."""
        changed = {name for _, values in self._shares for name in values}
        return [b.name for b in self._means if b.name in changed and b.name not in self.moving]

    def digest(self) -> int:
        """63 bits that say what the exact buffers became, 0 on an idle rank; equal ones let the step go on."""
        if self._agreed is None or not self._exact:
            return 0
        hasher = xxhash.xxh3_64()
        for buffer, value in zip(self._exact, self._agreed, strict=True):
            if buffer.rule == "agree":
                hasher.update(value.cpu().numpy().tobytes())
        return hasher.intdigest() >> 1 or 1

    def exact_names(self) -> str:
        return ", ".join(buffer.name for buffer in self._exact if buffer.rule == "agree")

    def start(self, moving: Sequence[str], schedule: Schedule, merges: Sequence[int]) -> None:
        """Starts the sums of the float buffers named by `moving`, the same on every rank. Raises PeerLost."""
        if list(moving) != self.moving:
            self.moving = list(moving)
            self._sums = {}
        moves = self._moves()
        if not moves:
            return
        elements = sum(buffer.tensor.numel() for buffer in moves)
        if schedule not in self._sums:
            self._sums[schedule] = TreeSum(
                self._group, schedule, elements + len(moves), torch.float32, self._device, ordered=True
            )
        self._sum = self._sums[schedule]
        self._sum.rows.fill_(NOTHING)
        if self._shares:
            values = [changed.get(b.name, self._start[b.name]) for _, changed in self._shares for b in moves]
            weights = torch.tensor([[float(examples)] for examples, _ in self._shares], device=self._device)
            flat = torch.cat([value.reshape(-1) for value in values]).to(torch.float32)
            leaves = flat.view(len(self._shares), elements).mul_(weights)
            stack: list[torch.Tensor] = []
            for leaf, count in zip(leaves.unbind(), merges, strict=True):
                stack.append(leaf)
                for _ in range(count):
                    right = stack.pop()
                    stack[-1].add_(right)
            for row, total in enumerate(stack):
                self._sum.rows[row, :elements] = total
            touched = [float(self._touched(buffer)) for buffer in moves]
            self._sum.rows[0, elements : elements + len(moves)] = torch.tensor(touched, device=self._device)
        self._sum.start()

    def finish(self, examples: int, schedule: Schedule) -> None:
        """Waits for the sums over the step's `examples`; `apply` then has what it needs. Raises PeerLost."""
        if self._sum is not None:
            self._sum.join()
            self._mean = self._sum.finish()
            self._mean_of = examples
        if self._first or (self._exact and 0 in schedule.rows):  # an idle rank cannot know what the others agree on
            source = next(rank for rank, rows in enumerate(schedule.rows) if rows)
            if self._agreed is None:
                self._agreed = [self._start[b.name].clone() for b in self._exact]
            for value in self._agreed:
                wire = value.contiguous().reshape(-1).view(torch.uint8)
                self._group.broadcast(wire, source).wait()
                value.copy_(wire.view(value.dtype).view(value.shape))

    def apply(self) -> None:
        """Gives the model the step's buffers: the beginning of the update, whose own changes come on top."""
        self._in_step = False
        if self._sum is not None:
            moves = self._moves()
            sizes = [buffer.tensor.numel() for buffer in moves]
            *means, touched = torch.split_with_sizes(self._mean[: sum(sizes) + len(moves)], [*sizes, len(moves)])
            for buffer, mean, shares in zip(moves, means, touched.tolist(), strict=True):
                if shares > 0:
                    buffer.tensor.copy_(mean.div_(self._mean_of).view(buffer.tensor.shape))
        if self._agreed is not None:
            for buffer, value in zip(self._exact, self._agreed, strict=True):
                if not torch.equal(value, self._start[buffer.name]):
                    buffer.tensor.copy_(value)

    def _changed(self, buffer: _Buffer) -> bool:
        """Whether the buffer differs from the step's start."""
        now = buffer.now()
        if now is not buffer.tensor or now._version != self._versions[buffer.name]:
            return True
        return now.nbytes <= _COMPARED_BYTES and not torch.equal(now, self._start[buffer.name])

    def _touched(self, buffer: _Buffer) -> bool:
        """Whether a share of this rank left the buffer other than it found it."""
        values = (changed[buffer.name] for _, changed in self._shares if buffer.name in changed)
        return any(v.nbytes > _COMPARED_BYTES or not torch.equal(v, self._start[buffer.name]) for v in values)

    def _moves(self) -> list[_Buffer]:
        moving = set(self.moving)
        return [buffer for buffer in self._means if buffer.name in moving]

    def _agree(self, share: int, changed: Mapping[str, torch.Tensor]) -> None:
        values = [changed.get(b.name, self._start[b.name]) for b in self._exact]
        if self._agreed is None:
            self._agreed = values
            return
        for buffer, first, value in zip(self._exact, self._agreed, values, strict=True):
            if buffer.rule == "agree" and not torch.equal(first, value):
                raise disagreement(buffer.name, share)


def disagreement(name: str, share: int | None) -> StepError:
    where = f"share {share} and an earlier one" if share is not None else "the shares of different ranks"
    return StepError(
        f"the integer buffer {name} became different in {where}: no mean of it exists\n"
        f"{UNTOUCHED}  next   Run(buffers={{{name!r}: 'first'}}) takes share 0's value, 'keep' never changes it"
    )


def _found(models: Mapping[str, torch.nn.Module], overrides: Mapping[str, str]) -> list[_Buffer]:
    found: list[_Buffer] = []
    unknown = dict(overrides)
    for key, model in models.items():
        for prefix, module in model.named_modules():
            for attribute, tensor in module.named_buffers(recurse=False):
                name = ".".join(part for part in ((key if len(models) > 1 else ""), prefix, attribute) if part)
                rule = unknown.pop(name, None) or ("mean" if tensor.is_floating_point() else "agree")
                if rule not in RULES or (rule == "mean" and not tensor.is_floating_point()):
                    raise ConfigError(
                        f"buffers={{{name!r}: {rule!r}}}: the buffer is {tensor.dtype}; 'first' and 'keep' fit any, "
                        "'mean' floats, 'agree' integers"
                    )
                if tensor.is_complex():
                    raise ConfigError(
                        f"buffer {name} is {tensor.dtype}, and no mean of it is defined here\n"
                        f"  next  Run(buffers={{{name!r}: 'keep'}}) if training never changes it, or 'first'"
                    )
                found.append(_Buffer(name, module, attribute, tensor, rule))
    if unknown:
        raise ConfigError(
            f"buffers= names {', '.join(unknown)}; the model has {', '.join(b.name for b in found) or 'none'}"
        )
    return found
