"""Did a run keep its promises, whatever happened to it? A pure function of its events.

The judge trusts no plan: what was applied is counted from the indices that datasets were really asked for, with
multiplicity. Of the run it takes only sizes. The invariants, by the names that a violation carries:

    position    each worker applies the steps after the state that it loaded, none skipped, none twice
    lineage     the surviving state's steps are 0 … last, each built on the one before
    zombie      no claim goes on from what a superseded writer left; whom the run left behind does one step more at most
    writer      once a newer claim is taken, workers of an older one finish the current step at most
    durable     no claim goes behind a save committed before it, or what a view's last worker left with; an end is saved
    sides       of a network that fell apart one side goes on: in a generation one list of workers claims or trains
    view        the members of a view name the same workers, and its blocks of shares join
    shares      each share of a surviving step was read by exactly one worker, within its block
    batch       each surviving step applied as many examples as its place in the epoch says, and whoever goes on from
                storage knows that place
    coverage    in each epoch each example was applied exactly once (under way: at most once), or as its order draws it;
                record by record: one that was passed over, or left out, has its place
    passed      what a state says was passed over is what its lineage passed over
    content     an example is the same at one step wherever and however often it is read
    record      the digest of indices that a worker reported is that of the indices it read
    agreement   workers that did one thing together report one result
    state       a state that was saved or loaded, or lies in storage, is the state that training had there
    repeat      a step done again gave the same sums and weights
    reference   sums, weights and final digest equal those of the undisturbed run
    finished    every worker that finished reports the same, and the run reached its end
    redone      survivors did only the step in flight again, if somebody was lost; no more in all than allowed
    restarted   no worker started twice: survivors go on in the same process
    storage     no state came from storage to a worker of a view in which somebody held one
    lost        no more workers were lost from views than faults took
    checkpoint  every checkpoint that is listed is whole

Four more are found elsewhere, and reported under names of this kind: `final`, the last state is that of the
undisturbed run, tensor by tensor (review.py); `deadline`, the run ended in time (review.py); `left`, nothing outlives
the run (review.py), and who survives holds no more than at first (machine/holdings.py); `named`, what a fault made
wrong in a worker was found with that worker's name, where it was found (misled.py).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from elastic.drill.judge.contents import content
from elastic.drill.judge.grouping import by_fact, grouped
from elastic.drill.judge.misled import Misled, sound_events
from elastic.drill.judge.stored_checkpoints import StoredCheckpoint, storage_holds
from elastic.drill.judge.survival import survival
from elastic.drill.judge.surviving_steps import Application, SurvivingSteps, ViewKey, trace, view_key
from elastic.drill.judge.verdict import Verdict, Violation, differing
from elastic.events.digests import digest_of_indices
from elastic.events.event import Event
from elastic.report.views import ViewSeen, views

_GOES_ON = ("claimed", "loaded", "redo", "step_applied", "passed_over", "save_begun", "saved")
"""What a worker does only on the side of a cut network that goes on."""


def judge(
    events: Sequence[Event],
    *,
    dataset_length: int,
    batch_size: int,
    last_batch: str = "short",
    epoch_length: int | None = None,
    each: str = "once",
    steps: int | None = None,
    exact: bool = True,
    reference: Sequence[Event] | str | None = None,
    checkpoints: Sequence[StoredCheckpoint] | None = None,
    redone_max: int | None = None,
    lost_max: int | None = None,
    may_fall_back: bool = False,
    one_launch: bool = False,
    misled: Mapping[ViewKey, Misled] | None = None,
) -> Verdict:
    """Return the verdict on one run, all of its launches together.

    epoch_length   examples that an epoch applies, where the order does not visit dataset_length of them
    each           how often an epoch may apply an example: "once", "at most once" or "any"
    steps          that the run was to apply; None: as many as it did, and it need not have finished
    exact          mode="exact": the same step gives the same bits wherever it is done
    reference      an undisturbed run's events, or only its final digest
    checkpoints    that the run could go on from, newest first; None: nobody looked
    redone_max     bound on the number of times that a step was begun again
    lost_max       how many workers were taken from the run against their will; None: who knows
    may_fall_back  checkpoints were damaged on purpose
    one_launch     all events are of one launch, in which no generation comes twice
    misled         what faults made wrong in a worker, for the run to find: see misled.py
    """
    of_kind = by_fact(events, "event")
    lineage = trace(events, may_fall_back=may_fall_back)
    redone = len(lineage.begun) - len({step for _, step in lineage.begun})
    seen = views(events)

    violations = list(lineage.violations)
    violations += _views(seen, of_kind["view_formed"])
    if one_launch:
        violations += _sides(of_kind)
    struck = {generation for _, generation in misled or ()}
    violations += survival(seen, of_kind, lost_max, may_fall_back=may_fall_back, misled=struck)
    violations += _moved_on(of_kind)
    for step in sorted(lineage.path):
        violations += _shares(lineage.path[step], exact)
        violations += _records(lineage.path[step])
    violations += content(events, reference)
    length = dataset_length if epoch_length is None else epoch_length
    violations += _coverage(lineage, dataset_length, length, batch_size, last_batch, each)
    violations += _epochs(of_kind, length, batch_size, last_batch)
    if each != "once" and reference is not None and not isinstance(reference, str):
        violations += _drawn(lineage, trace(reference))
    sound = of_kind if not misled else by_fact(sound_events(events, lineage, misled), "event")
    violations += _agreement(sound, exact)
    violations += _states(sound, lineage)
    violations += _finish(of_kind["finished"], steps, len(lineage.path))
    if reference is not None and exact:
        violations += _against(sound, lineage, reference)
    if redone_max is not None and redone > redone_max:
        violations.append(Violation("redone", f"{redone} steps were begun again, allowed are {redone_max}"))
    if checkpoints is not None:
        violations += storage_holds(checkpoints, of_kind, may_fall_back=may_fall_back)

    passed_over = lineage.passed_over
    counting = [done for step, done in lineage.path.items() if step not in passed_over]
    return Verdict(
        violations=tuple(violations),
        steps=len(lineage.path),
        redone=redone,
        discarded=len(lineage.discarded),
        world_sizes=tuple(len(view.workers) for view in seen),
        examples_applied=Counter(index for done in counting for read in done.reads for index in read["indices"]),
        passed_over=tuple(sorted(passed_over)),
        weights_sha256=of_kind["finished"][-1]["digest"] if of_kind["finished"] else None,
        checkpoints=len(checkpoints or ()),
    )


def _moved_on(of_kind: Mapping[str, Sequence[Event]]) -> Iterator[Violation]:
    """Yield a violation for each worker that did more than the current step after the run had gone on without it."""
    ends = {(event["worker"], event.get("generation") or 0): event for event in of_kind["moved_on"]}
    doers: dict[tuple[ViewKey, int], set[str]] = defaultdict(set)
    finished = (*of_kind["step_applied"], *of_kind["passed_over"])
    for done in finished:
        doers[view_key(done), done["step"]].add(done["worker"])
    gone = {worker for worker, _ in ends}
    views = {(view["worker"], view.get("generation") or 0): view for view in of_kind["view_formed"]}
    for at, end in ends.items():
        view = views.get(at)
        if view is None or gone.issuperset(view["workers"]):
            continue  # nobody else was there
        own = [e for e in finished if (e["worker"], e.get("generation") or 0) == at]
        # all of a view take part in each step: what only those did who are gone, the run went on without
        alone = [done for done in own if doers[view_key(done), done["step"]] <= gone]
        if len(alone) > 1:
            what = f"{at[0]} applied steps {[done['step'] for done in alone]} after the run had gone on without it"
            yield Violation("zombie", what, (*alone, end))


def _views(seen: Iterable[ViewSeen], formed: Sequence[Event]) -> Iterator[Violation]:
    """Yield a violation where members name different workers, or the blocks of shares do not join."""
    for view in (one.record for one in seen):
        members = {e["worker"]: e for e in formed if e.get("generation") == view.get("generation")}
        reported = [members[worker] for worker in view["workers"] if worker in members]
        if view["worker"] not in view["workers"] or len(set(view["workers"])) < len(view["workers"]):
            yield Violation("view", "a worker formed a view that does not hold it once", (view,))
        if evidence := differing((e["workers"], e) for e in reported):
            yield Violation("view", f"generation {view.get('generation')} names different workers", evidence)
        elif len(reported) == len(view["workers"]) and not _blocks_join(reported, int(view.get("replica_size", 1))):
            yield Violation("view", "the blocks of shares leave a gap or overlap", tuple(reported))


def _blocks_join(formed: Sequence[Event], of_a_replica: int) -> bool:
    """Return whether each replica's block begins where the one before ends, and its ranks have it from their places on.

    formed  each rank's record, in order
    """
    end = 0
    for at in range(0, len(formed), of_a_replica):
        begin, stop = formed[at]["shares"]
        own = enumerate(formed[at : at + of_a_replica])
        if begin != end or stop < begin or any(one["shares"] != [begin + place, stop] for place, one in own):
            return False
        end = stop
    return True


def _sides(of_kind: Mapping[str, Sequence[Event]]) -> Iterator[Violation]:
    """Yield a violation for each generation in which several lists of workers claimed or trained."""
    acted = {(event["worker"], event.get("generation") or 0) for kind in _GOES_ON for event in of_kind[kind]}
    views_of = grouped(of_kind["view_formed"], lambda view: view.get("generation") or 0)
    for generation, own in sorted(views_of.items()):
        went_on = [view for view in own if any((worker, generation) in acted for worker in view["workers"])]
        if evidence := differing((view["workers"], view) for view in went_on):
            yield Violation("sides", f"{len(evidence)} sides went on in generation {generation}", evidence)


def _shares(done: Application, exact: bool) -> Iterator[Violation]:
    """Check that each share of a surviving step was read by exactly one worker, within its block."""
    if not done.reads:
        yield Violation("shares", f"no reads are recorded for step {done.step}: was the run observed?", done.applied)
        return
    readers: dict[int, dict[str, Event]] = defaultdict(dict)
    for read in (*done.reads, *done.left_out):
        readers[read["share"]][read["worker"]] = read
    missing = sorted(set(range(max(readers) + 1)) - readers.keys())
    if missing and exact:  # in fast mode a worker reads its block as one batch, as its first share
        yield Violation("shares", f"step {done.step} was applied without shares {missing}", done.applied)
    for share, by_worker in sorted(readers.items()):
        if len(by_worker) > 1:
            what = f"share {share} of step {done.step} was read by {len(by_worker)} workers"
            yield Violation("shares", what, tuple(by_worker.values()))
    blocks = {applied["worker"]: applied for applied in done.applied}
    for read in done.reads:
        block = blocks.get(read["worker"])
        if block is not None and not block["shares"][0] <= read["share"] < block["shares"][1]:
            yield Violation("shares", f"a worker read share {read['share']} outside its block", (block, read))


def _records(done: Application) -> Iterator[Violation]:
    """Check that the digest of indices that each worker reported is that of the indices it read."""
    for applied in done.applied:
        own = sorted((e for e in done.reads if e["worker"] == applied["worker"]), key=lambda e: int(e["share"]))
        if digest_of_indices(index for read in own for index in read["indices"]) != applied["indices"]:
            what = f"{applied['worker']} reported other indices for step {done.step} than it read"
            yield Violation("record", what, (applied, *own))


def _coverage(
    lineage: SurvivingSteps, dataset_length: int, length: int, batch_size: int, last_batch: str, each: str
) -> Iterator[Violation]:
    """Check each step's size and each epoch's examples by sizes alone: what a step reads is what is being judged."""
    per_epoch = length - length % batch_size if last_batch == "drop" else length
    steps_per_epoch = -(-per_epoch // batch_size)
    applied: dict[int, Counter[int]] = defaultdict(Counter)
    where: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for step, done in sorted(lineage.path.items()):
        indices = done.in_order
        if last_batch == "carry":
            epochs = [(step * batch_size + offset) // length for offset in range(len(indices))]
            expected = batch_size if step + 1 < len(lineage.path) else min(batch_size, len(indices))
        else:
            epoch, in_epoch = divmod(step, steps_per_epoch)
            epochs = [epoch] * len(indices)
            expected = min(batch_size, per_epoch - in_epoch * batch_size)
            wrong = [e for e in done.applied if e["epoch"] != epoch]
            if wrong:
                yield Violation("batch", f"step {step} belongs to epoch {epoch}", tuple(wrong))
        if len(indices) != expected and done.reads:
            yield Violation("batch", f"step {step} applied {len(indices)} examples, expected {expected}", done.applied)
        for epoch, (index, read) in zip(epochs, indices, strict=True):
            applied[epoch][index] += 1
            where[epoch, index].append(read)
    for epoch, counts in applied.items():
        for index, times in sorted(counts.items()):
            if not 0 <= index < dataset_length:
                what = f"example {index} of a dataset of {dataset_length} was read"
                yield Violation("coverage", what, tuple(where[epoch, index]))
            elif times > 1 and each != "any":
                what = f"example {index} was applied {times} times in epoch {epoch}"
                yield Violation("coverage", what, tuple(where[epoch, index]))
        over = epoch < max(applied) or counts.total() >= per_epoch or (epoch + 1) * steps_per_epoch <= len(lineage.path)
        missing = sorted(set(range(dataset_length)) - counts.keys()) if over and each == "once" else []
        if len(missing) > length - per_epoch:
            what = f"{len(missing)} examples were not applied in epoch {epoch}, {missing[:10]} among them"
            yield Violation("coverage", what)


def _drawn(lineage: SurvivingSteps, undisturbed: SurvivingSteps) -> Iterator[Violation]:
    """Check that each step applied the undisturbed run's examples, as often: sizes do not tell what an order draws."""
    for step in sorted(lineage.path.keys() & undisturbed.path.keys()):
        ours, theirs = (
            Counter(index for read in run.path[step].reads for index in read["indices"])
            for run in (lineage, undisturbed)
        )
        if ours != theirs:
            surplus, missing = sorted((ours - theirs).elements()), sorted((theirs - ours).elements())
            what = f"step {step} applied other examples than the undisturbed run's: {surplus[:5]}, not {missing[:5]}"
            yield Violation("coverage", what, lineage.path[step].applied)


