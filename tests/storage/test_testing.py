"""The filesystem that fails on purpose: every planned fault occurs and no other, and one seed means the same faults."""

from __future__ import annotations

import inspect
import json
import textwrap
import threading
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import elastic_checkpoint.testing
from elastic_checkpoint.testing import (
    ERRORS,
    Cut,
    Delay,
    Error,
    Faults,
    FaultyFileSystem,
    Hang,
    Plan,
    PowerCut,
    ShortRead,
    StaleList,
    TornWrite,
)
from elastic_checkpoint.testing.fault_plan import OPERATIONS, Rule


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"memory://{tmp_path}" if request.param == "memory" else f"file://{tmp_path}"


def opened(url: str, faults: Faults) -> tuple[Any, str]:
    """The filesystem and its folder, which has two objects."""
    options = {"auto_mkdir": True} if url.startswith("file") else {}
    plain, root = fsspec.url_to_fs(url, **options)
    plain.pipe({f"{root}/a/one": b"0123456789", f"{root}/a/two": b"22"})
    faulty, path = fsspec.url_to_fs(*faults.around(url, options)[:1], **faults.around(url, options)[1])
    assert isinstance(faulty, FaultyFileSystem)
    assert path == root
    return faulty, root


ACTS: dict[str, Any] = {
    "write": lambda fs, root: fs.pipe_file(f"{root}/a/one", b"new"),
    "read": lambda fs, root: fs.cat_file(f"{root}/a/one"),
    "list": lambda fs, root: fs.find(root),
    "look": lambda fs, root: fs.info(f"{root}/a/one"),
    "delete": lambda fs, root: fs.rm_file(f"{root}/a/one"),
}


def test_the_example_in_the_docstring_is_a_test_that_runs() -> None:
    """It is what users copy."""
    text = inspect.getdoc(elastic_checkpoint.testing) or ""
    example = textwrap.dedent("\n".join(line for line in text.splitlines() if line.startswith("    ")))
    built: list[tuple[Any, str]] = []

    def build(filesystem: Any, path: str) -> None:
        built.append((filesystem, path))
        for number in range(30):
            for _ in range(6):
                try:
                    filesystem.pipe_file(f"{path}/{number}.index", b"entry %d" % number)
                    break
                except OSError:
                    continue

    def read(filesystem: Any, path: str) -> list[bytes]:
        return [filesystem.cat_file(f"{path}/{number}.index") for number in range(30)]

    expected = [b"entry %d" % number for number in range(30)]
    namespace: dict[str, Any] = {"my_index": SimpleNamespace(build=build, read=read, expected=lambda: expected)}
    exec(compile(example, "docstring", "exec"), namespace)
    namespace["test_my_index_survives_a_bad_day"]()

    kinds = Counter(type(one.rule).__name__ for one in built[0][0].faults.happened)
    assert kinds["Error"] == 3
    assert kinds["TornWrite"] > 0


def test_files_that_are_opened_are_read_and_written_through_the_faults(url: str) -> None:
    faults = Faults(Plan(Error("io", on="write", after=1, times=1), ShortRead(after=2, times=1)))
    faulty, root = opened(url, faults)
    with faulty.open(f"{root}/a/text", "w") as file:
        file.write("first line\nsecond line\n")
    with faulty.open(f"{root}/a/text") as file:
        assert file.readlines() == [b"first line\n", b"second line\n"]
    failing = faulty.open(f"{root}/a/text", "wb")
    failing.write(b"lost")
    with pytest.raises(OSError, match="on purpose"):
        failing.close()
    with faulty.open(f"{root}/a/text", "rb") as file:
        parts = [file.read(100), file.read(100), file.read(100)]
    assert b"".join(parts) == b"first line\nsecond line\n"
    with pytest.raises(FileExistsError), faulty.open(f"{root}/a/text", "xb") as file:
        file.write(b"x")
    with pytest.raises(NotImplementedError, match="'ab'"):
        faulty.open(f"{root}/a/text", "ab")


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("kind", sorted(ERRORS))
def test_an_error_strikes_the_operations_that_it_is_about(kind: str, operation: str) -> None:
    faults = Faults(Plan(Error(kind, on=operation)))
    faulty, root = opened("memory://each", faults)
    for name, act in ACTS.items():
        if name != operation:
            act(*opened("memory://each", faults))
            continue
        with pytest.raises(OSError, match="on purpose") as caught:
            act(*opened("memory://each", faults))
        assert type(caught.value) is type(ERRORS[kind]())
    assert [(one.operation, one.rule) for one in faults.happened] == [(operation, faults.plan.rules[0])]
    assert faults.operations == Counter(OPERATIONS)
    assert faulty.target.cat_file(f"{root}/a/two") == b"22"


def test_a_torn_write_is_visible_in_part(url: str) -> None:
    faults = Faults(Plan(TornWrite(times=1, keep=0.4), TornWrite(silent=True, keep=1.0)))
    faulty, root = opened(url, faults)
    with pytest.raises(OSError, match="halfway"):
        faulty.pipe_file(f"{root}/a/one", b"abcdefghij")
    assert faulty.cat_file(f"{root}/a/one") == b"abcd"
    faulty.pipe_file(f"{root}/a/one", memoryview(b"klmnopqrst"))
    assert faulty.cat_file(f"{root}/a/one") == b"klmnopqrs"
    faulty.pipe_file(f"{root}/a/one", b"")
    assert faulty.cat_file(f"{root}/a/one") == b""


