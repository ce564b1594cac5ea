"""What becomes of the plain attributes of modules (state/attributes.py) in a step? The same, whoever computed it.

As with buffers, every share starts from the attributes of the step. Where all shares leave the same (a count of forward
passes, a mode), so it is after the step. Where they differ, nothing could say what it should be, and the step is
refused; but where the script has built nothing, or None (the shape of the last input, a cache), it stays as it was.
Tensors that a gradient flows through are forgotten after each share, and objects that are not plain left alone; but a
list to which shares append tensors, one after the other, is refused.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain
from operator import is_, itemgetter
from typing import Any

import torch
import xxhash

import elastic_checkpoint
from elastic.errors import UNTOUCHED, StepError
from elastic.group.form import Group, gather_bytes
from elastic.state.attributes import ABSENT, Attributes, Noted, copied, is_plain, is_same, set_plain
from elastic_checkpoint.format.dtypes import name_of

_DIFFER: Any = object()
_NEW, _SET = "new", "set"

Walked = Sequence[tuple[str, str, torch.nn.Module]]


class PlainAttributes:
    """
    name   (root, attribute with its path) -> what people call it
    keeps  whether a name is put back after every share, whatever the shares leave
    built  what the script has built
    """

    def __init__(self, name: Callable[[str, str], str], keeps: Callable[[str], bool], built: Attributes) -> None:
        self._name = name
        self._keeps = keeps
        self._built = built
        self._noted: dict[int, tuple[str, str, Noted]] = {}
        self._entries: list[dict[str, Any]] = []
        self._counts: list[int] = []
        self._getters: list[Callable[[dict[str, Any]], tuple[Any, ...]]] = []
        self._listed: list[Any] = []
        self._within: list[tuple[str, str, Noted]] = []
        self._values: dict[str, Any] | None = None  # as the first share of this rank left it
        self._was: dict[str, Any] = {}  # what of this the step began with
        self._loose: set[str] = set()  # what of this the script has not built
        self._lists: dict[str, tuple[torch.nn.Module, str, list[Any]]] = {}  # with tensors, as the last share left them
        self._open = False
        self._at_begin: tuple[dict[str, str], int] | None = None

    def begin(self, walked: Walked) -> None:
        """Notes what every share of the step starts from."""
        if not self._is_still_as_noted(walked):
            self._note(walked)
            self._at_begin = None
        self._values, self._was, self._open = None, {}, True

    def _note(self, walked: Walked) -> None:
        before, self._noted = self._noted, {}
        for root, path, module in walked:
            known = before.get(id(module))
            if known is None or known[2].module is not module or known[2].changed():
                known = root, path, Noted(module, modes=True)
            self._noted[id(module)] = known
        every = [noted for _, _, noted in self._noted.values()]
        self._entries = [noted.module.__dict__ for noted in every]
        self._counts = [len(noted.listed) for noted in every]
        looked_at = [noted.looked_at for noted in every]
        self._getters = [_getter(list(attributes)) for attributes in looked_at]
        self._listed = [value for attributes in looked_at for value in attributes.values()]
        self._within = [known for known in self._noted.values() if known[2].may_change_within]

    def share_done(self, share: int) -> None:
        """Takes what a share left, and puts back what the step began with. Raises StepError."""
        self._look_at_lists(share)
        values = self._take()
        if self._values is None:
            self._values = values
            return
        for name in {**self._values, **values}:
            was = self._was[name]
            if not is_same(self._values.get(name, was), values.get(name, was)):
                if name not in self._loose:
                    raise _refusal([name], f"share {share} and an earlier one")
                self._values[name] = _DIFFER

    def restore(self) -> None:
        """Within a step, or an evaluation: all as it was at `begin`."""
        if self._open:
            self._take()

    def close(self) -> None:
        """What was no step is over."""
        self._open = False

    def at_begin(self, *, values: bool) -> tuple[dict[str, str], int]:
        """Of what the step began with: name -> digest, and one of all. Of which kind each module is, and whether it is
        in eval mode; with values, of attributes that are no longer as the script built them, here or, as far as that is
        known, on another worker. Not of caches, and not of what is put back in any case."""
        if self._at_begin is None:
            found = {}
            for root, path, noted in self._noted.values():
                found[f"{self._name(root, path)} class"] = type(noted.module).__qualname__
                if noted.module.training is False:
                    found[self._name(root, _joined(path, "training"))] = "False"
            for root, path, key, value in self._built.compared() if values else ():
                name = self._name(root, _joined(path, key))
                if not self._keeps(name):
                    found[name] = _digest(value)
            found = dict(sorted(found.items()))
            self._at_begin = found, xxhash.xxh3_64_intdigest(repr(found).encode())
        return self._at_begin

    def changed(self) -> list[tuple[str, str, str, bool]]:
        """See Attributes.changed_names."""
        return self._built.changed_names()

    def compare_also(self, names: Iterable[tuple[str, str, str, bool]]) -> None:
        """See Attributes.compare_also."""
        self._built.compare_also(names)
        self._at_begin = None

    def digests(self) -> dict[str, str]:
        """Of what this rank's shares left otherwise than they found it."""
        return {
            name: f"{_NEW if name in self._loose else _SET} {_digest(value)}"
            for name, value in (self._values or {}).items()
        }

    def settle(self, digests_by_name: Mapping[str, Collection[str | None]]) -> None:
        """Ranks have different digests under these names. The same on every rank. Raises StepError where it matters."""
        refused = [name for name, digests in digests_by_name.items() if any(d and d.startswith(_SET) for d in digests)]
        if refused:
            raise _refusal(refused, "the shares of different ranks")
        if self._values is not None:
            self._values |= dict.fromkeys(digests_by_name, _DIFFER)

    def tell_idle(self, group: Group) -> None:
        """All ranks call it in a step in which some have no share: these get what the shares of the others left."""
        encoded = b""
        if self._values is not None:
            document, tensors = elastic_checkpoint.encode({n: v for n, v in self._values.items() if v is not _DIFFER})
            encoded = json.dumps([document, {name: _packed(tensor) for name, tensor in tensors.items()}]).encode()
        answers = [answer for answer in gather_bytes(group, encoded) if answer]
        if self._values is None:
            document, packed = json.loads(answers[0])
            self._values = dict(
                elastic_checkpoint.decode(document, {name: _unpacked(*one) for name, one in packed.items()})
            )

    def apply(self) -> None:
        """The beginning of the update, whose own changes come on top."""
        self._open = False
        values, self._values = self._values or {}, None
        if not values:
            return
        for root, path, noted in self._noted.values():
            prefix = self._name(root, f"{path}." if path else "")
            for name in [name for name in values if name.startswith(prefix) and values[name] is not _DIFFER]:
                if "." not in (key := name.removeprefix(prefix)):
                    set_plain(noted.module, key, values[name])

    def names(self, walked: Walked) -> list[str]:
        """Of all attributes that there are."""
        return [self._name(root, _joined(path, key)) for root, path, module in walked for key in module.__dict__]

    def _take(self) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for root, path, noted in self._within if self._are_same_objects() else self._noted.values():
            for key in noted.changed():
                now, was = noted.module.__dict__.get(key, ABSENT), noted.was(key)
                if not (was is ABSENT or is_plain(was)):
                    continue
                if is_plain(now):
                    name = self._name(root, _joined(path, key))
                    if not self._keeps(name):
                        values[name], self._was[name] = copied(now), was
                        if self._built.is_nothing(root, path, key):
                            self._loose.add(name)
                elif was is ABSENT or not (now is ABSENT or isinstance(now, torch.Tensor)):
                    name = self._name(root, _joined(path, key))
                    if not _holds_tensors(now):
                        continue  # an object, which may be anything
                    if not self._keeps(name):
                        self._lists[name] = noted.module, key, _references(now)
                        continue
                noted.put_back(key)
        return values

    def _look_at_lists(self, share: int) -> None:
        """Raises StepError for one that has grown by this share: one that a forward pass begins anew has not."""
        for name, (module, key, before) in self._lists.items():
            there = module.__dict__.get(key)
            now: list[Any] = there if _holds_tensors(there) and there is not None else []
            if 0 < len(before) < len(now) and all(one() is other for one, other in zip(before, now, strict=False)):
                raise StepError(
                    f"share {share} appended to {name}, which holds tensors of an earlier one\n"
                    "  found  a worker holds those of its own shares, and which these are depends on the world size\n"
                    f"{UNTOUCHED}  next   add numbers up over the batch: run.add(name=...), in Lightning "
                    "self.log(name, ...);\n"
                    f"         what is only looked at, Run(buffers={{{name!r}: 'keep'}}) puts back after every share"
                )
            self._lists[name] = module, key, _references(now)

    def _is_still_as_noted(self, walked: Walked) -> bool:
        return (
            list(self._noted) == [id(module) for _, _, module in walked]
            and self._are_same_objects()
            and not any(noted.changed() for _, _, noted in self._within)
        )

    def _are_same_objects(self) -> bool:
        """Quick, for many modules in one look: it is asked at every share."""
        if list(map(len, self._entries)) != self._counts:
            return False
        try:
            now = [get(entries) for get, entries in zip(self._getters, self._entries, strict=True)]
        except KeyError:
            return False
        return all(map(is_, chain.from_iterable(now), self._listed))


