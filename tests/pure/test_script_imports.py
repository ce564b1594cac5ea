"""How far a script is run ahead of its workers is worked out from its source."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastic.launch.fork_server.top_imports import top_imports
from elastic.launch.processes.script import Script, spec_of


def lines(source: str) -> list[int]:
    return [statement.line for statement in top_imports(source, "train.py")]


def test_imports_and_what_says_where_to_look_are_run_in_order() -> None:
    source = '''\
"""A script."""
from __future__ import annotations
import os, sys as system
from pathlib import Path

ROOT = Path(__file__).resolve().parent
os.environ["TOKENIZERS"] = "false"
os.environ.setdefault("THREADS", str(2))
os.environ |= {"OFFLINE": "1"}
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT / "src"))
warnings.filterwarnings("ignore")
LR: float = 1e-3
from .near import thing
try:
    import maybe
except ImportError:
    maybe = None
if sys.version_info >= (3, 11):
    import tomllib
logger = logging.getLogger(__name__)
def helper(x=1): ...
import late
'''
    assert lines(source) == [1, 2, 3, 4, 6, 7, 8, 9, 10, 12, 13, 14, 15, 19, 21]


@pytest.mark.parametrize(
    "statement",
    [
        "config.lr = 0.04",
        "torch.manual_seed(5)",
        "ARGS = parse()",
        "os.environ['PYTHONPATH'] = os.environ['PYTHONPATH'] + ':src'",
        "os.environ['SIZE'] = str(compute())",
        "os.environ |= compute()",
        "os.environ.pop('HOME')",
        "sys.path.remove('src')",
        "config |= {'lr': 0.04}",
        "sys.path.insert(0, download())",
        "for name in names: import_module(name)",
        "@register\ndef helper(): ...",
        "class Mine(Base): registered = register()",
        "with torch.device('meta'): model = make()",
        "try:\n    install()\nexcept OSError: pass",
        "if compute(): import heavy",
        "Path('runs').mkdir()",
        "del os.environ['HOME']",
    ],
)
def test_what_a_module_may_look_for_must_have_happened_before_it_is_imported(statement: str) -> None:
    """A module that is imported ahead of `config.lr = 0.04` trains with another learning rate, and says nothing."""
    assert lines(f"import os, sys, config\n{statement}\nimport model\n") == [1]


def test_a_module_is_found_without_running_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "imports_probe"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text("raise SystemExit('it was run')\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    spec = spec_of("imports_probe")

    assert spec is not None
    assert (spec.name, spec.parent, spec.origin) == (
        "imports_probe.__main__",
        "imports_probe",
        str(package / "__main__.py"),
    )


def test_python_looks_beside_the_script_that_a_link_points_to(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "train.py").write_text("")
    (tmp_path / "link.py").symlink_to(tmp_path / "real" / "train.py")
    assert Script(str(tmp_path / "link.py"), module=False).search_path() == str((tmp_path / "real").resolve())
