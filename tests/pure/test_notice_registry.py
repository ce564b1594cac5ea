"""A source of notices is a file and its name in the registry; what else it needs, and lacks, is named here."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path

import pytest

from elastic.launch.arguments import parser
from elastic.preemption import sources
from elastic.preemption.firmware import firmware
from elastic.preemption.sources.registry import KINDS, VARIABLES
from elastic.preemption.sources.source import Source

PAGE = Path(__file__).parents[2] / "docs/how-to/use-spot-notices.md"
NOWHERE = firmware(Path("/nowhere"))


class Asked(Mapping[str, str]):
    """An environment that is empty, and knows what was looked for."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> str:
        self.names.add(name)
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def test_every_class_in_the_folder_has_its_name_in_the_registry() -> None:
    modules = [import_module(f"{sources.__name__}.{module.name}") for module in pkgutil.iter_modules(sources.__path__)]
    classes = {one for module in modules for one in vars(module).values() if inspect.isclass(one)}
    assert {one for one in classes if issubclass(one, Source) and not inspect.isabstract(one)} == set(KINDS.values())


@pytest.mark.parametrize("name", KINDS)
def test_a_source_says_what_it_reads_of_the_environment_for_it_is_given_nothing_else(name: str) -> None:
    kind, environ = KINDS[name], Asked()
    made = kind.of("/x" if kind.needs else "", environ)
    kind.is_here(NOWHERE, environ)
    assert [one for one in environ.names if not one.startswith(kind.variables)] == []
    assert set(kind.variables) <= set(VARIABLES)
    assert (made.name, made.every_s >= 0) == (name, True)


@pytest.mark.parametrize("name", KINDS)
def test_what_auto_may_find_is_said_and_nothing_else(name: str) -> None:
    kind = KINDS[name]
    can_be_found = any("is_here" in vars(one) for one in kind.__mro__ if one is not Source)
    assert can_be_found == (kind.found is not None)
    said = " ".join(parser().format_help().split())
    assert not can_be_found or f"{name} (" in said or f"{name}, " in said


@pytest.mark.parametrize("name", KINDS)
def test_a_source_has_its_row_in_the_page_for_users(name: str) -> None:
    needs = KINDS[name].needs
    assert f"| `{name}:{needs}` |" in PAGE.read_text() if needs else f"| `{name}` |" in PAGE.read_text()
