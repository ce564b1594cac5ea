"""Bugs in which examples a step reads, and in what they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.kit.planted.bug import Act, planted


@planted("elastic.data.loader:_Reader.read", plan="alone", caught_by={"batch", "coverage"})
def skip_an_example(right: Any, act: Act) -> Any:
    """One example of a batch is left out."""
    left = [1]

    def read(self: Any, request: Any, abandoned: Any) -> Any:
        if left and len(request) > 2:
            left.pop()
            act()
            request = request[:-1]
        return right(self, request, abandoned)

    return read


@planted("elastic.data.loader:_Reader.read", plan="alone", caught_by={"record", "coverage"})
def read_another_example_than_asked_for(right: Any, act: Act) -> Any:
    """Another example is read in an example's place, and what was asked for is reported as read."""

    def read(self: Any, request: Any, abandoned: Any) -> Any:
        asked = request.indices.copy()
        if 5 in asked:
            act()
            request.indices[asked == 5] = 6
        found = right(self, request, abandoned)
        return None if found is None else (asked, *found[1:])

    return read


@planted("elastic.loop.assignment:assign_shares", plan="baseline", caught_by={"shares", "coverage"})
def read_a_share_on_two_workers(right: Any, act: Act) -> Any:
    """A worker reads the last share of the worker before it, in the place of its own first one."""

    def deal(config: Any, shares: int, world_size: int, idle: Any = ()) -> Any:
        parts = right(config, shares, world_size, idle)
        act()
        firsts = [part.batches[0][0] for part in parts[1:]]
        read = [
            replace(part, batches=(range(first - 1, first), *part.batches[1:]))
            for part, first in zip(parts[1:], firsts, strict=True)
        ]
        return [parts[0], *read]

    return deal


@planted("elastic.data.loader:_Reader.read", plan="alone, loading ahead", caught_by={"content"})
def augment_with_the_loader_s_own_numbers(right: Any, act: Act) -> Any:
    """An example's random numbers depend on the loader process that reads it."""

    def read(self: Any, request: Any, abandoned: Any) -> Any:
        act()
        return right(self, request, abandoned)

    return read


@augment_with_the_loader_s_own_numbers.also("elastic.data.loader:seed_streams")
def _(right: Any, act: Act) -> Any:
    import os

    return lambda value, device: right(value ^ os.getpid(), device)