def _getter(names: list[str]) -> Callable[[dict[str, Any]], tuple[Any, ...]]:
    """Of several at once, which takes one call."""
    return itemgetter(*names) if len(names) > 1 else lambda entries: tuple([entries[name] for name in names])


def _holds_tensors(value: Any) -> bool:
    return type(value) is list and any(isinstance(item, torch.Tensor) for item in value)


def _references(values: Sequence[Any]) -> list[Any]:
    """Which hold nothing: a graph may hang on a tensor."""
    return [weakref.ref(one) if isinstance(one, torch.Tensor) else (lambda one=one: one) for one in values]


def _joined(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _digest(value: Any) -> str:
    if value is _DIFFER:
        return "differs"
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {list(value.shape)} {xxhash.xxh3_64_hexdigest(_bytes(value))}"
    if isinstance(value, tuple):
        return f"tuple {[_digest(item) for item in value]}"
    if isinstance(value, dict):
        return f"dict { {key: _digest(item) for key, item in value.items()} }"
    return f"{type(value).__name__} {value!r}"


def _bytes(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)


def _packed(tensor: torch.Tensor) -> tuple[str, list[int], str]:
    return name_of(tensor.dtype), list(tensor.shape), _bytes(tensor).hex()


def _unpacked(dtype: str, shape: list[int], data: str) -> torch.Tensor:
    made = torch.empty(shape, dtype=getattr(torch, dtype))
    if made.numel():
        made.reshape(-1).view(torch.uint8).copy_(torch.frombuffer(bytearray.fromhex(data), dtype=torch.uint8))
    return made


def _refusal(names: Sequence[str], where: str) -> StepError:
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    return StepError(
        f"attribute{'s' * (len(names) > 1)} {shown} became different in {where}\n"
        "  found  how many shares a worker computes depends on the world size, and so would this value\n"
        f"{UNTOUCHED}  next   what adds up over a batch: run.add(name=...), in Lightning self.log(name, value), for\n"
        "         metrics elastic.integrations.torchmetrics.Synced(metric);\n"
        "         a running statistic belongs into a buffer: self.register_buffer(name, tensor);\n"
        f"         what is asked for within one body alone, Run(buffers={{{names[0]!r}: 'keep'}}) puts back after it;\n"
        "         what counts steps is set in run.on_apply(function) or in update="
    )
