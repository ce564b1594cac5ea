"""What a script imports is worked out without running it."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastic.launch.script import Import, Script, imports_of, source_of


def test_imports_at_the_top_are_found_in_order() -> None:
    source = """
from __future__ import annotations
import os, sys as system
from torch.nn import functional as F, Linear
from .near import thing
import numpy.random
"""
    assert imports_of(source) == [
        Import("os"),
        Import("sys"),
        Import("torch.nn", ("functional", "Linear")),
        Import("near", ("thing",), 1),
        Import("numpy.random"),
    ]


def test_what_may_not_run_is_left_to_the_worker() -> None:
    """A warm process that imports too much would share what no script has asked for."""
    source = """
if TYPE_CHECKING:
    import never
if os.environ.get("DEBUG"):
    import debugger
def main():
    import late
try:
    import maybe
except ImportError:
    import instead
if __name__ == "__main__":
    import then
"""
    assert [one.module for one in imports_of(source)] == ["maybe", "then"]


def test_a_script_that_does_not_compile_imports_nothing() -> None:
    assert imports_of("import os\nthis is no python\n") == []


def test_a_module_is_found_without_running_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "imports_probe"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text("from . import part\nraise SystemExit('it was run')\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    source, home = source_of(Script("imports_probe", module=True))

    assert home == "imports_probe"
    assert imports_of(source) == [Import("", ("part",), 1)]


@pytest.mark.parametrize("command", [["train.py", "-m", "x"], ["-m", "pkg.train", "--lr", "1"], ["train.py"]])
def test_a_script_survives_the_way_over_a_command_line(command: list[str]) -> None:
    assert Script.of_command(command).command() == command


def test_python_looks_beside_the_script_that_a_link_points_to(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "train.py").write_text("")
    (tmp_path / "link.py").symlink_to(tmp_path / "real" / "train.py")
    assert Script(str(tmp_path / "link.py"), module=False).search_path() == str((tmp_path / "real").resolve())
