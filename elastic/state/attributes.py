"""What modules keep in plain attributes: a temperature that falls, a count of updates, a probability of dropout.

No state_dict has them, and what follows depends on them. So, of the models and of modules in `extra=`, what is no
longer as the script built it when its loop began travels with the state. What shares do to them is group/plain.py's.

Plain are numbers, strings, None, tuples, lists and dicts of them (up to _ITEMS_MAX), and tensors that no gradient flows
through, unless they are a parameter's or a buffer's memory under another name (torch.nn.utils.weight_norm keeps such a
one); also tuples and dicts of such tensors, up to _COMPARED_BYTES, as an LSTM's state, of which it is looked at which
tensors they hold. Those of optimizers that the script has written, a count of its own, are carried likewise. What hangs
in other objects is the script's to hand over. `training` is modes.py's. Of tensors above _COMPARED_BYTES only the
version is looked at.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from operator import is_
from typing import Any

import numpy as np
import torch

Walked = Callable[[], Iterable[tuple[str, str, Any]]]

ABSENT: Any = object()
_ITEMS_MAX = 64
_COMPARED_BYTES = 1 << 20
_SCALARS = (bool, int, float, complex, str, type(None), *(np.float64, np.float32, np.int64, np.int32, np.bool_))
_UNCHANGING = (*_SCALARS, tuple)
OF_MODULES = frozenset(vars(torch.nn.Module()))
"""What every module has, whatever its class."""
_OF_TORCH = ("step", "zero_grad", "add_param_group", "_opt_called", "_need_device_dtype_check_for_fused")
OF_OPTIMIZERS = frozenset([*vars(torch.optim.SGD([torch.zeros(1)])), *_OF_TORCH])


def is_plain(value: Any) -> bool:
    kind = type(value)
    if kind in _SCALARS:
        return True
    if isinstance(value, torch.Tensor):
        return kind is torch.Tensor and not value.requires_grad
    if kind in (tuple, list):
        return len(value) <= _ITEMS_MAX and (
            all(type(item) in _SCALARS for item in value) or (kind is tuple and _holds_small_tensors(value))
        )
    if kind is dict:
        return (
            len(value) <= _ITEMS_MAX
            and all(type(key) is str for key in value)
            and (all(type(item) in _SCALARS for item in value.values()) or _holds_small_tensors(value.values()))
        )
    return False


def _holds_small_tensors(values: Collection[Any]) -> bool:
    """And nothing else that is not plain."""
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    small = sum(tensor.nbytes for tensor in tensors if tensor.layout is torch.strided) <= _COMPARED_BYTES
    return bool(tensors) and small and all(type(one) in _SCALARS or _is_own(one) for one in values)


def _is_own(value: Any) -> bool:
    """A tensor of a container: one that nobody trains, and whose values lie in it."""
    return type(value) is torch.Tensor and not value.requires_grad and value.layout is torch.strided


def is_same(one: Any, other: Any) -> bool:
    """Two plain values, to the bit as far as it matters: not a number is like itself."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        if one.shape != other.shape or one.dtype != other.dtype or one.device != other.device:
            return False
        return torch.equal(one, other) or torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)
    if isinstance(one, (tuple, list)) and any(isinstance(item, torch.Tensor) for item in one):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, dict) and any(isinstance(item, torch.Tensor) for item in one.values()):
        return list(one) == list(other) and all(map(is_same, one.values(), other.values()))
    return one is other or repr(one) == repr(other)


def copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if type(value) is tuple:
        return tuple(map(copied, value))
    if type(value) is dict:
        return {key: copied(item) for key, item in value.items()}
    return copy.copy(value)


def _kept(value: Any) -> Any:
    """Of a dict the very items, whose tensors may be others' memory: what changes within them is not looked at."""
    return dict(value) if type(value) is dict else copied(value)


