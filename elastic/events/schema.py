"""Every event that a run records: its name, when it is emitted, and each of its facts with its type and unit.

Each is a class here, whose docstring says when it is emitted and by whom; what a drill's observer adds is declared in
drill_schema.py, in the same way. The table for people is made from both (`elastic report --schema`, declarations.py),
and tests compare with them whatever real runs emit. Facts and events may be added; none is renamed, and none changes
its meaning. A reader passes over what it does not know.
"""

from __future__ import annotations

from typing import Annotated, Any

from elastic.events.event import ABSENT, TypedEvent


class Common:
    """The facts of every record; it has those from `generation` on once they are known."""

    t: Annotated[float, "unix seconds, by the worker's clock"]
    worker: Annotated[str, "the worker's id: host, process id and a token"]
    event: Annotated[str, "the event's name"]
    generation: Annotated[int, "the view's number; 0 under torchrun, and before the first view"] = ABSENT
    rank: Annotated[int, "the worker's rank in that view"] = ABSENT
    world_size: Annotated[int, "workers in that view"] = ABSENT
    claim: Annotated[int, "the number under which the run writes its storage, once it is known"] = ABSENT
    replica: Annotated[str, "the worker's replica, if that has several workers; a new name at each start"] = ABSENT


class EndOfStretch(TypedEvent):
    """A record that ends a stretch of work, with what the stopwatch has measured (timing.py). Zeros are left out."""

    wait_s: Annotated[float, "seconds spent in collectives since the worker's last such record"] = ABSENT
    data_s: Annotated[float, "seconds of that time spent waiting for the loader"] = ABSENT
    save_s: Annotated[float, "seconds of it that training stood still for a save, on the coordinator"] = ABSENT
    evaluate_s: Annotated[float, "seconds of it inside run.evaluate"] = ABSENT


class RunStarted(TypedEvent):
    """The worker enters its Run."""

    config: Annotated[dict[str, Any], "what decides the numbers"]
    identity: Annotated[dict[str, Any], "the run's identity, as this worker computes it"]
    pid: Annotated[int, "of the worker's process"]
    host: Annotated[str, "the machine's name"]
    restart: Annotated[int, "how often the launcher has started this worker's slot again"]
    age_s: Annotated[float, "seconds since its agent asked for it, or its process was started"] = ABSENT


class ViewFormed(TypedEvent):
    """The worker is in a view, and its process group is formed."""

    workers: Annotated[list[str], "worker ids, by rank"]
    shares: Annotated[list[int], "[lo, hi): this rank's shares of a step; in a replica every replica_size-th of these"]
    replica_size: Annotated[int, "so many ranks, one after the other, are a replica; absent: 1"] = ABSENT
    idle_s: Annotated[float, "seconds that the run waited for nodes, being below its minimum"] = ABSENT
    not_lost: Annotated[
        list[str], "of the view before: they left in order, or had received no state yet and join later"
    ] = ABSENT


class Claimed(TypedEvent):
    """The coordinator has claimed the run's storage."""

    resumed_from: Annotated[dict[str, Any] | None, "{claim, step, nonce} of the commit that it goes on from"]


class Loaded(TypedEvent):
    """The run's state is in the worker's model."""

    step: Annotated[int, "steps applied"]
    epoch: Annotated[int, "of the next step"]
    from_claim: Annotated[int | None, "whose checkpoint; null: a new run; the present claim: from peers"]
    accepted: Annotated[list[str], "identity fields that differ by permission"]
    passed_over: Annotated[list[list[int]], "[first, end) of the steps that the state says were passed over"] = ABSENT
    digest: Annotated[str, "SHA-256 of the model's state; absent: from peers"] = ABSENT


class StepApplied(EndOfStretch):
    """A step's update is complete on this worker."""

    step: Annotated[int, "its index, from 0"]
    epoch: Annotated[int, "of its first example"]
    attempt: Annotated[int, "how often it has come round again"]
    redone: Annotated[bool, "attempt > 0"]
    shares: Annotated[list[int], "[lo, hi): this rank's shares"]
    count: Annotated[float, "what the whole batch counted: examples, or tokens, or what their weights add up to"]
    indices: Annotated[str, "digest_of_indices() of what this rank read, in order"]
    sums: Annotated[str, "digest_of_sums() of the global sums and count"]
    values: Annotated[dict[str, float | str], "rank 0: name -> global sum, of scalars; not finite: as text"] = ABSENT
    left_out: Annotated[int, "examples of the whole batch that raised, and were left out; absent: none"] = ABSENT


class ExampleLeftOut(TypedEvent):
    """The dataset raised for an example that this worker was to read, and `on_bad_example="skip"` leaves it out.

    It counts as left out if the step is applied from this attempt.
    """

    step: Annotated[int, "the step's index"]
    attempt: Annotated[int, "how often the step has come round again"]
    share: Annotated[int, "that it belongs to; in fast mode the first of this worker's"]
    at: Annotated[int, "its place among the share's examples, from 0"]
    epoch: Annotated[int, "in which it was to be read"]
    index: Annotated[int, "its index in the dataset"]
    error: Annotated[str, "what was raised: its type and message, cut at 500 characters"]


