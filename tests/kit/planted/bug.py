"""One planted bug: a function that makes a wrong version of a product function. Imports nothing of the product.

    @planted("elastic.data.loader:_Reader.read", plan="alone", caught_by={"coverage"})
    def skip_an_example(right, act):
        '''An example is left out.'''
        def read(...):
            act()
            ...
        return read

The function gets what it replaces, and `act`, which it calls as it does the wrong thing: a test proves by that that the
bug was reached. A bug that needs several places has more of them put on with `also`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

Act = Callable[[], None]
Make = Callable[[Any, Act], Any]


@dataclass(frozen=True)
class Patch:
    """target  module:attribute, the attribute with dots where it is within a class"""

    target: str
    make: Make

    @property
    def module(self) -> str:
        return self.target.partition(":")[0]

    @property
    def path(self) -> list[str]:
        return self.target.partition(":")[2].split(".")


@dataclass
class Bug:
    """
    name       how it is switched on
    what       one line for people
    plan       the run in which it shows, by its name in plans.py
    caught_by  the judge's invariants that must name it
    """

    name: str
    what: str
    plan: str
    caught_by: frozenset[str]
    patches: list[Patch] = field(default_factory=list)

    def also(self, target: str) -> Callable[[Make], None]:
        """Patches another place as well."""

        def add(make: Make) -> None:
            self.patches.append(Patch(target, make))

        return add


def planted(target: str, *, plan: str, caught_by: Collection[str]) -> Callable[[Make], Bug]:
    """Makes a bug of a function."""

    def make_bug(make: Make) -> Bug:
        what = " ".join((make.__doc__ or "").split())
        return Bug(make.__name__, what, plan, frozenset(caught_by), [Patch(target, make)])

    return make_bug