class Noted:
    """The attributes of one module, or optimizer, as they are now. modes: `training` is one of them.

    listed  the objects themselves, in their order
    own     names that are passed over
    """

    def __init__(self, module: Any, *, modes: bool = False, own: frozenset[str] = OF_MODULES) -> None:
        self.module = module
        self._is_another = False
        self._passes_over = own - {"training"} if modes else own
        self._values = dict(module.__dict__)
        self.listed = list(self._values.values())
        self._copies: dict[str, Any] = {}
        self._versions: dict[str, int] = {}
        for key, value in self._values.items():
            if key in self._passes_over or isinstance(value, _UNCHANGING) or not is_plain(value):
                continue
            if isinstance(value, torch.Tensor):
                if _is_memory_of(module, value):
                    continue
                self._versions[key] = value._version
            self._copies[key] = _kept(value)

    def was(self, key: str) -> Any:
        """Its value then, or ABSENT."""
        return self._copies[key] if key in self._copies else self._values.get(key, ABSENT)

    @property
    def looked_at(self) -> dict[str, Any]:
        """What of `listed` counts: not what every module has of its own."""
        return {key: value for key, value in self._values.items() if key not in self._passes_over}

    @property
    def may_change_within(self) -> bool:
        """Whether one of them may have another value while it is the same object."""
        return bool(self._copies)

    def changed(self) -> list[str]:
        """The attributes whose value is another one. Quick where there are none: it is asked at every share."""
        now = self.module.__dict__
        if len(now) == len(self.listed) and all(map(is_, now.values(), self.listed)):
            keys: Iterable[str] = self._copies
        else:
            keys = {**self._values, **now}.keys() - self._passes_over
        return [key for key in keys if not self._is_still(key, now.get(key, ABSENT))]

    def take_place(self, module: Any) -> None:
        """Another module hangs there now. It is compared with what the one before was."""
        self.module = module
        self._is_another = True
        self._versions = {}

    def put_back(self, key: str) -> None:
        """The object that was there, with the value that it had."""
        then = self._values.get(key, ABSENT)
        if then is ABSENT:
            if not self._is_another:
                self.module.__dict__.pop(key, None)
            return
        if key in self._versions:
            if id(self.module.__dict__.get(key)) == id(then):
                with torch.no_grad():
                    then.resize_(self._copies[key].shape).copy_(self._copies[key])
                self._versions[key] = then._version
        elif key in self._copies:
            then = self._values[key] = _kept(self._copies[key])
            self.listed = list(self._values.values())
        self.module.__dict__[key] = then

    def _is_still(self, key: str, now: Any) -> bool:
        if key not in self._copies:
            then = self._values.get(key, ABSENT)
            return now is then or (is_plain(then) and is_plain(now) and is_same(then, now))
        then = self._copies[key]
        if key in self._versions and now is self._values[key] and now._version == self._versions[key]:
            return bool(now.nbytes > _COMPARED_BYTES) or is_same(then, now)
        if type(then) is list and type(now) is list and len(then) == len(now) and all(map(is_, then, now)):
            return True
        if type(then) is dict and type(now) is dict and then.keys() == now.keys():
            return all(now[key] is one for key, one in then.items()) or (is_plain(now) and is_same(then, now))
        return is_plain(now) and is_same(then, now)