class PassedOver(EndOfStretch):
    """A step was bad, as `on_bad=` has it, and is passed over on this worker: there is no step_applied of it.

    Where `first` is less than `step`, the run went back to what was saved after `first` steps, and the steps from there
    on, which had been applied, are passed over, too.
    """

    step: Annotated[int, "the bad step's index"]
    first: Annotated[int, "the first step that is passed over"]
    epoch: Annotated[int, "of the bad step's first example"]
    attempt: Annotated[int, "how often the bad step has come round again"]
    why: Annotated[str, "in words"]
    shares: Annotated[list[int], "[lo, hi): this rank's shares"]
    count: Annotated[float, "what the whole batch of the bad step counted: examples, or tokens"]
    indices: Annotated[str, "digest_of_indices() of what this rank read for it, in order"]
    sums: Annotated[str, "digest_of_sums() of its global sums and count"]
    signs: Annotated[dict[str, float | str], "its loss, if there is one, and its gradient's norm; not finite: as text"]
    examples: Annotated[list[int], "rank 0: dataset indices that were not passed over before, 1,000 at most"] = ABSENT
    examples_count: Annotated[int, "rank 0: how many they are"] = ABSENT


class NotFinite(TypedEvent):
    """The coordinator has told of the first step, since it was one, whose loss or gradient is not finite.

    No `on_bad=` says what becomes of it: it is applied.
    """

    step: Annotated[int, "its index"]
    why: Annotated[str, "in words"]
    signs: Annotated[dict[str, float | str], "its loss, if there is one, and its gradient's norm; not finite: as text"]
    examples: Annotated[
        list[int], "dataset indices of those that hold numbers that are not finite; if none does, of all, 1,000 at most"
    ]


class PeerLost(EndOfStretch):
    """A collective failed on this worker. What it spent on the step in flight is lost."""

    step: Annotated[int, "steps applied"]
    phase: Annotated[str | None, "what it was doing"]
    error: Annotated[str, "the failure's message"]
    missing: Annotated[list[int], "ranks that this machine knows to be dead or stopped"]


class FaultDetected(TypedEvent):
    """`elastic run`: the first rank of a view learns why a worker is gone, with that view."""

    lost: Annotated[str, "worker id"]
    cause: Annotated[str, "signal, exit status, exception, hang, or the loss of its node"]
    of_replica: Annotated[int, "its replica's number in the view before, if that has several workers"] = ABSENT
    died_t: Annotated[float | None, "unix seconds, when its agent knew of its death; null: the agent is gone"]
    step: Annotated[int | None, "steps that it had applied"]


class Hang(TypedEvent):
    """Beside fault_detected: the lost worker was stuck or stopped, and its agent killed it."""

    lost: Annotated[str, "worker id"]
    step: Annotated[int | None, "steps that it had applied"]
    stuck_s: Annotated[float | None, "seconds without a sign"]


class Redo(TypedEvent):
    """A step comes round again on this worker, in a new view."""

    step: Annotated[int, "its index"]
    attempt: Annotated[int, "1 for the first time"]


class Transfer(TypedEvent):
    """State has gone from peers to those without it; recorded by both sides."""

    step: Annotated[int, "steps applied in that state"]
    bytes: Annotated[int, "of the state"]
    seconds: Annotated[float, "from its begin to its end on this worker"]
    role: Annotated[str, "takes or gives"]


class SaveBegun(TypedEvent):
    """The coordinator begins a save."""

    step: Annotated[int, "steps applied"]


class Staged(TypedEvent):
    """The state is copied, and will be committed even if this worker dies."""

    step: Annotated[int, "steps applied"]
    seconds: Annotated[float, "that training stood still for it"]


class Saved(TypedEvent):
    """The coordinator knows a save to be committed. Where it died meanwhile there is no such record."""

    step: Annotated[int, "steps applied"]
    bytes: Annotated[int, "that were written"]
    seconds: Annotated[float, "from the save's begin to its commit"]
    stall: Annotated[float, "seconds of them that training stood still"]
    name: Annotated[str, "the checkpoint's"]
    unfit: Annotated[str, "which weight is not finite, so that it does not count among those to keep"] = ABSENT


class SaveFailed(TypedEvent):
    """A save has failed, and what was committed before stays. A run that stops for it ends with `error`."""

    step: Annotated[int, "steps applied"]
    error: Annotated[str, "the failure's message"]
    in_a_row: Annotated[int, "failures since the last commit"] = ABSENT
    saved_step: Annotated[int | None, "steps applied in that commit; null: there is none"] = ABSENT


