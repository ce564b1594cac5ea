"""What becomes of the buffers in a step that V shares computed? The same, whoever computed them.

Every share starts from the buffers of the step (snapshot.py), those of the models and of the modules in `extra=`.
Only those of torch's normalisation layers, and of classes derived from them, have a rule of their own: statistics
become the mean over the shares, weighted by their examples, in fp32 and in the tree's order, and counts must agree;
spectral norm, whose vectors follow from the weights alone, takes share 0's. What any other module's forward pass writes
(a queue, a codebook, a count) may mean anything, so it is refused by name, with the rules of RULES to choose from. A
buffer that comes or goes, or gets another shape or dtype, as a table that grows with its input, must do so alike in all
shares. A worker without a share takes what must agree from the one that holds share 0.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import xxhash

from elastic.errors import UNTOUCHED, StepError
from elastic.group.buffer_layout import Layout, as_bytes, as_floats, floats_in, same_bits, shaped
from elastic.group.buffer_rules import NORMS, REFUSED, Rule, check, default, no_rule, override, summed
from elastic.group.flat_sum import NOTHING, FlatSum
from elastic.group.foreach_buffers import ForeachBuffers, Row, foreach_buffers
from elastic.group.form import Group, gather_bytes
from elastic.group.hierarchical_sum import tree_sum
from elastic.group.snapshot import Buffer, Snapshot, same_kind
from elastic.group.tree import Schedule
from elastic.state.trained_set import listed

ShareValues = dict[Buffer, "torch.Tensor | None"]
"""What a share left in the buffers that it may have changed."""


class Buffers:
    """The buffers of the run's modules in one view: what each share left, and what they become."""

    def __init__(
        self,
        models: Mapping[str, torch.nn.Module],
        extra: Mapping[str, Any],
        overrides: Mapping[str, Rule],
        group: Group,
        device: torch.device,
        *,
        one_share: bool = False,
    ) -> None:
        self._group = group
        self._device = device
        self._overrides = overrides
        self._one_share = one_share  # a step has no more, at any world size
        self._now = Snapshot(models, extra)
        self._hanging_of: list[Buffer] | None = None
        self._hanging: list[tuple[str, Callable[[], torch.Tensor | None]]] = []
        check(overrides, self._now.buffers)
        self._by_name: dict[str, Buffer] = {}
        self._rules: dict[str, Rule | None] = {}
        self._index()
        self._foreach: ForeachBuffers | None = None
        self._lively: list[Buffer] | None = None  # of which `_foreach` was made
        self._rows: list[Row] = []  # of this rank's shares, as long as all were taken so
        self._shares: list[tuple[int, ShareValues]] = []
        self._exact: ShareValues = {}  # of what this rank's first share left, that of which no mean is taken
        self._relaid: dict[Buffer, Layout] = {}  # by this rank's shares
        self._layouts: dict[Buffer, tuple[Layout, bool]] = {}  # by any rank's, and whether they are in the state_dict
        self._persistent: dict[Buffer, bool] = {}
        self._holds_the_first_share = False
        self._moves: list[tuple[Buffer, int]] = []
        self._sum: FlatSum | None = None
        self._agreed: dict[Buffer, torch.Tensor] = {}
        self.moving: list[str] = []
        self._moving: frozenset[str] = frozenset()
        self._cached: tuple[int, FlatSum] | None = None

    def begin(self) -> None:
        """Note the values that every share of the step starts from. Call with the model in its applied state."""
        if self._now.begin():
            self._index()
        if self._lively is not self._now.lively:
            self._lively = self._now.lively
            self._foreach = foreach_buffers(self._lively, self._rule, self._device)
        if self._foreach is not None and not self._foreach.begin():
            self._foreach = self._lively = None
        self._new_step()

    @torch.no_grad()
    def share_done(self, share: int, examples: int) -> None:
        """Take what a share of `examples` examples left, and put the step's buffers back for the next one."""
        stirred = self._now.stirred()
        if self._foreach is not None and stirred is self._foreach.buffers and self._foreach.hold():
            self._take_together(self._foreach, share, examples)
        else:
            self._take(stirred, share, examples)
            self._now.put_back()

    def _take_together(self, all_of_them: ForeachBuffers, share: int, examples: int) -> None:
        """Take what a share left, all of it together. Raises StepError where it disagrees with an earlier share."""
        row = all_of_them.take(len(self._shares))
        if not self._shares:
            self._holds_the_first_share = share == 0
            self._exact = row.exact
        elif not self._rows or not row.agrees(self._rows[0]):
            self._same_layouts(share, {})
            self._agree(share, row.values)
        if len(self._rows) == len(self._shares):
            self._rows.append(row)
        self._shares.append((examples, row.values))

    def _take(self, stirred: Sequence[Buffer], share: int, examples: int) -> None:
        """Take what a share left in these buffers. Raises StepError where no rule allows it."""
        values: ShareValues = {}
        relaid: dict[Buffer, Layout] = {}
        written: list[str] = []
        for buffer in stirred:
            if self._overrides and self._rules.get(buffer.name) == "keep":  # it is put back, whatever it is
                continue
            now, start = buffer.now(), buffer.start
            values[buffer] = None if now is None else now.clone()
            if self._rule(buffer, now) == REFUSED and not same_bits(now, start):
                written.append(buffer.name)
            if now is None or start is None:
                if now is not start:
                    relaid[buffer] = Layout.of(now)
            elif now.shape != start.shape or now.dtype != start.dtype:
                relaid[buffer] = Layout.of(now)
        if written:
            raise no_rule(sorted(written), share)
        if reshaped := [buffer.name for buffer in relaid if self._takes_all(buffer)]:
            raise StepError(
                f"share {share} gave another shape or dtype to what buffers= has a sum or a function for: "
                f"{listed(reshaped)}\n{UNTOUCHED}  next   keep its shape in the forward pass"
            )
        if not self._shares:
            self._relaid = relaid
            self._persistent = {buffer: buffer.persistent for buffer in relaid}
            self._holds_the_first_share = share == 0
            self._exact = self._not_averaged(values)
        else:
            self._same_layouts(share, relaid)
            self._agree(share, values)
        self._shares.append((examples, values))

    def restore(self) -> None:
        """Put the step's buffers back, as they were at `begin`. Between two steps there is nothing to put back."""
        self._now.restore()

    @contextmanager
    def untouched(self) -> Iterator[None]:
        """Open a context for what is no step: it may move buffers, and `restore` in it, and its end, put them back."""
        with self._now.untouched():
            yield

    @property
    def hanging(self) -> Sequence[tuple[str, Callable[[], torch.Tensor | None]]]:
        """Return (name, function that gives its value now) of the buffers that were there as the step began.

        Left out are those that are put back in any case. It is another object where others are there.
        """
        if self._hanging_of is not self._now.buffers:
            self._hanging_of = self._now.buffers
            kept = {buffer.name for buffer in self._hanging_of if self._rules.get(buffer.name) == "keep"}
            self._hanging = [(one.name, one.now) for one in self._hanging_of if one.name not in kept]
        return self._hanging

    @property
    def walked(self) -> Sequence[tuple[str, str, torch.nn.Module]]:
        """Return (root, path, module), as the step began: another object, where others are there."""
        return self._now.walked

    def newly_moving(self) -> list[str]:
        """Return the float buffers that this rank's shares changed and that are not known to move yet."""
        changed = {buffer for _, values in self._shares for buffer in values}
        new = [b for b in changed if b.name not in self._moving and b not in self._relaid]
        return sorted(b.name for b in new if self._rule(b, b.start) == "mean")

    def relaid(self) -> list[str]:
        """Return, for all ranks, the buffers that came, went or got another layout in this rank's shares."""
        return [
            json.dumps([b.entry.root, b.entry.path, b.entry.attribute, self._persistent[b], *layout])
            for b, layout in self._relaid.items()
            if self._counts(b)
        ]

    def digest(self) -> int:
        """Return 63 bits of what must be equal on all ranks, 0 on an idle one; equal ones let the step go on."""
        if not self._shares:
            return 0
        hasher = xxhash.xxh3_64()
        for name, digest in self._digests().items():
            hasher.update(f"{name} {digest};".encode())
        return hasher.intdigest() >> 1 or 1

    def settle(self) -> None:
        """Raise StepError, on all ranks, that names what differs. All call it where their digests differ."""
        gathered = gather_bytes(self._group, json.dumps(self._digests() if self._shares else None).encode())
        known: list[dict[str, str]] = [answer for answer in map(json.loads, gathered) if answer is not None]
        names = sorted({name for digests in known for name in digests})
        differ = [name for name in names if len({digests.get(name) for digests in known}) > 1]
        raise _disagreement(differ, "the shares of different ranks")

    def start(self, moving: Sequence[str], relaid: Iterable[str], schedule: Schedule, merges: Sequence[int]) -> None:
        """Start the sums of the float buffers named by `moving`, and of those of `relaid`, the same on every rank.

        Raises PeerLost, StepError.
        """
        self.moving = list(moving)
        self._moving = frozenset(moving)
        self._layouts = self._known_by_all(relaid)
        self._moves = self._summed()
        self._sum = None
        if not self._moves:
            return
        elements = sum(numel for _, numel in self._moves)
        if self._cached is None or self._cached[0] != elements + len(self._moves):
            total = tree_sum(self._group, elements + len(self._moves), torch.float32, self._device, ordered=True)
            self._cached = elements + len(self._moves), total
        self._sum = self._cached[1]
        self._sum.begin(schedule)
        for row in self._sum.rows:
            row.fill_(NOTHING)
        if self._shares:
            stack: list[torch.Tensor] = []
            for leaf, count in zip(self._leaves(elements), merges, strict=True):
                stack.append(leaf)
                for _ in range(count):
                    right = stack.pop()
                    stack[-1].add_(right)
            for row, total_of_row in zip(self._sum.rows, stack, strict=True):
                row[:elements] = total_of_row
            # behind the values, one number per buffer: on how many ranks a share has touched it
            touched = [float(self._touched(buffer)) for buffer, _ in self._moves]
            self._sum.rows[0][elements : elements + len(touched)] = torch.tensor(touched, device=self._device)
        self._sum.start()

    def finish(self, examples: int, schedule: Schedule) -> None:
        """Wait for the sums over the step's `examples`; `apply` then has what it needs. Raises PeerLost, StepError."""
        if self._sum is not None:
            self._sum.join()
            self._mean = self._sum.finish()
            self._mean_of = examples
        agreed = {buffer: value for buffer, value in self._exact.items() if value is not None}
        if self._group.world_size > 1 and (0 in schedule.rows or "first" in self._rules.values()):
            agreed |= self._of_first_share(schedule)
        agreed |= self._of_all_shares()
        self._agreed = {buffer: value for buffer, value in agreed.items() if not same_bits(value, buffer.start)}

    def close(self) -> None:
        """End the step with the buffers as they were: in place of `apply`, after `restore`."""
        self._now.close()

    def apply(self) -> None:
        """Give the modules the step's buffers, as the update begins: its own changes come on top."""
        self._now.close()
        ties: dict[int, torch.Tensor] = {}  # what was one tensor under several names stays one
        with torch.no_grad():
            if self._sum is not None:
                sizes = [numel for _, numel in self._moves]
                *means, touched = torch.split_with_sizes(self._mean[: sum(sizes) + len(sizes)], [*sizes, len(sizes)])
                self._mean[: sum(sizes)].div_(self._mean_of)  # not the numbers of ranks behind
                # what no share touched keeps its bits: a mean of equal values may round
                moved = [
                    (buffer, mean)
                    for (buffer, _), mean, shares in zip(self._moves, means, touched.tolist(), strict=True)
                    if shares > 0
                ]
                into = [buffer.tensor for buffer, _ in moved if buffer.tensor is not None]
                if self._layouts or any(tensor.is_complex() for tensor in into):
                    for buffer, mean in moved:
                        self._become(buffer, mean, ties)
                elif into:
                    torch._foreach_copy_(into, [mean.view(to.shape) for (_, mean), to in zip(moved, into, strict=True)])
            for buffer, value in self._agreed.items():
                self._become(buffer, value, ties)
            for buffer, (layout, _) in self._layouts.items():
                if layout.dtype is None:
                    buffer.put(None)

    def watched(self, *, closely: bool) -> Callable[[], list[str]]:
        """Return a function that tells which of the buffers that shares move have been moved since.

        closely: by value, too, and not only by versions, of which BatchNorm counts that of `num_batches_tracked` alone
        """
        return self._now.watched(closely=closely)

    # which buffers there are, and what is to become of them

    def _index(self) -> None:
        """Name the buffers and their rules anew: some have come or gone."""
        self._by_name = {buffer.name: buffer for buffer in self._now.buffers}
        self._rules = {
            name: override(self._overrides, name) or default(buffer, one_share=self._one_share)
            for name, buffer in self._by_name.items()
        }

    def _rule(self, buffer: Buffer, value: torch.Tensor | None) -> Rule:
        """Return the rule of a buffer that is, or becomes, like `value`."""
        rule = self._rules.get(buffer.name)
        if rule is not None:
            return rule
        start = buffer.start
        known = value if value is not None else start
        if isinstance(buffer.entry.module, NORMS):
            return "mean" if known is None or known.is_floating_point() or known.is_complex() else "agree"
        return "agree" if known is None or start is None or not same_kind(known, start) else REFUSED

    def _takes_all(self, buffer: Buffer) -> bool:
        """Return whether a buffer's rule takes the values of all shares together."""
        rule = self._rules.get(buffer.name)
        return rule == "sum" or callable(rule)

    def _not_averaged(self, values: ShareValues) -> ShareValues:
        return {buffer: value for buffer, value in values.items() if self._rule(buffer, value) != "mean"}

    def _counts(self, buffer: Buffer) -> bool:
        """Return whether what this rank's shares made of a buffer's layout counts."""
        return self._rules.get(buffer.name) != "first" or self._holds_the_first_share

    # a step

    def _new_step(self) -> None:
        self._rows = []
        self._shares, self._exact, self._relaid, self._layouts, self._persistent = [], {}, {}, {}, {}
        self._holds_the_first_share = False
        self._moves, self._sum, self._agreed = [], None, {}

    def _same_layouts(self, share: int, relaid: Mapping[Buffer, Layout]) -> None:
        """Raise StepError unless all shares give a buffer the same layout, or only the first share's counts."""
        for buffer in {**self._relaid, **relaid}:
            one, other = self._relaid.get(buffer), relaid.get(buffer)
            if one != other and self._rules.get(buffer.name) != "first":
                before = Layout.of(buffer.start)
                raise StepError(
                    f"share {share} left {other or before} in buffer {buffer.name}, and an earlier one "
                    f"{one or before}: what it becomes would depend on who computes which share\n"
                    f"{UNTOUCHED}  next   give it one shape in all shares, or keep it outside of the model's buffers; "
                    f"update=Update(buffers={{{buffer.name!r}: 'keep'}}) never changes it"
                )

    def _agree(self, share: int, values: ShareValues) -> None:
        """Raise StepError unless exact buffers are the same in this share as in the first one here."""
        first = self._shares[0][1]
        asked = self._exact if values.keys() == first.keys() else self._not_averaged({**first, **values})
        differ = [
            buffer.name
            for buffer in asked
            if not same_bits(first.get(buffer, buffer.start), values.get(buffer, buffer.start))
            and self._rule(buffer, values.get(buffer, buffer.start)) == "agree"
        ]
        if differ:
            raise _disagreement(sorted(differ), f"share {share} and an earlier one")

    def _digests(self) -> dict[str, str]:
        """Return digests of what must be equal on all ranks with shares, and is not what the step began with."""
        found = {b.name: str(layout) for b, layout in self._relaid.items() if self._rules.get(b.name) != "first"}
        for buffer, value in self._exact.items():
            if value is not None and self._rule(buffer, value) == "agree" and not same_bits(value, buffer.start):
                found[buffer.name] = (
                    f"{Layout.of(value)} {xxhash.xxh3_64_hexdigest(as_bytes(value).cpu().numpy().data)}"
                )
        return dict(sorted(found.items()))

    def _known_by_all(self, relaid: Iterable[str]) -> dict[Buffer, tuple[Layout, bool]]:
        """Return the layouts that shares of any rank gave to buffers. Raises StepError for an unknown module."""
        found: dict[Buffer, tuple[Layout, bool]] = {}
        for layout in relaid:
            root, path, attribute, persistent, dtype, shape = json.loads(layout)
            buffer = self._now.at(root, path, attribute)
            if buffer is None:
                raise StepError(
                    f"a share on another rank changed buffer {attribute} of {root}.{path}, and this rank has no such "
                    f"module\n{UNTOUCHED}  next   build all modules before the loop, on all workers"
                )
            found[buffer] = Layout(dtype, tuple(shape)), persistent
        return found

    def _summed(self) -> list[tuple[Buffer, int]]:
        """Return the buffers of which a mean is taken, and how many floats each has; the same on every rank."""
        known = [self._by_name[name] for name in self.moving if name in self._by_name]
        if not self._layouts:
            return [(b, b.start.numel() * (1 + b.start.is_complex())) for b in known if b.start is not None]
        starts = {b: Layout.of(b.start) for b in known if b not in self._layouts and b.start is not None}
        became = {b: layout for b, (layout, _) in self._layouts.items() if layout.dtype is not None}
        return [
            (buffer, floats_in(layout))
            for buffer, layout in sorted({**starts, **became}.items(), key=lambda item: item[0].name)
            if self._rule(buffer, layout.empty(torch.device("meta"))) == "mean"
        ]

    def _leaves(self, elements: int) -> Sequence[torch.Tensor]:
        """Return, share by share, what they left in the buffers of which a mean is taken, times their examples."""
        examples = [float(count) for count, _ in self._shares]
        averaged = self._foreach.averaged if self._foreach is not None and not self._layouts else []
        if len(self._rows) == len(self._shares) and [buffer for buffer, _ in self._moves] == averaged:
            return torch._foreach_mul([row.floats for row in self._rows], examples)
        weights = torch.tensor(examples, device=self._device).view(-1, 1)
        return torch.cat(self._values()).to(torch.float32).view(len(self._shares), elements).mul_(weights).unbind()

    def _values(self) -> list[torch.Tensor]:
        """Return, share by share, what they left in the buffers of which a mean is taken, as floats."""
        starts = {b: b.start for b, _ in self._moves if b.start is not None and b.start.device == self._device}
        alike = not self._layouts and not self._relaid and len(starts) == len(self._moves)
        if not alike or any(start.is_complex() for start in starts.values()):
            return [self._as_summed(values, b, numel) for _, values in self._shares for b, numel in self._moves]
        tensors = [values.get(b) if b in values else start for _, values in self._shares for b, start in starts.items()]
        return [value.reshape(-1) for value in tensors if value is not None]

    def _as_summed(self, values: ShareValues, buffer: Buffer, numel: int) -> torch.Tensor:
        """Return what a share left in a buffer, as so many floats."""
        for value in (values.get(buffer, buffer.start), buffer.start):
            if value is not None and (flat := as_floats(value)).numel() == numel:
                return flat.to(self._device)
        return torch.zeros(
            numel, device=self._device
        )  # of this sum nothing is taken: a layout is still to be exchanged

    def _touched(self, buffer: Buffer) -> bool:
        """Return whether a share of this rank left the buffer other than it found it."""
        start = buffer.start
        for _, values in self._shares:
            value = values.get(buffer, start)
            if value is not start and (value is None or start is None or not torch.equal(value, start)):
                return True
        return False

    def _of_first_share(self, schedule: Schedule) -> dict[Buffer, torch.Tensor]:
        """Return the exact buffers as the first share left them, from the rank that computed it. Raises PeerLost."""
        some_idle = 0 in schedule.rows  # an idle rank cannot know what the others agree on
        rules = ("agree", "first") if some_idle else ("first",)
        layouts = {b: Layout.of(b.start) for b in self._now.buffers} | {b: to for b, (to, _) in self._layouts.items()}
        asked = [
            (buffer, empty)
            for buffer, layout in sorted(layouts.items(), key=lambda item: item[0].name)
            if (empty := layout.empty(self._device)) is not None and self._rule(buffer, empty) in rules
        ]
        sizes = [empty.nbytes for _, empty in asked]
        if not sum(sizes):
            return {}
        source = next(rank for rank, rows in enumerate(schedule.rows) if rows)
        wire = torch.empty(sum(sizes), dtype=torch.uint8, device=self._device)
        if self._group.rank == source:
            first = self._shares[0][1]
            pairs = [(first.get(buffer, buffer.start), empty) for buffer, empty in asked]
            values = [empty if value is None or not same_kind(value, empty) else value for value, empty in pairs]
            wire = torch.cat([as_bytes(value).to(self._device) for value in values])
        self._group.broadcast(wire, source).wait()
        for (_, empty), piece in zip(asked, torch.split_with_sizes(wire, sizes), strict=True):
            as_bytes(empty).copy_(piece)
        return dict(asked)

    @torch.no_grad()
    def _of_all_shares(self) -> dict[Buffer, torch.Tensor]:
        """Return what a sum, or a function, makes of all shares with examples. Raises PeerLost, StepError."""
        pairs = [(buffer, buffer.start) for buffer in self._now.buffers if self._takes_all(buffer)]
        asked = [(buffer, start) for buffer, start in pairs if start is not None]
        if not asked:
            return {}
        left = [values.get(buffer, start) for count, values in self._shares if count for buffer, start in asked]
        mine = [as_bytes(value).cpu() for value in left if value is not None]
        packed = torch.cat(mine).numpy().tobytes() if mine else b""
        gathered = torch.frombuffer(bytearray(b"".join(gather_bytes(self._group, packed))), dtype=torch.uint8)
        sizes = [start.nbytes for _, start in asked]
        shares = [torch.split_with_sizes(row, sizes) for row in gathered.view(-1, sum(sizes))]
        found: dict[Buffer, torch.Tensor] = {}
        for number, (buffer, start) in enumerate(asked):
            values = [torch.empty_like(start, device="cpu") for _ in shares]
            for value, pieces in zip(values, shares, strict=True):
                as_bytes(value).copy_(pieces[number])
            rule = self._rules[buffer.name]
            if callable(rule):
                found[buffer] = self._as_it_was(buffer, rule([value.to(start.device) for value in values]))
            else:
                found[buffer] = summed([value.to(start.device) for value in values], start)
        return found

    def _as_it_was(self, buffer: Buffer, value: Any) -> torch.Tensor:
        """Return what a script's function gave. Raises StepError where it is not of the buffer's kind."""
        assert buffer.start is not None
        if isinstance(value, torch.Tensor) and same_kind(value, buffer.start):
            return value.detach()
        given = Layout.of(value) if isinstance(value, torch.Tensor) else type(value).__name__
        raise StepError(
            f"the function for buffer {buffer.name} gave {given}; expected {Layout.of(buffer.start)}, as it is\n"
            f"{UNTOUCHED}  next   return one tensor of the buffer's shape and dtype, made of the list that it is given"
        )

    def _become(self, buffer: Buffer, value: torch.Tensor, ties: dict[int, torch.Tensor]) -> None:
        """Give a buffer its value: in place, or in a new tensor where it has got another layout."""
        layout, persistent = self._layouts.get(buffer, (None, True))
        if layout is None:
            assert buffer.tensor is not None
            to = buffer.tensor
            to.copy_(shaped(value, Layout.of(to)) if to.is_complex() else value.view(to.shape))
            return
        made = layout.empty(buffer.tensor.device if buffer.tensor is not None else self._device)
        assert made is not None
        made = ties.setdefault(id(buffer.tensor), made) if buffer.tensor is not None else made
        made.copy_(shaped(value, layout))
        buffer.become(made, persistent=persistent)


def _disagreement(names: Sequence[str], where: str) -> StepError:
    """Return the error for buffers that became different, where no mean of them exists."""
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    first = ", ".join(f"{name!r}: 'first'" for name in names[:8])
    return StepError(
        f"buffer{'s' * (len(names) > 1)} {shown} became different in {where}, and no mean of them exists\n"
        f"{UNTOUCHED}  next   update=Update(buffers={{{first}}}) takes share 0's value, 'keep' never changes it; "
        "'*' in a name stands for any part of it"
    )