def _epochs(
    of_kind: Mapping[str, Sequence[Event]], length: int, batch_size: int, last_batch: str
) -> Iterator[Violation]:
    """Check that whoever loads a state from storage knows its epoch."""
    steps_per_epoch = length // batch_size if last_batch == "drop" else -(-length // batch_size)

    def epoch_of(step: int) -> int:
        return step * batch_size // length if last_batch == "carry" else step // steps_per_epoch

    ends = {event["step"] for event in of_kind["finished"]}  # no step comes next there
    for load in of_kind["loaded"]:
        step = load["step"]
        possible = {epoch_of(step), epoch_of(step - 1) if step in ends else epoch_of(step)}
        if "digest" in load and load["epoch"] not in possible:  # from a peer it may come before that is at a boundary
            what = f"the state after {step} steps was loaded as one of epoch {load['epoch']}, not {epoch_of(step)}"
            yield Violation("batch", what, (load,))


def _agreement(of_kind: Mapping[str, Sequence[Event]], exact: bool) -> Iterator[Violation]:
    """Check that workers of one view report one result and, in exact mode, that a step done again gave the same."""
    together = {
        "loaded": (("step", "epoch", "from_claim", "digest"), ()),
        "step_applied": (("epoch", "count", "sums"), ("step",)),
        "passed_over": (("epoch", "count", "sums", "first", "why"), ("step",)),
        "weights": (("digest",), ("step",)),
    }
    for kind, (facts, keys) in together.items():
        groups = grouped(of_kind[kind], partial(_view_key_and, keys))
        for group in groups.values():
            for fact in facts:
                if evidence := differing((e.get(fact), e) for e in group):
                    yield Violation("agreement", f"workers of one view differ in `{fact}` at {kind}", evidence)
    done = grouped((*of_kind["step_applied"], *of_kind["passed_over"]), partial(_view_key_and, ("step",)))
    for group in done.values():
        if evidence := differing((_outcome(e), e) for e in group):
            what = f"of step {group[0]['step']} some workers of one view say that they applied it, and others not"
            yield Violation("agreement", what, evidence)
    if exact:
        for step, each in _by_step(group[0] for group in done.values()).items():
            if evidence := differing((_outcome(e), e) for e in each):
                what = f"step {step} was passed over one time, and not, or otherwise, another time"
                yield Violation("repeat", what, evidence)
        for kind, fact in (("step_applied", "count"), ("step_applied", "sums"), ("weights", "digest")):
            for step, group in _by_step(of_kind[kind]).items():
                first_of_view = {view_key(e): e for e in group}.values()
                if evidence := differing((e[fact], e) for e in first_of_view):
                    yield Violation("repeat", f"step {step} done again gave another result: {fact}", evidence)


