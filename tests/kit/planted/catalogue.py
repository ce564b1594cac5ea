"""All planted bugs, by name, and the table of them for people. Imports nothing of the product."""

from __future__ import annotations

from tests.kit.planted import copying, ending, passing_over, reading, recovering, storing, summing
from tests.kit.planted.bug import Bug

CATALOGUE: dict[str, Bug] = {
    bug.name: bug
    for module in (reading, summing, recovering, passing_over, storing, copying, ending)
    for bug in vars(module).values()
    if isinstance(bug, Bug)
}


def table() -> str:
    """As Markdown."""
    noticed = {name: ", ".join(f"`{one}`" for one in sorted(bug.caught_by)) for name, bug in CATALOGUE.items()}
    rows = [f"| {bug.what} | {noticed[name]} |" for name, bug in CATALOGUE.items()]
    return "\n".join(["| planted bug | what must notice it |", "|---|---|", *rows])
