"""What kind of bug in a script has this signature? Pure.

The evidence is what the two runs recorded: the state that each began with, what was in each example that was read, the
sums and weights of each step. The first thing that differs names the kind:

    an exception                        the script raised it, and no fault did
    a refusal                           the run named what the script does, and went on without that worker, or ended
    the first weights                   they are initialised without a seed
    an example's content, by the rank   the dataset or its sampler asks which worker this is
    an example's content, by time       it has state that changes as it is read: a counter, a cache
    an example's content, at once       it draws random numbers that elastic does not seed
    sums of equal examples              the loop's body has state, or randomness, that elastic does not keep
    weights after equal sums            the update has
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import elastic.errors
import elastic_checkpoint.errors
from elastic.drill.faults.registry import KINDS
from elastic.drill.judge.contents import conflicts, notes
from elastic.events.event import Event


@dataclass(frozen=True)
class Diagnosis:
    """Names the kind of bug, the evidence, what to do next, and where to look, if that is known."""

    what: str
    seen: str
    next: str
    look: str | None = None

    def __str__(self) -> str:
        lines = [self.what, f"  seen  {self.seen}"]
        lines += [f"  look  {self.look}"] if self.look is not None else []
        return "\n".join([*lines, f"  next  {self.next}"])


def diagnose(baseline: Sequence[Event], faulted: Sequence[Event], *, exact: bool = True) -> list[Diagnosis]:
    """Return what the records of both runs say about the script; nothing where they say nothing.

    baseline, faulted  the events of the run without faults and of the one with faults
    exact       mode="exact"; else only the data is compared
    """
    found = [one for one in (_raised(faulted), _refused(faulted), _data(baseline, faulted)) if one is not None]
    if exact and (first := _first_weights(baseline, faulted)) is not None:
        return [first, *found]
    if exact and not found and (later := _sums_or_weights(baseline, faulted)) is not None:
        return [later]
    return found


def _first_weights(baseline: Sequence[Event], faulted: Sequence[Event]) -> Diagnosis | None:
    """Return that training began with other weights; None: it did not."""
    begun = [_initial(events) for events in (baseline, faulted)]
    if None in begun or begun[0] == begun[1]:
        return None
    return Diagnosis(
        "the weights that training begins with are not the same in every run: they are initialised without a seed",
        f"at step 0 the weights' digest was {_short(begun[0])} without faults and {_short(begun[1])} with them",
        "call elastic.seed(0) before the model is made",
    )


def _raised(faulted: Sequence[Event]) -> Diagnosis | None:
    """Return an exception that no fault of the drill's raised, though the run may have gone on without that worker."""
    errors = [event for event in faulted if event["event"] == "error" and _of_script(str(event["error"]))]
    if not errors:
        return None
    first = errors[0]
    what = str(first["error"]).splitlines()[0]
    return Diagnosis(
        f"the script raised an exception, which no fault of the drill asked for: {what}",
        f"worker {first.get('rank')} of {first.get('world_size')} raised it at step {first.get('step')}"
        + (f"; {len(errors)} were raised in all" if len(errors) > 1 else "")
        + "; the run without faults came to its end",
        "its traceback is in disturbed-drill/output-*.txt of the folder below",
    )


def _refused(faulted: Sequence[Event]) -> Diagnosis | None:
    """Return what the first refused worker was refused by, in the run's words."""
    refusals = [event for event in faulted if event["event"] == "error" and _name(str(event["error"])) in _REFUSALS]
    if not refusals:
        return None
    first = refusals[0]
    said, _, then = str(first["error"]).partition("\n  next   ")
    what, *found = said.splitlines()
    return Diagnosis(
        f"the run refused what the script does: {what}",
        f"worker {first.get('rank')} of {first.get('world_size')} was refused at step {first.get('step')}"
        + "".join(f"\n{line}" for line in found if not line.startswith("  state")),
        then or "its traceback is in disturbed-drill/output-*.txt of the folder below",
    )


_REFUSALS = frozenset(("StepError", "NotLetIn", "CollectiveMismatch", "IdentityMismatch"))


def _name(error: str) -> str:
    """Return the bare name of an error's class."""
    return error.partition(":")[0].rpartition(".")[2]


def _of_script(error: str) -> bool:
    """Return whether an error is the script's: no fault raises it, and it is not elastic's or the storage's."""
    name = _name(error)
    ours = any(hasattr(module, name) for module in (elastic.errors, elastic_checkpoint.errors))
    raised_by_faults = any(kind.raised(name, error) for kind in KINDS.values())
    return not (ours or raised_by_faults or (hasattr(builtins, name) and issubclass(getattr(builtins, name), OSError)))


