"""The filesystem that fails on purpose: every planned fault occurs and no other, and one seed means the same faults."""

from __future__ import annotations

import contextlib
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


def contents(filesystem: Any, root: str) -> dict[str, bytes]:
    return {name: filesystem.cat_file(name) for name in filesystem.find(root)}


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


def test_without_rules_it_is_the_filesystem_underneath(url: str) -> None:
    faulty, root = opened(url, Faults(Plan()))
    plain = faulty.target
    assert faulty.find(root) == plain.find(root)
    assert sorted(faulty.ls(f"{root}/a", detail=False)) == sorted(plain.ls(f"{root}/a", detail=False))
    assert faulty.info(f"{root}/a/one")["size"] == 10
    assert faulty.cat([f"{root}/a/one", f"{root}/a/two"]) == contents(plain, root)
    assert faulty.cat_file(f"{root}/a/one", start=2, end=5) == b"234"
    assert faulty.glob(f"{root}/*/t*") == plain.glob(f"{root}/*/t*")
    assert faulty.exists(f"{root}/a/one")
    assert not faulty.exists(f"{root}/a/three")
    assert faulty.modified(f"{root}/a/one") == plain.modified(f"{root}/a/one")
    with pytest.raises(FileNotFoundError):
        faulty.cat_file(f"{root}/a/three")
    with pytest.raises(FileExistsError):
        faulty.pipe_file(f"{root}/a/one", b"x", mode="create")

    faulty.pipe_file(f"{root}/b/new", b"3", mode="create")
    faulty.cp_file(f"{root}/b/new", f"{root}/b/copy")
    faulty.mv(f"{root}/b/copy", f"{root}/b/moved")
    assert contents(plain, f"{root}/b") == {f"{root}/b/new": b"3", f"{root}/b/moved": b"3"}
    faulty.rm(f"{root}/b", recursive=True)
    assert not plain.exists(f"{root}/b/new")
    faulty.rm_file(f"{root}/a/one")
    assert [name.rpartition("/")[2] for name in plain.find(root)] == ["two"]
    assert faulty.faults.happened == []


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


def test_a_transaction_that_fails_writes_nothing(url: str) -> None:
    faulty, root = opened(url, Faults(Plan()))
    with contextlib.suppress(ZeroDivisionError), faulty.transaction:
        with faulty.open(f"{root}/a/three", "wb") as file:
            file.write(b"3")
        raise ZeroDivisionError
    assert not faulty.exists(f"{root}/a/three")
    with faulty.transaction:
        with faulty.open(f"{root}/a/three", "wb") as file:
            file.write(b"3")
        assert not faulty.exists(f"{root}/a/three")
    assert faulty.cat_file(f"{root}/a/three") == b"3"


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


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_late_error_strikes_when_the_work_is_done(operation: str) -> None:
    faults = Faults(Plan(Error("reset", on=operation, late=True)))
    faulty, root = opened("memory://late", faults)
    with pytest.raises(ConnectionResetError):
        ACTS[operation](faulty, root)
    found = contents(faulty.target, root).get(f"{root}/a/one")
    assert found == {"write": b"new", "delete": None}.get(operation, b"0123456789")


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


def test_a_short_read_lacks_its_end() -> None:
    faulty, root = opened("memory://short", Faults(Plan(ShortRead(keep=0.5, after=1, times=1))))
    reads = [faulty.cat_file(f"{root}/a/one", start=2) for _ in range(3)]
    assert reads == [b"23456789", b"2345", b"23456789"]


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


def test_a_delay_waits_and_then_works() -> None:
    waits: list[float] = []
    faulty, root = opened("memory://slow", Faults(Plan(Delay(2.5, on="read")), sleep=waits.append))
    assert faulty.cat_file(f"{root}/a/two") == b"22"
    faulty.find(root)
    assert waits == [2.5]


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


def test_a_rule_sees_only_its_paths_and_an_operation_suffers_one_fault() -> None:
    """The second rule waits for its turn: what the first one struck does not count as struck by both."""
    faults = Faults(Plan(Error("io", path="*/one", times=1), Error("reset", on="read", after=1, times=1)))
    faulty, root = opened("memory://paths", faults)
    said: list[str] = []
    for name in ("two", "one", "two", "one"):
        try:
            faulty.cat_file(f"{root}/a/{name}")
            said.append("fine")
        except OSError as error:
            said.append(type(error).__name__)
    assert said == ["fine", "OSError", "ConnectionResetError", "fine"]


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


def test_another_seed_gives_other_faults_and_about_as_many_as_the_chance_says() -> None:
    reads = [("read", "a")] * 1000
    strikes = [tuple(struck(Plan(Error("io", chance=0.2), seed=seed), reads)) for seed in range(5)]
    assert len(set(strikes)) == 5
    assert all(150 <= 1000 - one.count(None) <= 250 for one in strikes)


def test_threads_share_the_counts() -> None:
    faults = Faults(Plan(Error("io", after=100, times=50), Error("reset", chance=0.1), seed=3))
    faulty, root = opened("memory://threads", faults)
    alone = struck(faults.plan, [("read", f"{root}/a/two")] * 1600)
    errors: list[str] = []

    def read() -> None:
        for _ in range(200):
            try:
                assert faulty.cat_file(f"{root}/a/two") == b"22"
            except OSError as error:
                errors.append(type(error).__name__)

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert faults.operations == {"read": 1600}
    assert Counter(errors) == {"OSError": 50, "ConnectionResetError": len(faults.happened) - 50}
    assert [one.number for one in faults.happened] == [number for number, rule in enumerate(alone) if rule is not None]


def test_filesystems_made_of_a_plan_count_alone_and_those_of_one_faults_together() -> None:
    plan = Plan(Error("io", on="read", times=1))
    options: dict[str, Any] = {"target_protocol": "memory"}
    fsspec.filesystem("memory").pipe_file("/shared", b"1")
    for faults, expected in ((plan, 2), (plan.document(), 2), (Faults(plan), 1)):
        failed = 0
        for _ in range(2):
            try:
                fsspec.filesystem("faulty", **options, faults=faults).cat_file("/shared")
            except OSError:
                failed += 1
        assert failed == expected


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
