"""The commands that say whether two states are the same: `digest`, and `diff` entry by entry, to the bit.

A digest of a checkpoint is the one that `elastic_checkpoint.digest` gives of it in memory, by one tensor at a time.
"""

from __future__ import annotations

import argparse
import hashlib
import re
from collections.abc import Sequence
from typing import Any

from elastic_checkpoint.cli.opened_run import asked_run
from elastic_checkpoint.cli.screen import Screen, counted
from elastic_checkpoint.cli.usage import NO, YES
from elastic_checkpoint.errors import CheckpointError
from elastic_checkpoint.format.dtypes import StoredDtype
from elastic_checkpoint.format.hashing import digest_entry
from elastic_checkpoint.format.leaves import Array, children, is_mapping
from elastic_checkpoint.format.manifest import Commit
from elastic_checkpoint.load.diff import Comparison, Difference, DifferenceKind, Side, compare
from elastic_checkpoint.load.stream import Stream

_SHOWN = 40  # lines of differences


_NOT_VALUES = {
    DifferenceKind.MISSING: "missing in B",
    DifferenceKind.EXTRA: "only in B",
    DifferenceKind.OTHER: "of another kind",
}


def show_digest(asked: argparse.Namespace, screen: Screen) -> int:
    with asked_run(asked.url, asked, screen) as run:
        stream = run.stream(asked.step)
        with screen.progress("hashing", stream.commit.bytes) as advance, run.counting(advance):
            whole, parts = digests(stream)
    commit = stream.commit
    if asked.json:
        screen.document({"step": commit.step, "name": commit.name, "digest": whole, "parts": parts})
        return YES
    screen.say(f"{whole}  step {commit.step}, everything")
    for name, value in parts.items():
        screen.say(f"{value}  {name}")
    return YES


def diff(asked: argparse.Namespace, screen: Screen) -> int:
    (url_a, step_a), (url_b, step_b) = _two(asked)
    with asked_run(url_a, asked, screen) as run_a, asked_run(url_b, asked, screen) as run_b:
        a, b = Side(run_a.storage, run_a.find(step_a)), Side(run_b.storage, run_b.find(step_b))
        for part in asked.only:
            if not (a.below([part]) or b.below([part])):
                raise CheckpointError(
                    f"--only {part}: neither checkpoint has anything below it\n"
                    "  next   elastic checkpoint digest URL lists the parts that hold tensors"
                )
        with (
            screen.progress("comparing", a.commit.bytes + b.commit.bytes) as advance,
            run_a.counting(advance),
            run_b.counting(advance),
        ):
            found = compare(a, b, only=asked.only)
        urls = run_a.url, run_b.url
    if asked.json:
        screen.document(_difference_document(urls, (a.commit, b.commit), found))
    else:
        for mark, url, commit in zip("AB", urls, (a.commit, b.commit), strict=True):
            screen.say(f"{mark}  step {commit.step}  {url}")
        _show_differences(screen, found)
    return NO if found.counted else YES


def _two(asked: argparse.Namespace) -> tuple[tuple[str, int | None], tuple[str, int | None]]:
    """Return the two (URL, step) to compare: `A[@STEP] B[@STEP]`, or `URL STEP STEP`."""
    if asked.c is None:
        return _with_step(asked.a), _with_step(asked.b)
    if not asked.b.isdecimal():
        raise CheckpointError(
            "three arguments are a URL and two steps, but the second is no number\n"
            "  next   elastic checkpoint diff URL 1100 1200, or elastic checkpoint diff URL_A@1100 URL_B@1200"
        )
    return (asked.a, int(asked.b)), (asked.a, asked.c)


def _with_step(text: str) -> tuple[str, int | None]:
    found = re.fullmatch(r"(.+)@(\d+)", text, re.DOTALL)
    return (found[1], int(found[2])) if found else (text, None)


def _show_differences(screen: Screen, found: Comparison) -> None:
    shown = found.differences[:_SHOWN]
    if shown:
        screen.table([[one.kind, one.path, _difference(one)] for one in shown])
    if len(found.differences) > _SHOWN:
        screen.say(f"... and {len(found.differences) - _SHOWN} more; --json lists all")
    kinds = [one.kind for one in found.counted]
    counts = ", ".join(f"{kinds.count(kind)} {what}" for kind, what in _NOT_VALUES.items() if kind in kinds)
    differing = f"{kinds.count(DifferenceKind.VALUE)} differ" + (f", {counts}" if counts else "")
    equal = f"{counted(found.equal_tensors, 'tensor')} and {counted(found.equal_values, 'value')} equal"
    places = len(found.differences) - len(kinds)
    but = f"; {places} differ in an absolute path or a URL, which does not count" if places else ""
    screen.say((f"{differing}; {equal}" if kinds else equal) + but)


def _difference(one: Difference) -> str:
    if one.kind == DifferenceKind.MISSING:
        return f"{one.a} / -"
    if one.kind == DifferenceKind.EXTRA:
        return f"- / {one.b}"
    if one.elements is None:
        return f"{one.a} / {one.b}"
    by = "" if one.largest is None else f", by up to {one.largest:.3g}"
    odd = f", {one.nonfinite} of them NaN or infinite" if one.nonfinite else ""
    return f"{one.differing} of {one.elements} differ{by}{odd}"


def _difference_document(urls: tuple[str, str], commits: tuple[Commit, Commit], found: Comparison) -> dict[str, Any]:
    sides = {
        mark: {"url": url, "step": commit.step, "name": commit.name}
        for mark, url, commit in zip("ab", urls, commits, strict=True)
    }
    return {
        **sides,
        "equal": not found.counted,
        "equal_tensors": found.equal_tensors,
        "equal_values": found.equal_values,
        "differences": [vars(one) for one in found.differences],
    }


Named = list[tuple[str, Array]]  # in order of the paths


def digests(stream: Stream) -> tuple[str, dict[str, str]]:
    """Return the digests of the whole tree, and of each part that holds entries of its own, among them a tensor."""
    whole = _named(stream, stream.tree, "")
    parts = {}
    if is_mapping(stream.tree):
        for key, document in children(stream.tree):
            part = _named(stream, document, "") if is_mapping(document) else []
            if part:
                parts[str(key)] = part
    whole_sha, *part_shas = _digest(stream, [whole, *parts.values()])
    return whole_sha, dict(zip(parts, part_shas, strict=True))


def _named(stream: Stream, document: object, path: str) -> Named:
    found = [(name, leaf) for name, leaf in stream.entries(document, path) if isinstance(leaf, Array)]
    return sorted(found, key=lambda item: item[0])


def _digest(stream: Stream, sequences: Sequence[Named]) -> list[str]:
    """Return the digest of each sequence of tensors. One that comes next in several is read once."""
    shas = [hashlib.sha256() for _ in sequences]
    nexts = [0] * len(sequences)
    while waiting := [number for number, next in enumerate(nexts) if next < len(sequences[number])]:
        tensor = sequences[waiting[0]][nexts[waiting[0]]][1].name
        data = stream.read(tensor).data
        for number in waiting:
            path, leaf = sequences[number][nexts[number]]
            if leaf.name == tensor:
                dtype, shape = _stored_form(leaf, len(data))
                digest_entry(shas[number], path, dtype, shape, data)
                nexts[number] += 1
    return [sha.hexdigest() for sha in shas]


def _stored_form(leaf: Array, size: int) -> tuple[str, list[int]]:
    """Return an array is stored, and counts, as its bytes."""
    if isinstance(leaf.dtype, StoredDtype):
        return leaf.dtype.name, list(leaf.shape)
    return "uint8", [size]
