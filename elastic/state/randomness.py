"""Where does every random number of a run come from? From (seed, position), never from a saved generator.

Promises  a stream belongs to a place in the run (a share of a step, an example of an epoch), so a step that is
          redone, moved to another rank or replayed on a laptop draws the same numbers. No generator's state
          is saved, restored or sent to a peer.
          `derive` gives the same 64 bits on every platform and in every version.
Leaves    when to seed to the loop (loop/steps/current_step.py, loop/loop.py) and to the loader (data/loader.py).

Cost (2 cores, Python 3.11, NumPy 2.4, torch 2.13, 2026-11-21): a derivation 2 µs, `seed_streams` 8 µs, of which
Python's generator takes 4.8, NumPy's 1.6 and torch's 1.2. `torch.manual_seed` would take 80.
"""

from __future__ import annotations

import hashlib
import random
from functools import lru_cache

import numpy as np
import torch

from elastic.errors import ConfigError

SEED_MAX = 2**63 - 1


def derive(*key: int | str) -> int:
    """Return 64 bits that stand for this key: unsigned, evenly spread, unrelated to those of any other key.

    The parts are encoded so that no two keys meet: integers as `i<decimal>;`, strings as `s<bytes>:<utf-8>;`.
    Then blake2b, 8 bytes, personalised as "elastic.derive", read as little-endian. By convention the first
    part names the purpose, which keeps the users of one seed apart.
    """
    return _hashed("".join([_encoded(part) for part in key]))


def example_seed(seed: int, epoch: int, index: int) -> int:
    """Return the seed of what `dataset[index]` draws in this epoch: augmentation."""
    return _hashed(f"{_beginning('example', seed)}i{epoch:d};i{index:d};")


def share_seed(seed: int, step: int, phase: int, share: int, micro: int) -> int:
    """Return the seed of a share's forward and backward pass: dropout. `micro` counts its micro-batches from 0."""
    return _hashed(f"{_beginning('share', seed)}i{step:d};i{phase:d};i{share:d};i{micro:d};")


def outside_seed(seed: int, step: int, phase: int) -> int:
    """Return the seed of a step's update, with what `on_apply` adds to it."""
    return _hashed(f"{_beginning('outside', seed)}i{step:d};i{phase:d};")


def start_seed(seed: int) -> int:
    """Return the seed of the script's code before its loop: the same in a worker that joins or resumes later."""
    return derive("start", seed)


def before_seed(seed: int, step: int) -> int:
    """Return the seed of the script's code between `for step in run` and the step's inner loop."""
    return _hashed(f"{_beginning('before', seed)}i{step:d};")


def after_seed(seed: int, step: int) -> int:
    """Return the seed of the script's code after a step's inner loop, however the worker came by its effect."""
    return _hashed(f"{_beginning('after', seed)}i{step:d};")


def evaluated_seed(seed: int, step: int | None, evaluations: int) -> int:
    """Return the seed of the script's code after so many evaluations since `step`; None: before the loop."""
    return derive("after evaluation", seed, -1 if step is None else step, evaluations)


def end_seed(seed: int) -> int:
    """Return the seed of the script's code after its loop."""
    return derive("end", seed)


def seed_streams(value: int, device: torch.device | None) -> None:
    """Point the default generators of Python, NumPy and torch at the stream `value`, a `derive`d number.

    device  its CUDA generator is seeded too; None or a CPU device adds nothing
    """
    random.seed(value)
    # NumPy's legacy generator and torch's CPU generator are the same Mersenne Twister and look at 32 bits of a seed
    # only, so each gets its own half: with the same half, rand() of one would repeat the other's.
    np.random.seed(value >> 32)
    torch.default_generator.manual_seed(value)
    if device is not None and device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        torch.cuda.default_generators[index].manual_seed(value)


def seed(value: int) -> None:
    """Seed Python, NumPy and torch on all devices, as a script does before it builds its model.

    From here on torch computes with one intra-op thread, as torchrun has it: what the script computes before
    its Run starts (orthogonal weights, a data set's mean) would otherwise differ from launcher to launcher.

    Args:
        value: 0 … 2**63-1; torch draws the same weights as after `torch.manual_seed(value)`.

    Raises:
        ConfigError: It is no such integer.
    """
    check_seed(value)
    torch.set_num_threads(1)
    random.seed(value)
    np.random.seed(value % 2**32)  # NumPy takes no more
    torch.manual_seed(value)


def _encoded(part: int | str) -> str:
    return f"s{len(part.encode())}:{part};" if isinstance(part, str) else f"i{part:d};"


@lru_cache(maxsize=64)
def _beginning(purpose: str, seed: int) -> str:
    """Return the encoded beginning of a key, cached: a run asks for these at every step."""
    return f"{_encoded(purpose)}{_encoded(seed)}"


def _hashed(encoded: str) -> int:
    return int.from_bytes(hashlib.blake2b(encoded.encode(), digest_size=8, person=b"elastic.derive").digest(), "little")


def check_seed(value: object) -> None:
    """Raise ConfigError unless `value` is an integer from 0 to 2**63-1."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(
            f"seed = {value!r} is a {type(value).__name__}; expected an integer from 0 to 2**63-1, like 0"
        )
    if not 0 <= value <= SEED_MAX:
        raise ConfigError(f"seed = {value} is outside 0 … 2**63-1 ({SEED_MAX}); choose another, like 0")
