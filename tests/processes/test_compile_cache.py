"""What torch compiles goes with the run: another machine loads it, computes the same, and believes nobody else's."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from elastic.events.declarations import problems
from elastic.events.reading import read_events
from elastic.loop.compiled.storage import FOLDER, encode
from elastic_checkpoint.net.secret import VARIABLE, generated_secret
from tests.kit.launch import Launch

pytestmark = pytest.mark.nightly(sample=1, of="what is compiled")

WITHIN_S = 560.0  # C++ takes minutes on a busy machine
PROGRAM = "tests.kit.programs.compile_cached"
SCRIPT = Path(__file__).parents[1] / "kit" / "programs" / "compile_cached.py"
REFUSED = "not all compiled code in the run's storage can be used"

needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None, reason="this counts what a C++ compiler is asked for: it needs a machine with g++"
)


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Launch]]:
    """start(machine, *arguments): the program, on a machine of that name: torch's folders are its own."""
    monkeypatch.delenv(VARIABLE, raising=False)
    with contextlib.ExitStack() as stack:

        def launch(
            machine: str,
            *arguments: object,
            secret: str | None,
            elastic_run: int = 0,
            env: dict[str, str] | None = None,
        ) -> Launch:
            own = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / machine), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
            environ = {**own, **({} if secret is None else {VARIABLE: secret}), **(env or {})}
            if not elastic_run:
                return stack.enter_context(Launch(PROGRAM, arguments, env=environ))
            flags = ["run", "--standalone", f"--nproc-per-node={elastic_run}", SCRIPT]
            return stack.enter_context(Launch("elastic", [*flags, *arguments], env=environ))

        yield launch


def about(launch: Launch) -> dict[str, Any]:
    """What the program says at its end."""
    found: dict[str, Any] = json.loads(launch.succeed(within_s=WITHIN_S).splitlines()[-1])
    return found


def objects(url: Path) -> list[Path]:
    return sorted(path for path in (url / FOLDER).rglob("*") if path.is_file())


def loaded(url: Path) -> list[dict[str, Any]]:
    return [event for event in read_events(url) if event["event"] == "compiled_loaded"]


def test_another_machine_compiles_nothing_and_what_was_changed_is_compiled_again(
    start: Callable[..., Launch], tmp_path: Path
) -> None:
    """The same weights, whether code was compiled here or there, or what lay there was refused."""
    secret, url = generated_secret(), tmp_path / "run"
    undisturbed = about(start("one", tmp_path / "alone", "--steps=8", "--without-cache", secret=secret))
    assert undisturbed["misses"] > 0
    assert objects(tmp_path / "alone") == []

    first = about(start("two", url, secret=secret))
    assert (first["hits"], first["bypasses"]) == (0, 0)
    (kept,) = objects(url)
    before = tmp_path / "before"
    shutil.copytree(url, before)

    second = start("three", url, "--steps=8", secret=secret)
    assert about(second)["misses"] == 0
    assert about(second)["hits"] == 2, "of each size"
    assert about(second)["weights"] == undisturbed["weights"]
    assert [event["objects"] for event in loaded(url)] == [1]
    assert objects(url) == [kept], "there is nothing new"
    assert "compiled code" not in second.output

    evil, path = spoil(before, kept.relative_to(url), tmp_path)
    third = start("four", before, "--steps=8", secret=secret)
    assert about(third)["misses"] > 0
    assert about(third)["weights"] == undisturbed["weights"]
    assert third.output.count(REFUSED) == 1
    assert path.as_posix() in third.output
    assert "and 3 more" in third.output
    assert loaded(before) == []
    assert not evil.exists()
    (again,) = objects(before)
    assert again.stat().st_size > 0, "what was refused has gone, and what was compiled is there"


