"""What torch compiles goes with the run: another machine loads it, computes the same, and believes nobody else's."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from checkpoint.net.secret import VARIABLE, generated_secret, lasting_key, secret_of_one_launch
from checkpoint.storage import TooLarge
from elastic.events.reading import read_events
from elastic.loop.compiled_storage import FOLDER, LABEL, CompiledStorage
from elastic.loop.sealed import seal, unseal
from elastic.state.compiled_artifacts import Artifacts
from tests.kit.launch import Launch

WITHIN_S = 560.0  # C++ takes minutes on a busy machine
PROGRAM = "tests.kit.programs.compile_cached"
SCRIPT = Path(__file__).parents[1] / "kit" / "programs" / "compile_cached.py"
REFUSED = "is not what this run has kept"

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

    evil, place = spoil(before, kept.relative_to(url), tmp_path)
    third = start("four", before, "--steps=8", secret=secret)
    assert about(third)["misses"] > 0
    assert about(third)["weights"] == undisturbed["weights"]
    assert third.output.count(REFUSED) == 1
    assert place.as_posix() in third.output
    assert "and 3 more" in third.output
    assert loaded(before) == []
    assert not evil.exists()


def spoil(url: Path, kept: Path, folder: Path) -> tuple[Path, Path]:
    """In place of what was kept: half of it, all with a bit changed, of another secret with a pickle that makes a file,
    and a huge one. Returns that file, and the first of them."""
    evil, place = folder / "evil", url / kept
    genuine = bytearray(place.read_bytes())
    place.write_bytes(genuine[: len(genuine) // 2])
    genuine[-40] ^= 1
    (place.parent / "a").write_bytes(genuine)
    pickled = b"cpathlib\nPath.touch\n(cpathlib\nPath\n(V" + str(evil).encode() + b"\ntRtR."
    name = (kept.parent / "b").as_posix()
    forged = Artifacts(names=frozenset(("inductor:x",)), torch=pickled)
    (place.parent / "b").write_bytes(seal(forged.encoded(), key=b"another", place=name))
    with (place.parent / "c").open("wb") as huge:
        huge.truncate(1 << 40)
    return evil, min(place.parent.iterdir()).relative_to(url)


def test_what_two_workers_compile_serves_one(start: Callable[..., Launch], tmp_path: Path) -> None:
    """Each of the two meets one size of a share, and keeps what it has compiled."""
    secret, url, hurry = generated_secret(), tmp_path / "run", tmp_path / "hurry"
    both = start("one", url, "--steps=100", f"--slow-until={hurry}", secret=secret, elastic_run=2)
    both.wait_for(lambda: len(objects(url)) == 2, "objects of both", within_s=WITHIN_S)
    hurry.touch()
    both.succeed(within_s=WITHIN_S)

    alone = about(start("two", url, "--steps=103", secret=secret))
    assert alone["misses"] == 0
    assert alone["hits"] == 2
    assert [event["objects"] for event in loaded(url)] == [2]


def test_without_a_lasting_secret_nothing_is_kept_and_that_is_said_once(
    start: Callable[..., Launch], tmp_path: Path
) -> None:
    """`elastic run` makes one for a launch, which the next one does not know."""
    run = start("one", tmp_path / "run", secret=None, elastic_run=2)
    run.succeed(within_s=WITHIN_S)
    assert run.output.count(f"export {VARIABLE}=") == 1
    assert objects(tmp_path / "run") == []


def test_where_nothing_is_compiled_no_compiler_is_imported(start: Callable[..., Launch], tmp_path: Path) -> None:
    run = start("one", tmp_path / "run", "--uncompiled", "--mode=fast", secret=generated_secret())
    assert about(run)["imported"] == []
    assert not (tmp_path / "run" / FOLDER).exists()
    assert VARIABLE not in run.output


@pytest.mark.nightly(sample=1, of="bits of other compilers and processors")
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


def test_each_thing_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    """Whatever lies there: what is handed out was sealed for this very place by who knows the secret."""
    key = lasting_key(LABEL, {VARIABLE: generated_secret()})
    assert key is not None
    made = Artifacts(names=frozenset(("inductor:x",)), torch=b"made by torch", libraries={"ab/cabcdefgh.so": b"code"})
    storage = CompiledStorage(str(tmp_path), None, key=key, machine={"cpu": "one"}, bytes_max=1000)
    assert storage.keep(made) > 0
    assert storage.keep(made) == 0, "it is there"
    assert storage.read() == ([made], [])

    small = CompiledStorage(str(tmp_path), None, key=key, machine={"cpu": "small"}, bytes_max=10)
    with pytest.raises(TooLarge):
        small.keep(made)
    other = CompiledStorage(str(tmp_path), None, key=key, machine={"cpu": "another"}, bytes_max=1000)
    assert other.read() == ([], []), "other code"
    strange = CompiledStorage(str(tmp_path), None, key=b"another", machine={"cpu": "one"}, bytes_max=1000)
    assert strange.read() == ([], []), "of another secret"

    (place,) = objects(tmp_path)
    sealed = place.read_bytes()
    for name, content in {"f": sealed, "g": sealed[:-1], "h": b"", "i": bytes(900)}.items():
        (place.parent / name).write_bytes(content)
    found, refused = storage.read()
    assert found == [made]
    assert len(refused) == 4
    name = place.relative_to(tmp_path).as_posix()
    assert Artifacts.decode(unseal(sealed, key=key, place=name)) == made

    place.write_bytes(sealed[:-1])
    again = CompiledStorage(str(tmp_path), None, key=key, machine={"cpu": "one"}, bytes_max=1000)
    assert again.read()[0] == []
    assert again.keep(made) > 0, "what is refused keeps nobody from it"
    assert made in again.read()[0]


@pytest.mark.parametrize("path", ["../../etc/x.so", "/etc/cabcdefgh.so", "ab/cabcdefgh.py", "ab/../cabcdefgh.so"])
def test_a_library_has_its_place_in_torchs_folder(path: str) -> None:
    made = Artifacts(names=frozenset(), torch=b"", libraries={path: b"code"})
    with pytest.raises(ValueError, match="no place for a library"):
        Artifacts.decode(made.encoded())


def test_secrets_of_a_launch_make_no_lasting_key() -> None:
    assert lasting_key(LABEL, {}) is None
    assert lasting_key(LABEL, {VARIABLE: secret_of_one_launch()}) is None
    secret = generated_secret()
    assert lasting_key(LABEL, {VARIABLE: secret}) == lasting_key(LABEL, {VARIABLE: f"{secret}\n"})
    assert lasting_key(LABEL, {VARIABLE: secret}) != lasting_key(b"another label", {VARIABLE: secret})
