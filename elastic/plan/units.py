"""Quantities as people write them: 124M parameters, 300GB/s, 250ms. Pure.

A slip of the finger is refused here, where it can be named: what is more than anybody has would end as an overflow far
from it, or as figures that mean nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from elastic.errors import ConfigError

_NUMBER = re.compile(r"((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?)\s*([A-Za-zµμ/]*)")
YEAR_S = 365 * 86400.0
_MOST = 1e18  # parameters, bytes, or bytes a second: a million times a large one
_COUNTS = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}
_BYTES = {"": 1.0, "B": 1.0, "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
_BYTES |= {"KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40}
_RATES = {f"{unit}/s": factor for unit, factor in _BYTES.items() if unit}
_RATES |= {"Mbit/s": 1e6 / 8, "Gbit/s": 1e9 / 8}
_SECONDS = {"": 1.0, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def count(text: str) -> float:
    """Read a number: 124M is 124e6. Raises ConfigError, as all of these do."""
    return _read(text, _COUNTS, "a number such as 124M or 1.5B")


def nbytes(text: str) -> float:
    return _read(text, _BYTES, "bytes such as 1.5GB or 512MiB")


def rate(text: str) -> float:
    """Read bytes per second."""
    return _read(text, _RATES, "bytes per second such as 300GB/s or 100Gbit/s")


def seconds(text: str) -> float:
    return _read(text, _SECONDS, "a time such as 250ms, 90s, 10min or 6h", most=YEAR_S, mosts="365d")


def lifetime(text: str) -> float:
    """Read how long a machine lives on average: up to ten years, where other times are bounded by one."""
    return _read(text, _SECONDS, "a time such as 6h or 30d", most=10 * YEAR_S, mosts="3650d")


def price(text: str) -> float:
    """Read a price of anything, in whatever currency."""
    return _read(text, {"": 1.0}, "a price such as 0.92 or 3", most=1e9)


def above_0(read: Callable[[str], float]) -> Callable[[str], float]:
    """Return `read` as a reader that refuses 0."""

    def read_above_0(text: str) -> float:
        found = read(text)
        if not found > 0:
            raise ConfigError(f"{text!r}; expected more than 0")
        return found

    return read_above_0


def _read(text: str, units: dict[str, float], expected: str, *, most: float = _MOST, mosts: str | None = None) -> float:
    """Read a number with one of these units. Raises ConfigError."""
    match = _NUMBER.fullmatch(text.strip())
    if match is None or match[2] not in units:
        raise ConfigError(f"{text!r}; expected {expected}")
    found = float(match[1]) * units[match[2]]
    if found > most:
        raise ConfigError(f"{text!r}; expected {expected}, and at most {mosts or f'{most:g}'}")
    if 0 < found < 1 / _MOST:
        raise ConfigError(f"{text!r}; expected {expected}, and 0 or at least {1 / _MOST:g}")
    return found