def _states(of_kind: Mapping[str, Sequence[Event]], lineage: SurvivingSteps) -> Iterator[Violation]:
    """Check that saved, loaded and weights of one lineage name one digest per number of steps applied.

    What the script has changed by the time of a save is what is saved, also where others go on in another view then.
    """
    at: dict[int, list[tuple[object, Event]]] = defaultdict(list)
    changed = [event for event in of_kind["changed"] if _is_behind(event, lineage)]
    superseded = {event["step"] for event in changed}
    for event in of_kind["weights"]:
        done = lineage.path.get(event["step"])
        if done is not None and done.view == view_key(event) and event["step"] not in superseded:
            at[event["step"] + 1].append((event["digest"], event))
    for event in changed:
        at[event["step"] + 1].append((event["digest"], event))
    for event in (*of_kind["saved"], *of_kind["loaded"]):
        if "digest" not in event:
            continue
        last = lineage.path.get(event["step"] - 1)
        claim = event["claim"] if event["event"] == "saved" else event["from_claim"]
        if event["step"] == 0 or (last is not None and claim is not None and last.view[0] <= claim):
            at[event["step"]].append((event["digest"], event))
    for step, states in sorted(at.items()):
        if evidence := differing(states):
            yield Violation("state", f"the state after {step} steps has several digests", evidence)


