"""What torch keeps to itself of its compiler, as far as compiled code that goes with a run rests on it."""

from __future__ import annotations

import sys
from collections import Counter
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from elastic.state import compilations
from elastic.state.compiled_artifacts import Piece, pieces, recorded, skip_headers

pytestmark = pytest.mark.nightly(sample=2, of="compiled artifacts")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """torch's, of compiled code."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    return tmp_path


def compiles(value: float) -> None:
    torch.compile(lambda x: x + value, backend="eager")(torch.ones(2))


def test_who_watches_compilations_is_told_of_them_after_a_reset_too() -> None:
    """Else a run's cache would be asked no more, and its agent would take a compilation for a hang."""
    import torch._dynamo

    told: Counter[str] = Counter()
    first = compilations.watch(begins=lambda: told.update(["a begins"]), ended=lambda: told.update(["a ended"]))
    second = compilations.watch(begins=lambda: told.update(["b begins"]), ended=lambda: told.update(["b ended"]))
    assert first is not None
    assert second is not None
    torch._dynamo.reset()
    compiles(1.0)
    assert told == dict.fromkeys(("a begins", "a ended", "b begins", "b ended"), 1)
    first()
    torch._dynamo.reset()
    compiles(2.0)
    assert told == {"a begins": 1, "a ended": 1, "b begins": 2, "b ended": 2}
    second()
    compiles(3.0)
    torch._dynamo.reset()
    compiles(4.0)
    assert told == {"a begins": 1, "a ended": 1, "b begins": 2, "b ended": 2}
    assert "clear" not in vars(torch._dynamo.callback_handler), "it is torch's own again"


def test_a_header_is_compiled_where_a_kernel_is_missing_and_as_ever_afterwards(folder: Path) -> None:
    from torch._inductor.codecache import CppPythonBindingsCodeCache as Kernels

    before = vars(Kernels)["_get_uncompiled_header"]
    header = Kernels._get_uncompiled_header("cpu")
    undo = skip_headers()
    there, missing = folder / "ab" / "cthere.main.cpp", folder / "cd" / "cmissing.main.cpp"
    there.parent.mkdir()
    for file in (there, there.with_name("cthere.main.so")):
        file.touch()
    assert Kernels._get_uncompiled_header("cpu") is None
    missing.parent.mkdir()
    missing.touch()
    assert Kernels._get_uncompiled_header("cpu") == header
    undo()
    missing.unlink()
    assert Kernels._get_uncompiled_header("cpu") == header
    assert vars(Kernels)["_get_uncompiled_header"] is before


def test_a_library_that_others_may_be_writing_is_not_taken(folder: Path) -> None:
    """A check of the processor is whole once this process has loaded a kernel: it has waited for all of them."""
    check = folder / "ab" / "cabcdefghijkl.cpp"
    check.parent.mkdir()
    check.write_text('extern "C" void __avx_chk_kernel() {}')
    check.with_suffix(".so").write_bytes(b"half of it")
    assert pieces([]) == {}


@pytest.mark.parametrize("named", ["__avx_chk_kernel()", "__avx512_vnni_chk_kernel_1(__m256i src)"])
def test_every_check_of_the_processor_goes_with_the_kernels(
    folder: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    """That of VNNI was left behind, and compiled again on each machine (seen with torch 2.11)."""
    kernel, check = folder / "cd" / "ckernelkernel.main.so", folder / "ab" / "cabcdefghijkl.cpp"
    for file in (kernel, check, check.with_suffix(".so")):
        file.parent.mkdir(exist_ok=True)
        file.touch()
    check.write_text(f'extern "C" void {named} {{}}')
    loaded = ModuleType("ckernelkernel")
    loaded.__spec__ = ModuleSpec(loaded.__name__, None, origin=str(kernel))
    monkeypatch.setitem(sys.modules, loaded.__name__, loaded)
    assert {piece.key for piece in pieces([]).values()} == {"cd/ckernelkernel.main.so", "ab/cabcdefghijkl.so"}


def test_what_is_recorded_is_taken_from_nobody(folder: Path) -> None:
    """A script may save what torch made by itself, and the run's cache sees it all the same."""
    import torch._inductor.codecache
    from torch.compiler._cache import CacheArtifactManager

    with CacheArtifactManager.with_fresh_cache():
        CacheArtifactManager.record_artifact("inductor", "a", b"code")
        CacheArtifactManager.record_artifact("autotune", "b", {"best": 1})
        made: list[Any] = [Piece("inductor", "a", b"code")]
        assert recorded(chosen_by_the_clock=False) == made
        saved = torch.compiler.save_cache_artifacts()
        assert saved is not None
        assert saved[1].artifacts["inductor"] == ["a"]
        assert recorded(chosen_by_the_clock=False) == made
        assert [piece.name for piece in recorded(chosen_by_the_clock=True)] == ["inductor:a", "autotune:b"]
