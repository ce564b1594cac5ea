"""When did machines come and go? Traces that were recorded, or drawn from a seed. Pure but for reading a file.

    t_s,op,node      a line of a trace: seconds since its first one, "add" or "remove", and the machine's name

A run has room for so many nodes. More than that wait as spares, and take the place of those that go (`limited`).
"""

from __future__ import annotations

import csv
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from itertools import groupby
from pathlib import Path

from elastic.errors import ConfigError
from elastic.plan.units import YEAR_S

_FOLDER = "traces"


@dataclass(frozen=True)
class Change:
    """A moment at which some nodes went, then others came; both sorted by when they came first."""

    t_s: float
    gone: tuple[str, ...] = ()
    come: tuple[str, ...] = ()


@dataclass(frozen=True)
class Trace:
    """A fleet's history: when each machine came and went.

    name      for people
    changes   by time, one for each; nobody goes who is not there
    length_s  seconds that it covers
    """

    name: str
    changes: tuple[Change, ...]
    length_s: float

    def stretches(self) -> Iterator[tuple[float, tuple[str, ...]]]:
        """Yield (seconds, who was there all that time), in order; they sum to the trace's length."""
        there: dict[str, None] = {}
        before_s = 0.0
        for change in self.changes:
            if change.t_s > before_s:
                yield change.t_s - before_s, tuple(there)
            for node in change.gone:
                del there[node]
            there.update(dict.fromkeys(change.come))
            before_s = change.t_s
        if self.length_s > before_s:
            yield self.length_s - before_s, tuple(there)

    def seconds_by_size(self) -> dict[int, float]:
        """Return how long there were so many nodes, by their number."""
        found: dict[int, float] = {}
        for seconds, there in self.stretches():
            found[len(there)] = found.get(len(there), 0.0) + seconds
        return found

    @property
    def node_s(self) -> float:
        return sum(seconds * len(there) for seconds, there in self.stretches())

    @property
    def most(self) -> int:
        return max(self.seconds_by_size(), default=0)

    @property
    def losses(self) -> int:
        """Count the moments at which somebody went."""
        return sum(bool(change.gone) for change in self.changes)

    @property
    def full_losses(self) -> int:
        """Count the moments at which all went who had been there."""
        there: set[str] = set()
        found = 0
        for change in self.changes:
            found += 0 < len(there) <= len(change.gone) and there.issubset(change.gone)
            there.difference_update(change.gone)
            there.update(change.come)
        return found

    def limited(self, nodes_max: int) -> Trace:
        """Return what a run sees that has room for so many nodes: spares come in when others go."""
        there: dict[str, None] = {}
        taken: dict[str, None] = {}
        changes = []
        for change in self.changes:
            for node in change.gone:
                del there[node]
            there.update(dict.fromkeys(change.come))
            # One that went and came again at one moment went, too.
            gone = tuple(node for node in taken if node not in there or node in change.gone)
            for node in gone:
                del taken[node]
            come = tuple(node for node in there if node not in taken)[: nodes_max - len(taken)]
            taken.update(dict.fromkeys(come))
            if gone or come:
                changes.append(Change(change.t_s, gone, come))
        return replace(self, changes=tuple(changes))

    def delayed(self, seconds: float) -> Trace:
        """Return what a run sees if every node takes so long from its coming until it can take part."""
        moments: dict[float, tuple[list[str], list[str]]] = {}
        comes_s: dict[str, float] = {}
        for change in self.changes:
            for node in change.gone:
                if comes_s[node] <= change.t_s:
                    moments.setdefault(change.t_s, ([], []))[0].append(node)
                else:
                    moments[comes_s[node]][1].remove(node)
            for node in change.come:
                comes_s[node] = change.t_s + (seconds if change.t_s > 0 else 0.0)  # at the begin all are ready
                moments.setdefault(comes_s[node], ([], []))[1].append(node)
        changes = tuple(
            Change(t_s, tuple(gone), tuple(come))
            for t_s, (gone, come) in sorted(moments.items())
            if (gone or come) and t_s < self.length_s
        )
        return replace(self, changes=changes)

    def part(self, first: int, every: int) -> Trace:
        """Return what one machine in `every` did, counted from `first` in the order in which they came first."""
        order = dict.fromkeys(node for change in self.changes for node in change.come)
        chosen = {node for number, node in enumerate(order) if number % every == first}

        def of(nodes: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(node for node in nodes if node in chosen)

        changes = (Change(change.t_s, of(change.gone), of(change.come)) for change in self.changes)
        return replace(self, changes=tuple(change for change in changes if change.gone or change.come))

    def window(self, begin_s: float, end_s: float) -> Trace:
        """Return a part of the trace, which begins with those who were there."""
        there: dict[str, None] = {}
        changes = []
        for change in self.changes:
            if change.t_s <= begin_s:
                for node in change.gone:
                    there.pop(node, None)
                there.update(dict.fromkeys(change.come))
            elif change.t_s < end_s:
                changes.append(replace(change, t_s=change.t_s - begin_s))
        first = (Change(0.0, (), tuple(there)),) if there else ()
        return replace(self, changes=(*first, *changes), length_s=min(end_s, self.length_s) - begin_s)


def recorded_names() -> list[str]:
    """Return the names of the traces that come with this package."""
    folder = resources.files(__package__) / _FOLDER
    return sorted(file.name.removesuffix(".csv") for file in folder.iterdir() if file.name.endswith(".csv"))


def read(name: str) -> Trace:
    """Read one of `recorded_names`, or a file. Raises ConfigError."""
    if name in recorded_names():
        return parse((resources.files(__package__) / _FOLDER / f"{name}.csv").read_text(), name)
    try:
        return parse(Path(name).read_text(encoding="utf-8"), Path(name).name)
    except (OSError, UnicodeDecodeError) as error:
        names = ", ".join(recorded_names())
        raise ConfigError(
            f"--trace {name}: {error}\n  next  give a CSV file with the columns t_s,op,node, or one of {names}"
        ) from error


def parse(text: str, name: str) -> Trace:
    """Read a trace from its lines. Raises ConfigError, which names the line."""
    rows = csv.DictReader(text.splitlines())
    if rows.fieldnames is None:
        raise ConfigError(f"{name}: it is empty; expected a first line t_s,op,node, and a line for each change")
    if rows.fieldnames != ["t_s", "op", "node"]:
        raise ConfigError(f"{name}: its first line is {','.join(rows.fieldnames)!r}; expected t_s,op,node")
    moves: list[tuple[float, str, str]] = []
    there: set[str] = set()
    for row in rows:
        where = f"{name}, line {rows.line_num}"
        try:
            t_s = float(row["t_s"])
        except (TypeError, ValueError):
            raise ConfigError(
                f"{where}: t_s is {row['t_s']!r}; expected seconds since the trace's begin, such as 90.5"
            ) from None
        if not abs(t_s) <= YEAR_S:
            raise ConfigError(
                f"{where}: t_s is {row['t_s']!r}; expected seconds since the trace's begin, and at most a year of them"
            )
        op, node = row["op"], row["node"]
        before_s = moves[-1][0] if moves else 0.0
        if t_s < before_s:
            raise ConfigError(
                f"{where}: {t_s:.15g} s comes before {before_s:.15g} s; expected times from 0 on that never fall"
            )
        if op not in ("add", "remove") or not node:
            raise ConfigError(f"{where}: {op!r} of {node!r}; expected add or remove, and a machine's name")
        if (op == "add") == (node in there):
            is_there = (
                "there already; expected its remove before" if op == "add" else "not there; expected its add before"
            )
            raise ConfigError(f"{where}: {op} {node}, which is {is_there}")
        there.symmetric_difference_update({node})
        moves.append((t_s, op, node))
    if not moves or not moves[-1][0]:
        raise ConfigError(
            f"{name}: it covers no time; expected lines t_s,op,node up to its end, the last of them after 0 s"
        )
    return Trace(name, tuple(_changes(moves)), moves[-1][0])


def draw(*, seed: int, nodes: int, lifetime_s: float, replaced_s: float, length_s: float) -> Trace:
    """Draw a fleet of so many nodes: a machine lives for an exponential time; another comes in its place later.

    replaced_s  mean seconds until then, exponential, too
    """
    chance = random.Random(seed)
    moves: list[tuple[float, str, str]] = []
    for index in range(nodes):
        t_s, number = 0.0, 0
        while t_s < length_s:
            node, number = f"node{index}.{number}", number + 1
            moves.append((t_s, "add", node))
            t_s += chance.expovariate(1 / lifetime_s)
            if t_s < length_s:
                moves.append((t_s, "remove", node))
                t_s += chance.expovariate(1 / replaced_s) if replaced_s > 0 else 0.0
    # Of one moment: who goes before who comes, as a Change has it.
    moves.sort(key=lambda move: (move[0], move[1] == "add"))
    name = f"drawn with seed {seed}"
    return Trace(name, tuple(_changes(moves)), length_s)


def _changes(moves: Sequence[tuple[float, str, str]]) -> Iterator[Change]:
    """Yield moves of one moment as one change."""
    for t_s, at_once in groupby(moves, key=lambda move: move[0]):
        listed = list(at_once)
        gone = tuple(node for _, op, node in listed if op == "remove")
        come = tuple(node for _, op, node in listed if op == "add")
        yield Change(t_s, gone, come)