def spoil(url: Path, kept: Path, folder: Path) -> tuple[Path, Path]:
    """In place of what was kept: half of it, all with a bit changed, of another secret with a pickle that makes a file,
    and a huge one. Returns that file, and the first of them."""
    evil, path = folder / "evil", url / kept
    genuine = bytearray(path.read_bytes())
    path.write_bytes(genuine[: len(genuine) // 2])
    genuine[-40] ^= 1
    (path.parent / ("0" * 8 + "-" + "a" * 32)).write_bytes(genuine)
    pickled = b"cpathlib\nPath.touch\n(cpathlib\nPath\n(V" + str(evil).encode() + b"\ntRtR."
    name = kept.parent / ("0" * 8 + "-" + "b" * 32)
    (url / name).write_bytes(encode({"inductor:x": pickled}, key=b"another", path=name.as_posix()))
    with (path.parent / ("0" * 8 + "-" + "c" * 32)).open("wb") as huge:
        huge.truncate(1 << 40)
    return evil, max(path.parent.iterdir()).relative_to(url)


def test_what_two_workers_compile_serves_one(start: Callable[..., Launch], tmp_path: Path) -> None:
    """Each of the two meets one size of a share, and keeps what it has compiled."""
    secret, url, hurry = generated_secret(), tmp_path / "run", tmp_path / "hurry"
    alone_with_its_own = ["--steps=100", "--unchecked", f"--slow-until={hurry}"]  # else each passes one of the other's
    both = start("one", url, *alone_with_its_own, secret=secret, elastic_run=2)
    both.wait_for(lambda: len(objects(url)) == 2, "objects of both", within_s=WITHIN_S)
    hurry.touch()
    both.succeed(within_s=WITHIN_S)

    alone = about(start("two", url, "--steps=103", secret=secret))
    assert alone["misses"] == 0
    assert alone["hits"] == 2
    assert [event["objects"] for event in loaded(url)] == [2]
    assert [found for event in read_events(url) for found in problems(event)] == []


def test_without_a_lasting_secret_nothing_is_kept_and_that_is_said_once(
    start: Callable[..., Launch], tmp_path: Path
) -> None:
    """`elastic run` makes one for a launch, which the next one does not know."""
    run = start("one", tmp_path / "run", secret=None, elastic_run=2)
    run.succeed(within_s=WITHIN_S)
    assert run.output.count(f"export {VARIABLE}=") == 1
    assert objects(tmp_path / "run") == []


def test_where_nothing_is_compiled_nothing_is_imported_nor_asked_of_storage(
    start: Callable[..., Launch], tmp_path: Path
) -> None:
    compiled = start("one", tmp_path / "compiled", "--mode=fast", secret=generated_secret())
    assert about(compiled)["opened"] > 0, "what is counted"
    run = start("one", tmp_path / "run", "--uncompiled", "--mode=fast", secret=generated_secret())
    assert (about(run)["imported"], about(run)["opened"]) == ([], 0)
    assert VARIABLE not in run.output


def test_a_script_that_resets_its_compiler_has_it_all_the_same(start: Callable[..., Launch], tmp_path: Path) -> None:
    """torch._dynamo.reset() forgets whom torch tells of compilations."""
    secret, url = generated_secret(), tmp_path / "run"
    assert about(start("one", url, "--forgetful", secret=secret))["misses"] > 0
    assert len(objects(url)) == 1
    assert about(start("two", url, "--steps=8", "--forgetful", secret=secret))["misses"] == 0


def test_a_storage_that_hangs_costs_the_wait_for_it_and_one_line(start: Callable[..., Launch], tmp_path: Path) -> None:
    """Whoever reads one object waits for ever, here training's first compilation for as long as it may, and then a
    thread until the process ends."""
    secret, url = generated_secret(), tmp_path / "run"
    first = about(start("one", url, secret=secret))
    assert first["misses"] > 0
    (kept,) = objects(url)
    older = kept.with_name("0" * 8 + "-" + "0" * 32)
    older.write_bytes(kept.read_bytes())
    second = start("two", url, "--steps=8", "--read-within=10", f"--hangs={older.name}", secret=secret)
    assert about(second)["misses"] == 0, "what had come was used"
    assert second.output.count(REFUSED) == 1
    assert "within 10 s" in second.output

    kept.unlink()
    third = start("three", url, "--steps=12", "--read-within=1", f"--hangs={older.name}", secret=secret)
    assert about(third)["misses"] > 0
    assert third.output.count("compiled code in the run's storage") == 1
    assert len(objects(url)) == 2, "what cannot be read keeps nobody from adding what he has"


def test_a_storage_that_takes_nothing_is_one_line(start: Callable[..., Launch], tmp_path: Path) -> None:
    folder = tmp_path / "run" / FOLDER
    folder.parent.mkdir(parents=True)
    folder.touch()
    run = start("one", tmp_path / "run", "--steps=8", secret=generated_secret())
    assert about(run)["misses"] > 0
    assert run.output.count(REFUSED) == 1
    assert "keeps no more" not in run.output
    assert "a file lies where a folder is needed" in run.output


@needs_compiler
@pytest.mark.timeout(1200)
def test_kernels_of_cpp_go_with_the_run_too(start: Callable[..., Launch], tmp_path: Path) -> None:
    """torch's artifacts lack them, and it would ask the compiler for them again, for a header, and for a check of the
    processor, which takes nearly as long as all of it."""
    secret, url, log = generated_secret(), tmp_path / "run", tmp_path / "log"
    compiler = tmp_path / "g++"
    compiler.write_text(f'#!/bin/sh\ncase "$*" in *-o\\ *) echo "$*" >> {log};; esac\nexec g++ "$@"\n')
    compiler.chmod(0o755)
    env = {"CXX": str(compiler)}
    first = about(start("one", url, "--kernels", secret=secret, env=env))
    assert first["misses"] > 0
    assert len(log.read_text().splitlines()) >= 3, "a check, a header and a kernel"

    log.unlink()
    second = about(start("two", url, "--steps=8", "--kernels", secret=secret, env=env))
    assert second["misses"] == 0
    assert not log.exists(), log.read_text()
    alone = tmp_path / "alone"
    undisturbed = start("one", alone, "--steps=8", "--kernels", "--without-cache", secret=secret, env=env)
    assert second["weights"] == about(undisturbed)["weights"]
