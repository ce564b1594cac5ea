"""The lowest versions that pyproject.toml promises are those that `make oldest` installs, and that are said elsewhere.

`pip install` takes a promise at its word: a lower bound that nobody has run is an error of some user's, months later.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from elastic.errors import ConfigError
from elastic.state.torch_release import OLDEST, check_torch

tomllib = pytest.importorskip("tomllib", reason="needs Python 3.11, which reads pyproject.toml")

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def promised() -> dict[str, Version]:
    """Of all that tests run with: name -> the lowest version."""
    found: dict[str, Version] = {}
    extras, named = PROJECT["optional-dependencies"], [*PROJECT["dependencies"]]
    seen, wanted = set(), ["test"]
    while wanted or named:
        if not named:
            seen.add(extra := wanted.pop())
            named = [*extras[extra]]
            continue
        one = Requirement(named.pop())
        if one.name == PROJECT["name"]:
            wanted += [extra for extra in one.extras if extra not in seen]
        else:
            (lowest,) = (part.version for part in one.specifier if part.operator == ">=")
            found[canonicalize_name(one.name)] = Version(lowest)
    return found


def pinned(file: str) -> dict[str, Version]:
    lines = (ROOT / file).read_text().splitlines()
    pins = (line.partition("==") for line in lines if "==" in line and not line.startswith("#"))
    return {canonicalize_name(name): Version(version) for name, _, version in pins}


def test_make_oldest_installs_the_lowest_version_of_all_that_is_promised() -> None:
    installed = pinned("constraints-oldest.txt")
    wrong = {name: (str(lowest), str(installed.get(name))) for name, lowest in promised().items()}
    assert {name: both for name, both in wrong.items() if installed.get(name) != promised()[name]} == {}


def test_make_oldest_takes_the_lowest_python() -> None:
    assert (
        PROJECT["requires-python"]
        == ">=" + re.findall(r"^OLDEST_PYTHON \?= python(.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE).pop()
    )


def test_pages_name_the_lowest_versions_and_those_that_are_developed_with() -> None:
    """The page of private interfaces says with what versions they were looked at."""
    lowest, ours = promised()["torch"], pinned("constraints.txt")
    checked = (ROOT / "docs/internals/private-interfaces.md").read_text().rpartition("\nChecked")[2]
    assert f"torch {lowest}" in checked
    assert f"{ours['torch'].major}.{ours['torch'].minor}" in checked
    for name in ("accelerate", "transformers", "lightning"):
        assert f"{name} {ours[name].major}.{ours[name].minor}" in checked
    readme = (ROOT / "README.md").read_text()
    assert f"Python {PROJECT['requires-python'][2:]} or later" in readme
    assert f"torch {lowest} or later" in readme


@pytest.mark.parametrize("version", ["2.11.0", "2.11.0a0+gitabc", "2.13.1+cpu", "2.15.0", "3.0.0", "unknown"])
def test_what_is_promised_is_taken(version: str) -> None:
    assert Version(".".join(map(str, OLDEST))) == promised()["torch"]
    check_torch(version)


@pytest.mark.parametrize("version", ["2.10.0+cu128", "2.9.1", "1.13.1"])
def test_an_older_torch_is_refused_by_name(version: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"^torch {re.escape(version)} is installed, and elastic needs 2\.11 or later"
    ):
        check_torch(version)