def _data(baseline: Sequence[Event], faulted: Sequence[Event]) -> Diagnosis | None:
    """Return why examples differ, by which worker read them and when; None: none do."""
    found = list(conflicts(faulted, baseline))
    if not found:
        return None
    one = found[0]
    where = next((event for event in (*baseline, *faulted) if event["event"] == "dataset"), {})
    name, file, line = where.get("dataset", "the dataset"), where.get("file"), where.get("line")
    names = {id(event): "without faults" for event in baseline}
    versions = " and ".join(
        f"{_short(content)} by worker {event.get('rank')} {names.get(id(event), 'with faults')}"
        for content, event in zip(one.contents, (one.first, one.second), strict=True)
    )
    seen = f"{name}[{one.index}] at step {one.step} was read as {versions}; so were {len(found)} reads"
    agreed, at_first, steps = _of_rank_0(baseline, faulted)
    look = f"{file}:{line}  __getitem__" if file is not None and line is not None else None
    # A run that was refused in its first step has too few reads to tell the rank from the time.
    if agreed and steps > 1:  # by the rank
        return Diagnosis(
            f"what {name} gives for an index depends on which worker reads it: on its rank, or the number of workers",
            seen + "; worker 0 always read what the run without faults did, the others did not",
            "make it a function of the index alone: which examples a worker reads is elastic's to say, so a sampler or "
            "shuffle of its own, seeded from the rank, must go",
            look,
        )
    if at_first or agreed:  # by time
        return Diagnosis(
            f"what {name} gives for an index depends on what was read before in the same process: a counter, a cache, "
            "or another state that changes as it is read" + (", or on the worker's rank" if agreed else ""),
            seen
            + (
                "; worker 0 always read what the run without faults did, the others did not"
                if agreed
                else "; the first read of a process was the same in both runs, later ones were not"
            ),
            "make it a function of the index alone: a worker that replaces a lost one begins without that state, and a "
            "step that is done again reads twice",
            look,
        )
    return Diagnosis(
        f"what {name} gives for an index is drawn from something that no seed of the run decides: random numbers "
        "of its own, the clock, the order of a set or hash() of a text, a file that changes, the number of workers",
        seen + "; even the first read differed",
        "inside dataset[i] draw from random, numpy.random or torch, which elastic seeds for each example; generators "
        "of your own must be seeded from the index",
        look,
    )


def _of_rank_0(baseline: Sequence[Event], faulted: Sequence[Event]) -> tuple[bool, bool, int]:
    """Return how the first process of rank 0 read, beside the undisturbed run.

    That is: whether it always read the same, whether it did at first, and in how many steps it read.
    """
    known: dict[tuple[int, int], str] = {}
    for event in _reads(baseline):
        known.update({(event["step"], index): content for index, content in notes(event)})
    mine: list[bool] = []
    steps: set[int] = set()
    first = next((event for event in _reads(faulted) if event.get("rank") == 0), None)
    for event in _reads(faulted):
        if first is not None and event["worker"] == first["worker"] and event.get("rank") == 0:
            steps.add(event["step"])
            mine += [known.get((event["step"], index), content) == content for index, content in notes(event)]
    return bool(mine) and all(mine), bool(mine) and mine[0], len(steps)


def _sums_or_weights(baseline: Sequence[Event], faulted: Sequence[Event]) -> Diagnosis | None:
    """Return that sums of equal examples, or weights after equal sums, are what differs first; None: neither."""
    facts = (("step_applied", "sums"), ("weights", "digest"))
    first = {kind: _first_difference(baseline, faulted, kind, fact) for kind, fact in facts}
    sums, weights = first["step_applied"], first["weights"]
    struck = min((event["step"] for event in faulted if event["event"] == "fault" and "step" in event), default=None)
    if sums is None and weights is None:
        return None
    step = min(one["step"] for one in (sums, weights) if one is not None)
    before = struck is None or step < struck
    when = (
        "before any fault struck, so the number of workers is enough" if before else f"the first fault was at {struck}"
    )
    if sums is not None and sums["step"] == step:
        return Diagnosis(
            "the same examples gave other sums: the loop's body has state or randomness that is not kept by elastic: "
            "a global counter or cache, a generator of its own (in collate_fn, too), what a worker computed from "
            "its rank",
            f"step {step} is the first that differs, though its examples and the weights before it are equal; {when}",
            "put what must survive into extra=, and draw random numbers from torch, numpy.random or random: inside a "
            "share these are seeded by elastic",
        )
    return Diagnosis(
        "the same sums gave other weights: the update has state or randomness that is not kept by elastic, or depends "
        "on the number of workers",
        f"step {step} is the first whose weights differ, with equal sums; {when}",
        "put what update, on_apply or the scheduler remember into extra=; a learning rate must be the same at every "
        "number of workers",
    )


def _first_difference(baseline: Sequence[Event], faulted: Sequence[Event], kind: str, fact: str) -> Event | None:
    """Return the faulted run's first event of a kind whose fact is another one; None: there is none."""
    known = {event["step"]: event[fact] for event in baseline if event["event"] == kind}
    differ = [e for e in faulted if e["event"] == kind and known.get(e["step"], e[fact]) != e[fact]]
    return min(differ, key=lambda event: int(event["step"]), default=None)


def _initial(events: Sequence[Event]) -> Any:
    """Return the digest of the state that a run began with; None: it is not known."""
    begun = (e for e in events if e["event"] == "loaded" and e["step"] == 0 and e.get("from_claim") is None)
    return next((event["digest"] for event in begun if "digest" in event), None)


def _reads(events: Sequence[Event]) -> list[Event]:
    return [event for event in events if event["event"] == "reads"]


def _short(digest: Any) -> str:
    return f"{str(digest)[:12]}…"
