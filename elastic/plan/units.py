"""Quantities as people write them: 124M parameters, 300GB/s, 250ms. Pure."""

from __future__ import annotations

import re

from elastic.errors import ConfigError

_NUMBER = re.compile(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s*([A-Za-zµμ/]*)")
_COUNTS = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}
_BYTES = {"": 1.0, "B": 1.0, "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
_BYTES |= {"KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40}
_RATES = {f"{unit}/s": factor for unit, factor in _BYTES.items() if unit}
_RATES |= {"Mbit/s": 1e6 / 8, "Gbit/s": 1e9 / 8}
_SECONDS = {"": 1.0, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def count(text: str) -> float:
    """124M is 124e6. Raises ConfigError, as all of these do."""
    return _read(text, _COUNTS, "a number such as 124M or 1.5B")


def nbytes(text: str) -> float:
    return _read(text, _BYTES, "bytes such as 1.5GB or 512MiB")


def rate(text: str) -> float:
    """Bytes per second."""
    return _read(text, _RATES, "bytes per second such as 300GB/s or 100Gbit/s")


def seconds(text: str) -> float:
    return _read(text, _SECONDS, "a time such as 250ms, 90s, 10min or 6h")


def _read(text: str, units: dict[str, float], expected: str) -> float:
    match = _NUMBER.fullmatch(text.strip())
    if match is None or match[2] not in units:
        raise ConfigError(f"{text!r}; expected {expected}")
    return float(match[1]) * units[match[2]]
