"""How a report says what happened: changes of the view as sentences, the parts of the workers' time in words."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from statistics import median

from elastic.events import words
from elastic.report.left_out import LeftOut, PassedOver
from elastic.report.report import Report
from elastic.report.view_changes import ChangeKind, ViewChange, recoveries

_EXAMPLES_SHOWN = 8
_LOST_SHOWN = 3

PART_WORDS = {
    "productive": ("computing", "computing steps that count, and the script's own code between steps"),
    "data_wait": ("waiting for data", "of steps that count: waiting for the loader"),
    "exchange_wait": ("exchange", "of steps that count: in collectives, the wait for slower workers included"),
    "save_stall": ("save stall", "training stood still for a save, or waited for the coordinator's"),
    "redone": ("redone or lost", "spent on steps that do not count: lost in flight, taken back, or passed over"),
    "detecting": ("detecting", "from a fault, or the last step before a silent one, to a worker's knowing of it"),
    "forming": ("forming views", "waiting for a view and forming its group"),
    "transferring": ("transferring", "state on its way to those without it"),
    "loading": ("loading", "claiming the storage, reading or committing the first state"),
    "idle": ("idle", "below the minimum of nodes"),
    "starting": ("starting", "from the request for a worker to its entry into the run: imports, set-up"),
    "unknown": ("unknown", "records that were removed to bound the log"),
}
"""part -> (a name, what it is)"""


def sentence(change: ViewChange) -> str:
    """Return what changed, what it cost, and why."""
    on = words.workers(change.world_size, of_a_replica=change.replica_size)
    go, begin = ("goes", "begins") if change.world_size == 1 else ("go", "begin")
    cost = change.cost_s
    match change.kind:
        case ChangeKind.START:
            return f"{on} {begin}" + (f" at step {change.step}" if change.step else "")
        case ChangeKind.RESTART:
            last = "sign" if change.detected_s is None else "progress"
            after = f", {words.seconds(cost)} after the last {last} of the launch before" if cost is not None else ""
            after += _noticed(change)
            return f"started again: {on} {go} on from step {change.step}{after}"
        case ChangeKind.LOSS:
            lost = f"lost {_who(change)}: "
            went = (
                f"{on} trained again {words.seconds(cost)} later{_noticed(change)}"
                if cost is not None
                else f"{on} formed a view, and applied no step in it"
            )
            joined = f", {change.joined} of them new" if change.joined else ""
            redone = f", {change.redone} step{'s' if change.redone != 1 else ''} redone" if change.redone else ""
            return lost + went + joined + redone
        case ChangeKind.BROKEN:
            return f"a collective failed, and nobody was lost: {on} {go} on" + _paused(change) + _noticed(change)
        case ChangeKind.LEAVE:
            return f"{words.workers(change.left)} left{_leave_reasons(change)}: {on} {go} on" + _paused(change)
        case _:
            departed = f", {change.left} left{_leave_reasons(change)}" if change.left else ""
            return f"{change.joined} joined{departed}: {on} {go} on" + _paused(change)


def _leave_reasons(change: ViewChange) -> str:
    return f" ({'; '.join(map(words.short_cause, change.left_on))})" if change.left_on else ""


def _who(change: ViewChange) -> str:
    """Return who was lost, and how: replicas by their numbers, with those of whom the others did not just follow."""
    if not change.lost_of:
        every = [worker + _how(change, worker) for worker in change.lost]
        return ", ".join(every) if len(every) <= _LOST_SHOWN else words.workers(len(every))
    first = [worker for worker, cause in change.lost.items() if cause != words.WITH_ITS_REPLICA]
    by = f" by the end of {', '.join(one + _how(change, one) for one in first)}" if len(first) <= _LOST_SHOWN else ""
    return words.replicas_by_number(change.lost_of.values()) + (by if first else "")


def _how(change: ViewChange, worker: str) -> str:
    """Return what took a lost worker, and that it came back, if it did."""
    cause = words.short_cause(change.lost[worker])
    back = "it came back, heard that the run had gone on, and ended" if worker in change.came_back else ""
    said = "; ".join(filter(None, (cause, back)))
    return f" ({said})" if said else ""


def _noticed(change: ViewChange) -> str:
    """Return how long nobody knew, where that was most of the time."""
    cost_s, unnoticed_s = change.cost_s, change.unnoticed_s
    if cost_s is None or unnoticed_s is None or unnoticed_s <= 0.5 * cost_s:
        return ""
    going_on = words.seconds(cost_s - unnoticed_s)
    return f" ({words.seconds(unnoticed_s)} until it was noticed, {going_on} to go on)"


def _paused(change: ViewChange) -> str:
    """Return the time from step to step, and how much state was passed on."""
    state = f", {words.size(change.transfer_bytes)} of state passed on" if change.transfer_bytes else ""
    return f", {words.seconds(change.cost_s)} from step to step{state}" if change.cost_s is not None else state


def passed_over(found: Sequence[PassedOver]) -> str:
    """Return all that was passed over, in one line."""
    steps = len({step for one in found for step in range(one.first, one.step + 1)})
    back = sum(one.first < one.step for one in found)
    went = f", {back} rollback{'s' * (back > 1)}" if back else ""
    examples = sum(one.examples_count for one in found)
    return f"{words.counted(steps, 'step')} for {words.counted(len(found), 'bad one')}{went}, {examples:,} examples"


def left_out(found: Sequence[LeftOut]) -> str:
    """Return all that was left out, in one line."""
    different = len({one.index for one in found})
    often = "" if different == len(found) else f", {words.counted(different, 'different one')}"
    return f"{words.counted(len(found), 'example')} that raised{often}"


def example_left_out(one: LeftOut) -> str:
    """Return what became of one example."""
    return f"step {one.step}: example {one.index} of epoch {one.epoch} raised {one.error}"


def passed(one: PassedOver) -> str:
    """Return one bad step, and what was passed over for it."""
    took = "" if one.first == one.step else f", and with it what was applied since step {one.first}"
    shown = ", ".join(map(str, one.examples[:_EXAMPLES_SHOWN]))
    more = ", …" if one.examples_count > min(len(one.examples), _EXAMPLES_SHOWN) else ""
    return f"step {one.step}{took}: {one.why}; {one.examples_count:,} examples: {shown}{more}"


def losses_by_cause_and_host(changes: Sequence[ViewChange]) -> list[tuple[str, str, int]]:
    """Return (cause, host, how many workers it took there), the most first."""
    counts = Counter(
        # process ids do not tell causes apart
        (re.sub(r"\d{3,}", "…", words.short_cause(cause)) or "nobody saw it", worker.rsplit("-", 2)[0])
        for change in changes
        if change.kind == ChangeKind.LOSS  # a restart has lost all, and is told by itself
        for worker, cause in change.lost.items()
    )
    return [(cause, host, times) for (cause, host), times in sorted(counts.items(), key=lambda one: (-one[1], one[0]))]


def shown_of(changes: Sequence[ViewChange], most: int) -> list[ViewChange | str]:
    """Return all changes; where they are more than `most`, the faults, and how many others were between these."""
    if len(changes) <= most:
        return list(changes)
    shown: list[ViewChange | str] = []
    calm = (ChangeKind.JOIN, ChangeKind.LEAVE)
    for is_calm, group in itertools.groupby(changes, key=lambda change: change.kind in calm):
        those = list(group)
        more = f"… {words.counted(len(those), 'change')}: workers joined, or left in order"
        shown += [more] if is_calm else those
    return shown


def lost(found: Report) -> str:
    """Return how many workers were lost."""
    live = sum(len(change.lost) for change in found.view_changes if change.kind == ChangeKind.LOSS)
    said = [words.workers(live)] if live or found.peers_lost == 0 else []
    if restarts := found.peers_lost - live:
        said.append(f"{words.counted(restarts, 'time')} one or more, and the launcher started all workers again")
    if found.agents_lost:
        said.append(f"the elastic run of {words.workers(found.agents_lost)} was killed or failed")
    return "; ".join(said)


def recovered(changes: Sequence[ViewChange]) -> str | None:
    """Return all recoveries in one line; None: there were none."""
    found = recoveries(changes)
    if not found:
        return None
    costs = [one.cost_s for one in found]
    spread = f"median {words.seconds(median(costs))}, longest {words.seconds(max(costs))}"
    workers = sum(len(loss.lost) for one in found for loss in one.losses)
    of = "" if workers == len(found) else f", for {workers:,} lost workers (some were lost together)"
    return (
        f"{len(found):,}{of}: {spread if len(costs) > 1 else words.seconds(costs[0])} from the fault, or the last step "
        "before a silent one, to the next step"
    )
