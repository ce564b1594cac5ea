"""Every event that a run records: its name, when it is emitted, and each of its facts with its type and unit.

This is the one place that declares them. The table for people is made from it (`elastic report --schema`), and tests
compare with it whatever real runs emit. Facts and events may be added; none is renamed, and none changes its meaning.
A reader passes over what it does not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Fact:
    """kind: as in `_KINDS`, "null" for None   optional: absent in some records"""

    name: str
    kind: str
    meaning: str
    optional: bool = False


@dataclass(frozen=True)
class Declared:
    """One event. when: at which moment, and by whom"""

    name: str
    when: str
    facts: tuple[Fact, ...] = ()


_KINDS: dict[str, type | tuple[type, ...]] = {
    "int": int,
    "float": (int, float),
    "str": str,
    "bool": bool,
    "list": list,
    "dict": dict,
    "null": type(None),
}

COMMON = (
    Fact("t", "float", "unix seconds, by the worker's clock"),
    Fact("worker", "str", "the worker's id: host, process id and a token"),
    Fact("event", "str", "the event's name"),
    Fact("generation", "int", "the view's number; 0 under torchrun, and before the first view", optional=True),
    Fact("rank", "int", "the worker's rank in that view", optional=True),
    Fact("world_size", "int", "workers in that view", optional=True),
    Fact("claim", "int", "the number under which the run writes its storage, once it is known", optional=True),
)

SPENT = (
    Fact("wait_s", "float", "seconds spent in collectives since the worker's last such record", optional=True),
    Fact("data_s", "float", "seconds of that time spent waiting for the loader", optional=True),
    Fact("save_s", "float", "seconds of it that training stood still for a save, on the coordinator", optional=True),
    Fact("evaluate_s", "float", "seconds of it inside run.evaluate", optional=True),
)
"""What the stopwatch has measured (timing.py), in records that end a stretch of work. Zeros are left out."""

_STEPS = Fact("step", "int", "steps applied")

EVENTS = (
    Declared(
        "run_started",
        "The worker enters its Run.",
        (
            Fact("config", "dict", "what decides the numbers"),
            Fact("identity", "dict", "the run's identity, as this worker computes it"),
            Fact("pid", "int", "of the worker's process"),
            Fact("host", "str", "the machine's name"),
            Fact("restart", "int", "how often the launcher has started this worker's place again"),
            Fact("age_s", "float", "seconds since its agent asked for it, or its process was started", optional=True),
        ),
    ),
    Declared(
        "view_formed",
        "The worker is in a view, and its process group is formed.",
        (
            Fact("workers", "list", "worker ids, by rank"),
            Fact("shares", "list", "[lo, hi): this rank's shares of a step"),
            Fact("idle_s", "float", "seconds that the run waited for nodes, being below its minimum", optional=True),
        ),
    ),
    Declared(
        "claimed",
        "The coordinator has claimed the run's storage.",
        (Fact("resumed_from", "dict|null", "{claim, step, nonce} of the commit that it goes on from"),),
    ),
    Declared(
        "loaded",
        "The run's state is in the worker's model.",
        (
            _STEPS,
            Fact("epoch", "int", "of the next step"),
            Fact("from_claim", "int|null", "whose checkpoint; null: a new run; the present claim: from peers"),
            Fact("accepted", "list", "identity fields that differ by permission"),
            Fact("digest", "str", "SHA-256 of the model's state; absent: from peers", optional=True),
        ),
    ),
    Declared(
        "step_applied",
        "A step's update is complete on this worker.",
        (
            Fact("step", "int", "its index, from 0"),
            Fact("epoch", "int", "of its first example"),
            Fact("attempt", "int", "how often it has come round again"),
            Fact("redone", "bool", "attempt > 0"),
            Fact("shares", "list", "[lo, hi): this rank's shares"),
            Fact("count", "int", "what the whole batch counted: examples, or tokens"),
            Fact("indices", "str", "digest_of_indices() of what this rank read, in order"),
            Fact("sums", "str", "digest_of_sums() of the global sums and count"),
            Fact("values", "dict", "rank 0: name -> global sum, of scalars; not finite: as text", optional=True),
            *SPENT,
        ),
    ),
    Declared(
        "peer_lost",
        "A collective failed on this worker. What it spent on the step in flight is lost.",
        (
            _STEPS,
            Fact("phase", "str|null", "what it was doing"),
            Fact("error", "str", "the failure's message"),
            Fact("missing", "list", "ranks that this machine knows to be dead or stopped"),
            *SPENT,
        ),
    ),
    Declared(
        "fault_detected",
        "`elastic run`: the first rank of a view learns why a worker is gone, with that view.",
        (
            Fact("lost", "str", "worker id"),
            Fact("cause", "str", "signal, exit status, exception, hang, or the loss of its node"),
            Fact("died_t", "float|null", "unix seconds, when its agent knew of its death; null: the agent is gone"),
            Fact("step", "int|null", "steps that it had applied"),
        ),
    ),
    Declared(
        "hang",
        "Beside fault_detected: the lost worker was stuck or stopped, and its agent killed it.",
        (
            Fact("lost", "str", "worker id"),
            Fact("step", "int|null", "steps that it had applied"),
            Fact("stuck_s", "float|null", "seconds without a sign"),
        ),
    ),
    Declared(
        "redo",
        "A step comes round again on this worker, in a new view.",
        (Fact("step", "int", "its index"), Fact("attempt", "int", "1 for the first time")),
    ),
    Declared(
        "transfer",
        "State has gone from peers to those without it; recorded by both sides.",
        (
            Fact("step", "int", "steps applied in that state"),
            Fact("bytes", "int", "of the state"),
            Fact("seconds", "float", "from its begin to its end on this worker"),
            Fact("role", "str", "takes or gives"),
        ),
    ),
    Declared("save_begun", "The coordinator begins a save.", (_STEPS,)),
    Declared(
        "staged",
        "The state is copied, and will be committed even if this worker dies.",
        (_STEPS, Fact("seconds", "float", "that training stood still for it")),
    ),
    Declared(
        "saved",
        "The coordinator knows a save to be committed. Where it died meanwhile there is no such record.",
        (
            _STEPS,
            Fact("bytes", "int", "that were written"),
            Fact("seconds", "float", "from the save's begin to its commit"),
            Fact("stall", "float", "seconds of them that training stood still"),
            Fact("name", "str", "the checkpoint's"),
        ),
    ),
    Declared(
        "save_failed",
        "A save has failed, and what was committed before stays. A run that stops for it ends with `error`.",
        (
            _STEPS,
            Fact("error", "str", "the failure's message"),
            Fact("in_a_row", "int", "failures since the last commit", optional=True),
            Fact("saved_step", "int|null", "steps applied in that commit; null: there is none", optional=True),
        ),
    ),
    Declared(
        "notice",
        "The worker has been told to leave; or it leaves with others who were, and then `signal` is null.",
        (Fact("signal", "str|null", "the signal's name, or who told it"),),
    ),
    Declared("left", "The worker leaves in order, at a boundary; nothing is redone.", (_STEPS, *SPENT)),
    Declared(
        "repeated_failure",
        "A worker learns that the run ends because one failure came again and again.",
        (Fact("why", "str", "the failure, and its trace"),),
    ),
    Declared(
        "ended",
        "A worker learns that the run ends for another reason: too few nodes, say.",
        (Fact("why", "str", "in words"),),
    ),
    Declared(
        "error",
        "An exception has left the script's with-block.",
        (
            Fact("step", "int", "steps applied", optional=True),
            Fact("error", "str", "its type and message"),
        ),
    ),
    Declared(
        "finished",
        "The run's last state is committed, and this worker knows it.",
        (_STEPS, Fact("digest", "str", "SHA-256 of the model's final state"), *SPENT),
    ),
    Declared(
        "folded",
        "In place of old records that were removed to bound the log: what they added up to (compaction.py).",
        (
            Fact("since", "float", "unix seconds, where these records begin"),
            Fact("records", "dict", "event -> how many records"),
            Fact("steps", "int", "step_applied records among them"),
            Fact("first", "int|null", "the first one's index"),
            Fact("last", "int|null", "the last one's"),
            Fact("redone", "int", "of them with attempt > 0"),
            Fact("count", "int", "what their batches counted"),
            Fact("saved_bytes", "int", "of the saved records"),
            Fact("stall_s", "float", "seconds that training stood still for these"),
            Fact("saved_t", "list", "unix seconds of some of the saved records"),
            Fact("curve", "list", "[step, count, values] of some of the steps"),
            Fact("unknown", "bool", "it stands for records of other kinds, too, whose facts are lost"),
            *SPENT,
        ),
    ),
)

DRILL_EVENTS = (
    Declared(
        "reads",
        "A drill's observer: a micro-batch reaches the script.",
        (
            Fact("step", "int", "its index"),
            Fact("share", "int", "whose examples"),
            Fact("attempt", "int", "of the step"),
            Fact("indices", "list", "really read, in order"),
            Fact(
                "contents", "list", "a digest of each example as it was read; null: it cannot be taken", optional=True
            ),
        ),
    ),
    Declared(
        "placed",
        "A drill's observer: the worker enters its Run.",
        (Fact("agent", "int", "the process id of its launcher: which of the nodes on one machine it belongs to"),),
    ),
    Declared(
        "dataset",
        "A drill's observer: the run's dataset, once per worker.",
        (
            Fact("dataset", "str", "its class"),
            Fact("file", "str", "where its __getitem__ is", optional=True),
            Fact("line", "int", "and in which line", optional=True),
        ),
    ),
    Declared(
        "weights",
        "A drill's observer: a step is applied.",
        (Fact("step", "int", "its index"), Fact("digest", "str", "SHA-256 of the model's state")),
    ),
    Declared(
        "fault",
        "A drill's observer: a fault of the plan is about to happen.",
        (
            Fact("index", "int", "in the plan"),
            Fact("fault", "str", "in words"),
            Fact("step", "int", "its index"),
            Fact("phase", "str", "of the step, at which it strikes"),
            Fact("fatal", "bool", "this worker itself is killed by it, at once"),
        ),
    ),
    Declared(
        "held",
        "A drill's observer: after the 1st, 2nd, 4th … step of a view, and before the last save.",
        (
            Fact("descriptors", "int", "open in the worker's process, those of shared memory left out"),
            Fact("sockets", "int", "of these"),
            Fact("threads", "int", "of the process"),
            Fact("writers", "int", "its processes that write checkpoints"),
            Fact("last", "bool", "the run is over"),
        ),
    ),
    Declared(
        "awaited",
        "A drill's observer: the run has waited for a node that joins.",
        (
            Fact("index", "int", "of the fault in the plan"),
            Fact("seconds", "float", "for how long"),
            Fact("there", "bool", "whether a worker of that node has entered its Run"),
        ),
    ),
)

DECLARED = {event.name: event for event in (*EVENTS, *DRILL_EVENTS)}


def problems(event: Mapping[str, Any]) -> list[str]:
    """Where a record differs from what is declared, in words; empty: nowhere."""
    declared = DECLARED.get(str(event.get("event")))
    if declared is None:
        return [f"event {event.get('event')!r} is not declared"]
    facts = {fact.name: fact for fact in (*COMMON, *declared.facts)}
    missing = [fact.name for fact in facts.values() if not fact.optional and fact.name not in event]
    found = [f"{declared.name}: {name} is missing" for name in missing]
    for name, value in event.items():
        if name not in facts:
            found.append(f"{declared.name}: {name} is not declared")
        elif not matches(value, facts[name].kind):
            found.append(f"{declared.name}: {name} is {value!r}, expected {facts[name].kind}")
    return found


def table() -> str:
    """The events as Markdown."""
    lines = [
        "Every record is a line of JSON. All of them have these facts, the last four once they are known:",
        "",
        *_rows(COMMON),
    ]
    for title, events in (("Events of a run", EVENTS), ("Added by a drill's observer", DRILL_EVENTS)):
        lines += ["", f"## {title}"]
        for event in events:
            lines += ["", f"### `{event.name}`", "", event.when, "", *_rows(event.facts)]
    return "\n".join(lines) + "\n"


def _rows(facts: tuple[Fact, ...]) -> list[str]:
    return ["| fact | type | meaning |", "|---|---|---|", *map(_row, facts)]


def _row(fact: Fact) -> str:
    kind = fact.kind.replace("|", " or ") + (", optional" if fact.optional else "")
    return f"| `{fact.name}` | {kind} | {fact.meaning} |"


def matches(value: Any, kind: str) -> bool:
    """Whether it is of that kind, as in Fact."""
    kinds = kind.split("|")
    if isinstance(value, bool):
        return "bool" in kinds
    return any(isinstance(value, _KINDS[one]) for one in kinds)
