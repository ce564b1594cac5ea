"""Which saved tensors may become another dtype as they are loaded, and whether their values can.

Only where it was asked for, and only floating-point numbers to floating-point numbers, complex ones to complex ones:
what is an integer or a boolean on either side counts or chooses something, and is never cast. A wider dtype takes every
value exactly; a narrower one rounds, which is what was asked for. A finite value beyond its largest one, which would
become infinite or be clamped, is refused before anything is touched.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch

from elastic_checkpoint.errors import CheckpointError, StateMismatch
from elastic_checkpoint.format.document import is_sharded
from elastic_checkpoint.format.dtypes import name_of

Rule = bool | torch.dtype
Cast = Rule | Mapping[str, Rule] | None

_SHOWN = 10
# Floating-point by their kind, but not numbers of their own: exponents of a block, and two to a byte.
_NO_NUMBERS = {
    getattr(torch, name) for name in ("float8_e8m0fnu", "float4_e2m1fn_x2") if hasattr(torch, name)
}  # an older torch lacks them


class Casts:
    """Asked about each tensor that is matched, by its path; knows afterwards which are to be cast.

    names  of what is to be cast, each with both dtypes, for the log
    """

    def __init__(self, cast: Cast) -> None:
        """Check the casts, and raise CheckpointError for anything else.

        cast  True: each to the dtype of what it is loaded into. A dtype: so, where it is loaded into this one.
              A mapping: one of both, or False, for the paths that a pattern such as "model.*" matches; the first
              pattern that matches decides
        """
        self._rules: dict[str, Rule] = (
            dict(cast) if isinstance(cast, Mapping) else {"*": False if cast is None else cast}
        )
        for pattern, rule in self._rules.items():
            if type(pattern) is not str or not isinstance(rule, bool | torch.dtype):
                raise CheckpointError(
                    f"cast={cast!r} is nothing that can be followed\n"
                    "  expected  True, a dtype, or a dict from patterns of names to one of both, such as "
                    '{"model.*": torch.bfloat16}\n'
                    "  state     nothing was changed"
                )
        self._unmatched = dict.fromkeys(self._rules) if isinstance(cast, Mapping) else {}
        self._met: list[str] = []
        self._tensors: list[tuple[str, torch.Tensor, torch.dtype]] = []
        self.names: dict[str, str] = {}

    def tensor(self, path: str, saved: torch.Tensor, here: torch.dtype) -> bool:
        """Return whether `saved` may be loaded into a tensor of this dtype; note it if that is a cast."""
        rule = self._rule(path)
        if saved.dtype == here:
            return True
        if not _of_one_kind(saved.dtype, here) or rule is False or rule not in (True, here):
            return False
        self._tensors.append((path, saved, here))
        self.names[path] = f"{name_of(saved.dtype)} to {name_of(here)}"
        return True

    def array(self, path: str, saved: np.dtype[Any], here: np.dtype[Any]) -> bool:
        """Return whether an array may be loaded into one of this dtype, which must hold every value of the other."""
        rule = self._rule(path)
        if saved == here:
            return True
        wider = saved.kind == here.kind and saved.kind in "fc" and np.can_cast(saved, here)
        if not wider or rule is False or (rule is not True and name_of(rule) != here.name):
            return False
        self.names[path] = f"{saved} to {here}"
        return True

    def refuse_unmatched(self) -> None:
        """Raise CheckpointError for a pattern that no name matches: it was mistyped."""
        if self._unmatched:
            raise CheckpointError(
                f"cast: no tensor has a name like {', '.join(map(repr, self._unmatched))}\n"
                f"  found  {', '.join(self._met[:_SHOWN]) or 'no tensors'}{' ...' if len(self._met) > _SHOWN else ''}\n"
                "  state  nothing was changed\n  next   correct the pattern: it is compared with whole names"
            )

    @property
    def any(self) -> bool:
        """Return whether any tensor or array is to be cast."""
        return bool(self.names)

    def refuse_overflow(self) -> None:
        """Raise StateMismatch where a value is too large for the dtype that it is to become."""
        bad = {
            path: f"saved {name_of(saved.dtype)} with {count} finite values that {name_of(here)} cannot hold"
            for path, saved, here in self._tensors
            if (count := _overflowing(saved, here))
        }
        if bad:
            lines = [f"  {path}: {what}" for path, what in bad.items()]
            raise StateMismatch(
                f"{len(bad)} tensors do not fit into the dtype that they are to be cast to\n"
                + "\n".join(lines[:_SHOWN])
                + "\n  state  nothing was changed\n  next   load these into a wider dtype, such as bfloat16 or float32",
                missing=[],
                unexpected=[],
                misshaped=bad,
            )

    def _rule(self, path: str) -> Rule:
        """Return the rule of the first pattern that matches this path; False: none does."""
        if len(self._met) <= _SHOWN:
            self._met.append(path)
        for pattern, rule in self._rules.items():
            if fnmatchcase(path, pattern):
                self._unmatched.pop(pattern, None)
                return rule
        return False


def _of_one_kind(one: torch.dtype, other: torch.dtype) -> bool:
    """Return whether both are dtypes of real floating-point numbers, or both of complex ones."""
    if one in _NO_NUMBERS or other in _NO_NUMBERS:
        return False
    return (one.is_floating_point and other.is_floating_point) or (one.is_complex and other.is_complex)


def _overflowing(saved: torch.Tensor, here: torch.dtype) -> int:
    """Return how many finite values lie beyond the largest one, further than rounding goes."""
    largest, spacing = torch.finfo(here).max, torch.finfo(here).eps
    if torch.finfo(saved.dtype).max <= largest or saved.is_meta:
        return 0
    local: torch.Tensor = saved.to_local() if is_sharded(saved) else saved  # type: ignore[attr-defined]
    if local.is_complex():
        local = torch.view_as_real(local)
    if local.dtype.itemsize < 4:
        local = local.float()  # what can be asked of fewer bits differs between versions of torch
    # Beyond it some dtypes would clamp values without a word, others make them infinite or no number.
    limit = largest + spacing * 2.0 ** math.floor(math.log2(largest)) / 2
    return int((torch.isfinite(local) & (local.abs() >= limit)).sum())