class SaveOrder(TypedEvent):
    """All nodes leave while an older save is uploaded, and there is not time for that and for the newest.

    The coordinator has decided which goes first, by how long each takes as measured.
    """

    step: Annotated[int, "steps applied in the newest"]
    older: Annotated[int, "steps applied in the one that is being uploaded"]
    first: Annotated[str, "newest: the older one is given up for it; or older"]
    why: Annotated[str, "in words"]
    left_s: Annotated[float, "seconds that its node is still there"]


class SaveInterval(TypedEvent):
    """Under `save_every="auto"`, the coordinator: the interval between saves has become another one.

    Recorded when it is known, and whenever it differs by a quarter, or for another reason, from the one before.
    """

    seconds: Annotated[float, "of training between two saves"]
    reason: Annotated[str, "in words"]
    bound: Annotated[str, "what decided it: unmeasured, optimum, upload or at_risk"]
    stall: Annotated[float | None, "seconds that training stands still for a save; null: not measured yet"]
    durable: Annotated[float | None, "seconds from a save's begin to its commit; null: not measured yet"]
    losses: Annotated[int, "that cost a reload, since the run began"]
    observed_s: Annotated[float, "seconds in which these were seen"]


class Notice(TypedEvent):
    """The worker has been told to leave; or it leaves with others who were, and then `signal` is null."""

    signal: Annotated[str | None, "the signal's name, or who told it"]
    left_s: Annotated[float, "seconds that its node is still there, where somebody says"] = ABSENT


class AgentLost(TypedEvent):
    """The worker's agent, its `elastic run`, is gone without a word: it was killed, or failed.

    The worker leaves as soon as it may, or ends. Nobody has told it to: there is no `notice` of it.
    """

    step: Annotated[int, "steps applied"]


class Hint(TypedEvent):
    """The worker's node may be taken soon, as its cloud says: the run saves at the next boundary, and nobody leaves."""

    step: Annotated[int, "steps applied"]
    why: Annotated[str, "who says so, in words"]
    left_s: Annotated[float, "seconds until then, where somebody says"] = ABSENT


class Left(EndOfStretch):
    """The worker leaves in order, at a boundary; nothing is redone."""

    step: Annotated[int, "steps applied"]


class CutShort(TypedEvent):
    """The worker was told to leave, its machine is about to go, and it has not come to a boundary: it ends.

    What nobody else holds is lost.
    """

    step: Annotated[int, "steps applied"]
    at: Annotated[str, "what it was at, in words"]
    why: Annotated[str, "who told it, in words"]
    left_s: Annotated[float, "seconds that its node was still there"]


class CompiledLoaded(TypedEvent):
    """The worker is about to compile for the first time.

    It has what the run's storage keeps for its kind of machine.
    """

    objects: Annotated[int, "how many were loaded"]
    bytes: Annotated[int, "of these"]
    took_s: Annotated[float, "seconds that it waited for them"]


class CompiledKept(TypedEvent):
    """What the worker has compiled is in the run's storage."""

    bytes: Annotated[int, "that were added"]
    gone: Annotated[int, "how many objects were removed to make room"]
    took_s: Annotated[float, "seconds that it took, in the background"]


class MovedOn(TypedEvent):
    """The worker, of a host that was cut off or stood still, hears that the run has gone on without it, and ends.

    Its `generation` is that of the last view which it knew; nothing that it does counts any more.
    """

    step: Annotated[int, "steps applied"]
    why: Annotated[str, "in words"]


class RepeatedFailure(TypedEvent):
    """A worker learns that the run ends because one failure came again and again."""

    why: Annotated[str, "the failure, and its trace"]


class Ended(TypedEvent):
    """A worker learns that the run ends for another reason: too few nodes, say."""

    why: Annotated[str, "in words"]


class Error(TypedEvent):
    """An exception has left the script's with-block."""

    step: Annotated[int, "steps applied"] = ABSENT
    error: Annotated[str, "its type and message"]


class Finished(EndOfStretch):
    """The run's last state is committed, and this worker knows it."""

    step: Annotated[int, "steps applied"]
    digest: Annotated[str, "SHA-256 of the model's final state"]
    passed_over: Annotated[list[list[int]], "[first, end) of the steps that its state says were passed over"] = ABSENT


class Folded(EndOfStretch):
    """In place of old records that were removed to bound the log: what they added up to (compaction.py)."""

    since: Annotated[float, "unix seconds, where these records begin"]
    records: Annotated[dict[str, int], "event -> how many records"]
    steps: Annotated[int, "step_applied records among them"]
    first: Annotated[int | None, "the first one's index"]
    last: Annotated[int | None, "the last one's"]
    redone: Annotated[int, "of them with attempt > 0"]
    count: Annotated[float, "what their batches counted"]
    saved_bytes: Annotated[int, "of the saved records"]
    stall_s: Annotated[float, "seconds that training stood still for these"]
    saved_t: Annotated[list[float], "unix seconds of some of the saved records"]
    curve: Annotated[list[Any], "[step, count, values] of some of the steps"]
    unknown: Annotated[bool, "it stands for records of other kinds, too, whose facts are lost"]