def test_a_stale_listing_shows_what_the_last_one_showed(url: str) -> None:
    faulty, root = opened(url, Faults(Plan(StaleList(times=2), StaleList(after=3, times=1))))
    assert faulty.find(root) == []
    with pytest.raises(FileNotFoundError):
        faulty.ls(f"{root}/a")
    before = faulty.find(root, detail=True)
    faulty.rm_file(f"{root}/a/one")
    faulty.pipe_file(f"{root}/a/three", b"3")
    assert faulty.find(root, detail=True) == before
    assert [name.rpartition("/")[2] for name in faulty.find(root)] == ["three", "two"]


def test_a_hang_ends_at_its_deadline_or_when_all_is_healed() -> None:
    faults = Faults(Plan(Hang(0.01, times=1), Hang(10_000)))
    faulty, root = opened("memory://hang", faults)
    with pytest.raises(TimeoutError):
        faulty.find(root)
    caught: list[BaseException] = []

    def read() -> None:
        try:
            faulty.cat_file(f"{root}/a/two")
        except TimeoutError as error:
            caught.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    while len(faults.happened) < 2:
        thread.join(timeout=0.01)
    assert thread.is_alive()
    faults.heal()
    thread.join(timeout=60)
    assert len(caught) == 1
    assert faulty.cat_file(f"{root}/a/two") == b"22"


@pytest.mark.parametrize("late", [False, True])
def test_after_a_cut_nothing_works_until_the_power_is_back(late: bool) -> None:
    faults = Faults(Plan(Cut(after=1, late=late)))
    faulty, root = opened("memory://cut", faults)
    faulty.pipe_file(f"{root}/a/one", b"done")
    for value in (b"at the cut", b"after it"):
        with pytest.raises(PowerCut):
            faulty.pipe_file(f"{root}/a/one", value)
    faults.heal()
    assert faulty.cat_file(f"{root}/a/one") == (b"at the cut" if late else b"done")
    assert [one.number for one in faults.happened] == [1]


rules = st.builds(
    Error,
    st.sampled_from(sorted(ERRORS)),
    on=st.sampled_from([*OPERATIONS, "any", ("read", "list")]),
    path=st.sampled_from(["*", "*/one", "nowhere"]),
    after=st.integers(0, 5),
    times=st.none() | st.integers(1, 3),
    chance=st.sampled_from([0.0, 0.3, 0.7, 1.0]),
)
plans = st.builds(lambda made, seed: Plan(*made, seed=seed), st.lists(rules, max_size=4), st.integers(0, 99))
sequences = st.lists(st.tuples(st.sampled_from(OPERATIONS), st.sampled_from(["a/one", "a/two"])), max_size=40)


def struck(plan: Plan, sequence: list[tuple[str, str]]) -> list[Rule | None]:
    """Which rule strikes each operation; found out from the errors that come."""
    faults, found = Faults(plan), list[Rule | None]()
    for operation, path in sequence:
        try:
            with faults.during(operation, path):
                found.append(None)
        except OSError:
            found.append(faults.happened[-1].rule)
    assert len(faults.happened) == len(sequence) - found.count(None)
    return found


@given(plan=plans, sequence=sequences)
def test_the_same_plan_gives_the_same_faults_within_its_bounds(plan: Plan, sequence: list[tuple[str, str]]) -> None:
    found = struck(plan, sequence)
    assert found == struck(plan, sequence)
    assert found == struck(Plan.from_document(json.loads(json.dumps(plan.document()))), sequence)
    for rule in plan.rules:
        about = [one for (operation, path), one in zip(sequence, found, strict=True) if rule.about(operation, path)]
        alike = plan.rules.count(rule)
        assert about.count(rule) == found.count(rule)
        assert rule not in about[: rule.after]
        assert rule.times is None or found.count(rule) <= rule.times * alike
        assert rule.chance > 0 or rule not in found
    for (operation, path), one in zip(sequence, found, strict=True):
        certain = [r for r in plan.rules if r.about(operation, path) and (r.after, r.times, r.chance) == (0, None, 1.0)]
        assert one is not None or not certain


def test_the_report_names_the_plan_and_every_fault() -> None:
    faults = Faults(Plan(Error("full", on="write", after=1, times=1), seed=41))
    faulty, root = opened("memory://report", faults)
    for _ in range(3):
        try:
            faulty.pipe_file(f"{root}/x", b"1")
        except OSError:
            continue
    plan, *lines = faults.report().splitlines()
    assert "seed=41" in plan
    assert len(lines) == 1
    assert lines[0].startswith(f"operation 1 write {root}/x: Error(")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Error("ful"), "try full"),
        (lambda: Error("io", on="wrote"), "no operation is called 'wrote'"),
        (lambda: Error("io", chance=1.5), "chance"),
        (lambda: Delay(1, after=-1), "after"),
        (lambda: StaleList(times=0), "times"),
        (lambda: Plan.from_document({"seed": 1, "rules": [{"fault": "Explosion"}]}), "TornWrite"),
        (lambda: Plan.from_document({"seed": 1, "rules": [{"fault": "StaleList", "kind": "io"}]}), "no fault of ours"),
    ],
)
def test_a_plan_that_means_nothing_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
