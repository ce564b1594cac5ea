"""What a script's loop keeps from one turn to the next by itself: a count, a running loss, the best so far.

    n += 1        best = min(best, loss)        losses.append(loss)        self.global_step += 1

No save holds it, and a worker that joins or resumes begins it anew. What is kept from batch to batch is kept from share
to share, moreover, of which a worker has as many as the world size says. Where it is only printed, all is well; where
the training depends on it (a warm-up, early stopping), the result depends on what happened to the run. Nobody sees from
here which it is, so it is told of and not refused: as a run begins what is counted by the share, and all of it on a
worker that goes on in a run's midst.

Found in the source of the loops in which the script waits, in the same function and in those that called it, and of the
script's functions that they call: names, and attributes of names, that a turn reads before it has written them, and
writes. What it writes first, a loss, begins anew with each turn anyway. What a package's code keeps is its own.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from types import ModuleType
from typing import Any

import numpy as np

from elastic.loop.refusals.loop_source import Turn, at, is_of_a_package, loops_around, turn_of
from elastic.loop.refusals.script_variables import FRAMES_MAX, frames, locals_of
from elastic.state.trained_set import listed

_CONTAINERS = (list, dict, set, deque, np.ndarray)


@dataclass(frozen=True)
class Kept:
    """Names, in the order in which they are met.

    by_share  of these, what is written once a share
    """

    names: list[str]
    by_share: list[str]


class LoopVariables:
    """
    known    what the run carries: what hangs at that is no variable of the script's
    say      tells people, once for all workers; `warn`, of this worker alone
    """

    def __init__(self, known: Iterable[Any], *, say: Callable[[str], None], warn: Callable[[str], None]) -> None:
        self._known = list(known)
        self._say = say
        self._warn = warn

    def look(self, first: int, *, whole_turns: bool, joined: bool) -> None:
        """Once, in a process's second step, while the script waits for its batch, or its next step.

        first        the first step of this process: none before it was one of the script's here
        whole_turns  see `kept`
        joined       others had come to it before
        """
        found = kept(self._known, whole_turns=whole_turns)
        if first and found.names:
            (self._warn if joined else self._say)(
                f"step {first} is the first one here, and what the script keeps from turn to turn by itself began anew "
                f"with it: {listed(found.names)}\n{_NEXT}"
            )
        elif not first and found.by_share:
            self._say(
                f"the script keeps {listed(found.by_share)} from batch to batch by itself, and a batch is a share\n"
                "  found  how many of those a worker has depends on the world size, and so does what counts them; no "
                f"save holds it\n{_NEXT}"
            )


_NEXT = (
    "  next   nothing, where it is only printed; what the training depends on is run.step_index, comes from run.sums,\n"
    "         or belongs into extra= (docs/how-to/write-the-loop.md, What is carried)"
)


def kept(known: Iterable[Any], *, whole_turns: bool) -> Kept:
    """By the loops in which the script waits. whole_turns: of a loop over batches none is begun in its midst"""
    names: dict[str, None] = {}
    by_share: dict[str, None] = {}
    handed = {id(thing) for thing in known}
    hands_on = True  # the innermost loop's batches, or steps, come to this frame
    for frame in islice(frames(), FRAMES_MAX):
        if is_of_a_package(frame.f_code.co_filename):
            continue
        there = {**frame.f_globals, **locals_of(frame)}
        for number, loop in enumerate(reversed(loops_around(frame))):
            turn = turn_of(loop, there, by_share=hands_on and not number)
            found = [*_of_the_script(turn, there, handed)]
            by_share |= dict.fromkeys(name for name in found if turn.written[name])
            names |= dict.fromkeys(found if not (whole_turns and hands_on and not number) else ())
        hands_on &= bool(frame.f_code.co_flags & inspect.CO_GENERATOR)
    return Kept([*names], [*by_share])


def _of_the_script(turn: Turn, there: Mapping[str, Any], handed: Collection[int]) -> Iterator[str]:
    for name in turn.kept():
        values = at(there, name)
        if any(id(value) in handed or isinstance(value, ModuleType) for value in values):
            continue
        if name not in turn.grown or isinstance(values[-1], _CONTAINERS):
            yield name
