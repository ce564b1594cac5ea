"""Two manifests compared: what decides the result's bits first, then what may change them, then what does not. Pure.

Bits may change where nobody hashes what is different: modules of the script's, a library, a variable, a driver. They do
not by where, when and with how many workers a run was made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Effect(str, Enum):
    """What a difference does to the bits of the result, severe first."""

    DECIDES, MAY, NOT = "decides bits", "may", "does not"

    __str__ = str.__str__


_EFFECTS: dict[str, Effect] = {
    "identity": Effect.DECIDES,
    "identity.elastic": Effect.MAY,
    "data.identity": Effect.DECIDES,
    "data.length": Effect.DECIDES,
    "data.order": Effect.DECIDES,
    "script.sha256": Effect.DECIDES,
    "torch.version": Effect.DECIDES,
    "torch.threads": Effect.DECIDES,
    "torch.git": Effect.DECIDES,
    "torch.interop_threads": Effect.NOT,
    "arguments.given.epochs": Effect.DECIDES,
    "arguments.given.steps": Effect.DECIDES,
    "arguments.resolved.total_steps": Effect.DECIDES,
    **dict.fromkeys(
        (
            "format", "version", "run", "absent", "command", "script.path", "script.folder", "script.copy", "git.root",
            "git.branch", "git.remote", "git.untracked", "git.script", "launcher", "python.executable", "machine.host",
            "machine.system", "machine.distribution", "machine.processors", "machine.memory_bytes", "packages.lock",
            "git.diff.file", "git.diff.bytes",
            "arguments.given.url", "arguments.given.saving", "arguments.given.save_every", "arguments.resolved.saves",
            "arguments.given.data.num_workers", "arguments.given.compute.timeout_s", "arguments.resolved.replica_size",
            "arguments.given.compute.overlap", "arguments.given.compute.bucket_bytes", "environment.LANG",
            "arguments.given.compute.compile_cache", "arguments.given.checks.cross_check", "environment.LC_",
            "arguments.resolved.cross_check", "environment.TZ", "environment.ELASTIC_",
        ),
        Effect.NOT,
    ),
}  # fmt: skip
"""By the longest beginning of a path; what nothing here begins may change bits."""

_IN_IDENTITY = {
    "torch.version": "torch",
    "torch.threads": "threads",
    "data.identity": "dataset",
    "data.length": "dataset_length",
    "data.order": "order",
}


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A field that differs. path: with a dot between its names; one, other: its values, None where it is absent."""

    path: str
    effect: Effect
    one: Any
    other: Any


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[Difference]:
    """Return what differs between two manifests, severe first, each fact once."""
    found = [
        Difference(path=path, effect=effect(path), one=a, other=b) for path, a, b in _leaves("", dict(one), dict(other))
    ]
    known = {each.path.removeprefix("identity.") for each in found if each.path.startswith("identity.")}
    return sorted(
        (each for each in found if not _repeats(each.path, known)),
        key=lambda each: (list(Effect).index(each.effect), each.path),
    )


def effect(path: str) -> Effect:
    """Return what a difference in this field does to the bits."""
    fitting = [one for one in _EFFECTS if path == one or path.startswith((f"{one}.", f"{one}["))]
    fitting += [one for one in _EFFECTS if one.endswith("_") and path.startswith(one)]
    return _EFFECTS[max(fitting, key=len)] if fitting else Effect.MAY


def _repeats(path: str, known: set[str]) -> bool:
    """Tell whether the identity says the same: an argument, torch's version, the data."""
    part, _, name = path.partition(".")
    if part == "arguments":
        return name.rpartition(".")[2] in known
    return _IN_IDENTITY.get(path) in known


def _leaves(path: str, one: Any, other: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the fields that differ, each with its path and both values."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for name in sorted(one.keys() | other.keys()):
            if one.get(name) != other.get(name):
                yield from _leaves(f"{path}.{name}" if path else name, one.get(name), other.get(name))
    else:
        yield path, one, other