class Attributes:
    """Those of a run's modules that are no longer as the script built them.

    walk  (root, path, module) of all modules, as they are now
    own   names of attributes that are passed over
    """

    def __init__(self, walk: Walked, own: frozenset[str] = OF_MODULES) -> None:
        self._walk = walk
        self._own = own
        self._built: dict[str, Noted] = {}
        self._also: set[tuple[str, str, str]] = set()
        self._caches: set[tuple[str, str, str]] = set()
        self._in_loop = False
        self._carried: dict[str, Any] | None = None  # the state's, which holds from the script's loop on

    def begin_loop(self) -> None:
        if self._in_loop:
            return
        self._in_loop = True
        walked = self._walk()
        self._built = {_module_name(root, path): Noted(module, own=self._own) for root, path, module in walked}
        carried, self._carried = self._carried, None
        if carried is not None:
            self._set(carried)

    def is_nothing(self, root: str, path: str, key: str) -> bool:
        """Whether the script has built nothing there, or None: a cache."""
        noted = self._built.get(_module_name(root, path))
        was = noted.was(key) if noted is not None else ABSENT
        return was is ABSENT or was is None

    def changed(self) -> Iterator[tuple[str, str, str, Any]]:
        """(root, path, attribute, value) of each that is plain and another one now."""
        for root, path, noted in self._now():
            now = noted.module.__dict__
            for key in noted.changed():
                if is_plain(value := now.get(key, ABSENT)):
                    yield root, path, key, value

    def changed_names(self) -> list[tuple[str, str, str, bool]]:
        """(root, path, attribute, whether it is a cache) of what `changed` gives, and of what had changed before on any
        worker: who joins now must compare that, too."""
        now = {(root, path, key, self.is_nothing(root, path, key)) for root, path, key, _ in self.changed()}
        return sorted(now | {(*name, False) for name in self._also} | {(*name, True) for name in self._caches})

    def compare_also(self, names: Iterable[tuple[str, str, str, bool]]) -> None:
        """Those that have changed on any worker, as `changed_names` has it there. A script that another one has begun
        later may build them as they are now, and then they have not changed there; and what is a cache anywhere is not
        compared."""
        for root, path, key, is_cache in names:
            (self._caches if is_cache else self._also).add((root, path, key))

    def compared(self) -> Iterator[tuple[str, str, str, Any]]:
        """As `changed`, with those that have changed elsewhere, and without caches."""
        changed = {(root, path, key): value for root, path, key, value in self.changed()}
        for name in sorted((changed.keys() | self._also) - self._caches):
            root, path, key = name
            noted = self._built.get(_module_name(root, path))
            value = changed[name] if name in changed else vars(noted.module).get(key, ABSENT) if noted else ABSENT
            if is_plain(value) and not self.is_nothing(root, path, key):
                yield root, path, key, value

    def state_dict(self) -> dict[str, Any]:
        if not self._in_loop:
            return self._carried or {}
        return {f"{_module_name(root, path)}:{key}": copied(value) for root, path, key, value in self.changed()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self._in_loop:
            self._set(state)
        else:
            self._carried = dict(state)

    def _set(self, state: Mapping[str, Any]) -> None:
        for root, path, noted in self._now():
            now, name = noted.module.__dict__, _module_name(root, path)
            for key in noted.changed():
                if is_plain(now.get(key, ABSENT)) and f"{name}:{key}" not in state:
                    noted.put_back(key)
            for key in [known.removeprefix(f"{name}:") for known in state if known.startswith(f"{name}:")]:
                set_plain(noted.module, key, state[f"{name}:{key}"])

    def _now(self) -> list[tuple[str, str, Noted]]:
        """Modules that the script has added since are taken as they are when they are first met; one in the place of
        another has changed where that one would have."""
        found = []
        for root, path, module in self._walk():
            name = _module_name(root, path)
            noted = self._built.get(name)
            if noted is None:
                noted = self._built[name] = Noted(module, own=self._own)
            elif noted.module is not module:
                noted.take_place(module)
            found.append((root, path, noted))
        return found


def set_plain(module: Any, key: str, value: Any) -> None:
    """A tensor is filled in place where it fits: others may hold it, too."""
    there = module.__dict__.get(key)
    if isinstance(value, torch.Tensor) and isinstance(there, torch.Tensor):
        value = value.to(there.device)
        fits = there.shape == value.shape and there.dtype == value.dtype
        if fits and is_plain(there) and not _is_memory_of(module, there):
            with torch.no_grad():
                there.copy_(value)
            return
    module.__dict__[key] = copied(value)


def _is_memory_of(module: Any, tensor: torch.Tensor) -> bool:
    """Whether it is a parameter's or a buffer's of the module, under another name."""
    if not isinstance(module, torch.nn.Module):
        return False
    where = tensor.untyped_storage().data_ptr()
    held = [*module._parameters.values(), *module._buffers.values()]
    return any(one is not None and one.untyped_storage().data_ptr() == where for one in held)


def _module_name(root: str, path: str) -> str:
    return f"{root}.{path}" if path else root
