"""The events that a drill's observer adds to a run's own, declared as in schema.py."""

from __future__ import annotations

from typing import Annotated

from elastic.events.event import ABSENT, TypedEvent


class Reads(TypedEvent):
    """A drill's observer: a micro-batch reaches the script."""

    step: Annotated[int, "its index"]
    share: Annotated[int, "whose examples"]
    attempt: Annotated[int, "of the step"]
    indices: Annotated[list[int], "really read, in order"]
    contents: Annotated[list[str | None], "a digest of each example as it was read; null: it cannot be taken"] = ABSENT


class Placed(TypedEvent):
    """A drill's observer: the worker enters its Run."""

    agent: Annotated[int, "the process id of its launcher: which of the drill's nodes it belongs to"]


class Dataset(TypedEvent):
    """A drill's observer: the run's dataset, once per worker."""

    dataset: Annotated[str, "its class"]
    file: Annotated[str, "where its __getitem__ is"] = ABSENT
    line: Annotated[int, "and in which line"] = ABSENT


class Weights(TypedEvent):
    """A drill's observer: a step is applied."""

    step: Annotated[int, "its index"]
    digest: Annotated[str, "SHA-256 of the model's state"]


class Changed(TypedEvent):
    """A drill's observer: the coordinator saves, and the script has changed the model since that step was applied."""

    step: Annotated[int, "its index"]
    digest: Annotated[str, "SHA-256 of the model's state, as it is saved"]


class Fault(TypedEvent):
    """A drill's observer: a fault of the plan is about to happen."""

    index: Annotated[int, "in the plan"]
    fault: Annotated[str, "in words"]
    step: Annotated[int, "its index"]
    phase: Annotated[str, "of the step, at which it strikes"]
    fatal: Annotated[bool, "this worker itself is killed by it, at once"]


class Held(TypedEvent):
    """A drill's observer: after the 1st, 2nd, 4th … step of a view, and before the last save."""

    descriptors: Annotated[int, "open in the worker's process, those of shared memory left out"]
    sockets: Annotated[int, "of these"]
    threads: Annotated[int, "of the process"]
    writers: Annotated[int, "its processes that write checkpoints"]
    last: Annotated[bool, "the run is over"]


class Awaited(TypedEvent):
    """A drill's observer: the run has waited for a node that joins."""

    index: Annotated[int, "of the fault in the plan"]
    seconds: Annotated[float, "for how long"]
    there: Annotated[bool, "whether a worker of that node has entered its Run"]
