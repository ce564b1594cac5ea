"""An event in its two forms: typed where it is written (`TypedEvent`), a record where it is read (`Event`).

schema.py has a class for each event. A type checker holds whoever writes one to its facts, as of a dataclass whose
arguments are keywords. At run time it is those facts in the order in which they were given, and nothing is generated
for it: defining them as dataclasses took 23 ms of every worker's start (2026-11-23).
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

from typing_extensions import dataclass_transform

Event = dict[str, Any]
"""A record, as JSON gives it."""

ABSENT: Any = object()
"""A fact that is not in the record."""


@dataclass_transform(kw_only_default=True, frozen_default=True)
class TypedEvent:
    """An event to be written. Each field of a subclass is a fact: Annotated[its type, "its meaning"].

    A fact with a default may be absent.

    event_name  the class's name in lower case: step_applied for StepApplied
    """

    event_name: ClassVar[str]

    def __init_subclass__(cls) -> None:
        cls.event_name = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    def __init__(self, **facts: Any) -> None:
        self.__dict__ = facts

    def facts(self) -> Event:
        """Return the facts that are there."""
        facts = self.__dict__
        for fact in facts.values():
            if fact is ABSENT:
                return {name: fact for name, fact in facts.items() if fact is not ABSENT}
        return facts
