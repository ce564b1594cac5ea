"""What a script's loop keeps from one turn to the next by itself: a count, a running loss, the best so far.

    n += 1        best = min(best, loss)        losses.append(loss)        for i, batch in enumerate(run.batches())

No save holds it, and a worker that joins or resumes begins it anew. What is kept from batch to batch is kept from share
to share, moreover, of which a worker has as many as the world size says. Where it is only printed, all is well; where
the training depends on it (a warm-up, early stopping), the result depends on what happened to the run. Nobody sees from
here which it is, so it is told of and not refused: as a run begins, of what counts shares; and of all on a worker that
comes into a run's midst.

Found in the source of the loops in which the script waits (loop_source.py), in the same function and in those that
called it, up to where the run is made: what a turn reads before it has written it, and writes (loop_turn.py); and what
only some turns write, and the code behind the loop reads, the best weights so far. What each turn writes first, a loss,
begins anew with it anyway. What a package's code keeps is its own.

docs/decisions/2026-11-28-what-a-loop-keeps-is-told-of.md
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from types import FrameType, ModuleType
from typing import Any

from elastic.loop.refusals.loop_names import at, is_container, names_of
from elastic.loop.refusals.loop_source import Sources, is_of_a_package, waits_for_next
from elastic.loop.refusals.loop_turn import Turn, turn_of
from elastic.loop.refusals.script_variables import FRAMES_MAX, frames, is_own, locals_of
from elastic.state.trained_set import listed


@dataclass(frozen=True)
class Kept:
    """Names, in the order in which they are met.

    by_share  of these, what is written once a share
    """

    names: list[str]
    by_share: list[str]


class LoopVariables:
    """
    known     gives what the run carries: what hangs at that is no variable of the script's
    by_share  what counts batches depends on the world size
    say       tells people, once for all workers; `warn`, of this worker alone
    """

    def __init__(
        self,
        known: Callable[[], Iterable[Any]],
        *,
        by_share: bool,
        say: Callable[[str], None],
        warn: Callable[[str], None],
    ) -> None:
        self._known = known
        self._by_share = by_share
        self._say = say
        self._warn = warn

    def look(self, first: int, *, whole_turns: bool, over_steps: bool, joined_as: int | None) -> None:
        """Once, in a process's second step, while the script waits for its batch, or its next step.

        first      the first step of this process: none before it was one of the script's here
        joined_as  this worker's rank as it came to others; None: it began with them
        The rest: see `kept`.
        """
        try:
            steps = first + 1 if first else None
            found = kept(self._known(), whole_turns=whole_turns, over_steps=over_steps, steps=steps)
        except Exception:  # it is for telling people alone: a source that cannot be read so is no reason to end a run
            return
        if first and found.names:
            here = "here" if joined_as is None else f"on rank {joined_as}, which joined"
            (self._say if joined_as is None else self._warn)(
                f"step {first} is the first one {here}, and what the script keeps from turn to turn by itself began "
                f"anew with it: {listed(found.names)}\n{_NEXT}"
            )
        elif not first and found.by_share and self._by_share:
            self._say(
                f"the script keeps {listed(found.by_share)} from batch to batch by itself, and a batch is a share\n"
                "  found  how many of those a worker has depends on the world size, and so does what counts them; no "
                f"save holds it\n{_NEXT}"
            )


_NEXT = (
    "  next   nothing, where it is only printed; what the training depends on is run.step_index or run.step_in_epoch,\n"
    "         comes from run.sums, or belongs into extra= (elastic docs write-the-loop, What is carried). Whole\n"
    "         batches count in run.add, and of torchmetrics in elastic.integrations.torchmetrics.Synced(metric)"
)


def kept(known: Iterable[Any], *, whole_turns: bool, over_steps: bool, steps: int | None = None) -> Kept:
    """By the loops in which the script waits.

    whole_turns  of a loop over batches none is begun in its midst
    over_steps   it is a loop over steps; else over batches
    steps        the run's, which a count that began at run.step_index has, too; None: no count tells yet where it began
    """
    sources, names, by_share = Sources(), dict[str, None](), dict[str, None]()
    handed = {id(thing) for thing in known if thing is not None}
    for frame, there in _frames_of_run():
        loops = sources.loops_around(frame)
        for loop in reversed(loops):
            waits = waits_for_next(loop, frame.f_lineno)
            turn = turn_of(loop, there, sources, by_share=waits and not over_steps, over_steps=waits and over_steps)
            if any(_is_run(there.get(name)) for name in turn.written):
                return Kept([*names], [*by_share])  # it begins a run in each turn
            left = turn.left_behind(sources.behind(loop, frame)) if loop is loops[0] else []
            found = [*_of_the_script(turn, dict.fromkeys((*turn.kept(), *left)), handed, steps)]
            by_share |= dict.fromkeys(name for name in found if turn.written[name])
            names |= dict.fromkeys(found if not (whole_turns and waits) else ())
    return Kept([*names], [*by_share])


def _frames_of_run() -> list[tuple[FrameType, dict[str, Any]]]:
    """From the loop outwards, to the last that knows the run, where one does."""
    found, of_run = [], 0
    for frame in islice(frames(), FRAMES_MAX):
        local = locals_of(frame)
        if not is_of_a_package(frame.f_code.co_filename):
            found.append((frame, names_of(frame, local)))
        if any(map(_is_run, local.values())):
            of_run = len(found)
    return found[:of_run] if of_run else found


def _is_run(value: Any) -> bool:
    return is_own(type(value)) and type(value).__name__ == "Run"


def _of_the_script(turn: Turn, names: Iterable[str], handed: Collection[int], steps: int | None) -> Iterator[str]:
    for name in names:
        values = at(turn.there, name)
        if type(values[-1]) is int and values[-1] == steps:
            continue
        if any(id(value) in handed or _is_of_a_package(value) for value in values):
            continue
        if name not in turn.grown or is_container(values[-1]):
            yield name


def _is_of_a_package(value: Any) -> bool:
    return issubclass(type(value), ModuleType) and is_of_a_package(str(vars(value).get("__file__", "")))