def _is_behind(event: Event, lineage: SurvivingSteps) -> bool:
    """Return whether this was behind its step as it survives, and ahead of the next one as that does."""
    done, following = lineage.path.get(event["step"]), lineage.path.get(event["step"] + 1)
    return (
        done is not None and done.view <= view_key(event) and (following is None or view_key(event) <= following.view)
    )


def _finish(finished: Sequence[Event], steps: int | None, reached: int) -> Iterator[Violation]:
    """Check that every worker that finished reports the same, and that the run reached its end."""
    for fact in ("step", "digest"):
        if evidence := differing((e[fact], e) for e in finished):
            yield Violation("finished", f"workers finished with different results: {fact}", evidence)
    if finished and finished[-1]["step"] != reached:
        what = f"the run says that it applied {finished[-1]['step']} steps; {reached} survive in its events"
        yield Violation("finished", what, (finished[-1],))
    if steps is not None and (not finished or reached != steps):
        end = "finished" if finished else "did not finish"
        yield Violation("finished", f"the run {end} with {reached} of {steps} steps", tuple(finished[-1:]))


def _against(
    of_kind: Mapping[str, Sequence[Event]], lineage: SurvivingSteps, reference: Sequence[Event] | str
) -> Iterator[Violation]:
    """Check sums, weights, steps passed over and the final digest against the undisturbed run's."""
    finished = of_kind["finished"]
    if isinstance(reference, str):
        if finished and finished[-1]["digest"] != reference:
            yield Violation("reference", f"the undisturbed run ended with {reference}", (finished[-1],))
        return
    for kind, fact in (("step_applied", "sums"), ("weights", "digest")):
        undisturbed = _by_step([e for e in reference if e["event"] == kind])
        for step, group in _by_step(of_kind[kind]).items():
            ours = [e for e in group if step in lineage.path and lineage.path[step].view == view_key(e)]
            if evidence := differing((e[fact], e) for e in [*undisturbed.get(step, [])[:1], *ours]):
                yield Violation("reference", f"step {step} differs from the undisturbed run's: {fact}", evidence)
    there = trace(reference)
    for step in sorted(lineage.path.keys() & there.path.keys()):
        ways = [(path[step].passed_from, path[step].applied[0]) for path in (there.path, lineage.path)]
        if evidence := differing(ways):
            yield Violation("reference", f"step {step} was not passed over as in the undisturbed run", evidence)
    ends = [e for e in reference if e["event"] == "finished"]
    if evidence := differing((e["digest"], e) for e in [*ends[-1:], *finished[-1:]]):
        yield Violation("reference", "the final weights differ from the undisturbed run's", evidence)


def _outcome(done: Event) -> int | None:
    """Return the first step that was passed over with this one; None: it was applied."""
    return done["first"] if done["event"] == "passed_over" else None


def _view_key_and(keys: Sequence[str], event: Event) -> tuple[object, ...]:
    return (view_key(event), *(event[key] for key in keys))


def _by_step(events: Iterable[Event]) -> dict[int, list[Event]]:
    return dict(sorted(grouped(events, lambda event: int(event["step"])).items()))
