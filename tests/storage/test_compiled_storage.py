"""Compiled code in a run's storage: kept once, within its limit, and whatever else lies there costs nothing but it."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic.loop.compiled.arriving import arriving
from elastic.loop.compiled.storage import (
    BYTES_MAX,
    FOLDER,
    LABEL,
    OBJECTS_MAX,
    CompiledStorage,
    NoRoom,
    decode,
    encode,
)
from elastic.state.compiled_artifacts import Piece
from elastic_checkpoint.errors import CheckpointError
from elastic_checkpoint.net.secret import VARIABLE, generated_secret, lasting_key, secret_of_one_launch
from elastic_checkpoint.testing import Faults, Hang, Plan
from tests.kit.s3 import S3Server
from tests.kit.traffic import watched

KEY = b"the key of a run, of 32 bytes ..."
NOBODY = 65534


def pieces(*keys: str, nbytes: int = 100) -> dict[str, Piece]:
    made = [Piece("inductor", key, key.encode() * nbytes) for key in keys]
    return {piece.name: piece for piece in made}


def opened(
    url: Path, *, key: bytes = KEY, cpu: str = "one", bytes_max: int = BYTES_MAX, objects_max: int = OBJECTS_MAX
) -> CompiledStorage:
    machine = {"cpu": cpu}
    return CompiledStorage(str(url), None, key=key, machine=machine, bytes_max=bytes_max, objects_max=objects_max)


def names(storage: CompiledStorage) -> list[str]:
    """The keys of what it reads, in that order."""
    return [piece.key for some in storage.read() for piece in some]


def objects(url: Path) -> list[Path]:
    return sorted(path for path in (url / FOLDER).rglob("*") if path.is_file())


def test_what_is_kept_is_read_on_such_a_machine_by_who_knows_the_secret(tmp_path: Path) -> None:
    library = Piece.named("library:ab/cabcdefgh.so", b"code")
    made = {**pieces("a"), library.name: library}
    added = opened(tmp_path).keep(made)
    assert added is not None
    assert added.nbytes == objects(tmp_path)[0].stat().st_size
    assert list(opened(tmp_path).read()) == [list(made.values())]
    assert list(opened(tmp_path, cpu="another").read()) == []
    assert list(opened(tmp_path, key=b"another").read()) == []


def test_who_has_one_piece_more_adds_an_object_and_who_has_less_none(tmp_path: Path) -> None:
    opened(tmp_path).keep(pieces("a", "b"))
    assert opened(tmp_path).keep(pieces("b", "a")) is None
    opened(tmp_path).keep(pieces("a", "b", "c"))
    reader = opened(tmp_path)
    assert names(reader) == ["a", "b", "c", "a", "b"]
    assert reader.keep(pieces("c", "a")) is None
    assert len(objects(tmp_path)) == 2


def test_a_folder_that_is_full_goes_on_being_of_use(tmp_path: Path) -> None:
    """The oldest go, but for what the writer uses; all that lies there counts."""
    for number in range(20):
        assert opened(tmp_path, bytes_max=2000).keep(pieces("a", f"{number:02}")) is not None
        assert sum(path.stat().st_size for path in objects(tmp_path)) <= 2000
    found = names(opened(tmp_path))
    assert {"a", "19", "18"} <= {*found}
    assert "00" not in found
    with pytest.raises(NoRoom):
        opened(tmp_path, bytes_max=2000).keep(pieces("x", nbytes=2000))
    assert names(opened(tmp_path)) == found


def test_there_are_never_more_objects_than_a_start_reads(tmp_path: Path) -> None:
    for number in range(10):
        opened(tmp_path, objects_max=4).keep(pieces("a", f"{number}"))
        assert len(objects(tmp_path)) <= 4
    assert {"a", "9", "8", "7"} <= {*names(opened(tmp_path))}


def test_many_that_keep_at_once_lose_nothing_that_all_use(tmp_path: Path) -> None:
    opened(tmp_path).keep(pieces("a", "b"))
    begin, errors = threading.Barrier(8), []

    def keep(number: int) -> None:
        storage = opened(tmp_path, objects_max=4)
        begin.wait(60)
        try:
            for step in range(5):
                storage.keep(pieces("a", "b", f"{number}-{step}"))
                list(opened(tmp_path).read())
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=keep, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    opened(tmp_path, objects_max=4).keep(pieces("a", "b", "last"))
    assert len(objects(tmp_path)) <= 4
    reader = opened(tmp_path)
    assert {"a", "b", "last"} <= {*names(reader)}
    assert reader.refused == []


def spoil(url: Path) -> set[str]:
    """Beside two objects of this run, each thing that none of it wrote. Returns their names."""
    first, second = objects(url)
    folder, whole = first.parent, first.read_bytes()
    prefix = (folder / "00000009-").relative_to(url).as_posix()
    strange = encode({"inductor:x": b"evil"}, key=b"another", path=f"{prefix}{'0' * 32}")
    contents = [strange, whole, whole[:-1], whole[: len(whole) // 2], b"", bytes(900)]
    flipped = bytearray(second.read_bytes())
    flipped[-1] ^= 1
    second.write_bytes(flipped)
    for number, content in enumerate(contents):
        (folder / f"00000009-{number:032}").write_bytes(content)
    with (folder / f"00000009-{'f' * 32}").open("wb") as huge:
        huge.truncate(1 << 40)
    return {path.name for path in folder.iterdir()} - {first.name}


def test_what_none_of_this_run_wrote_is_refused_and_goes_with_the_next_that_is_kept(tmp_path: Path) -> None:
    """Truncated, changed, of another secret, at another's place, empty, huge: the rest is as good as before."""
    storage = opened(tmp_path)
    storage.keep(pieces("a"))
    storage.keep(pieces("b"))
    spoilt = spoil(tmp_path)
    reader = opened(tmp_path)
    assert names(reader) == ["a"]
    assert {why.partition(": ")[0].rpartition("/")[2] for why in reader.refused} == spoilt
    assert len(reader.refused) == len(spoilt)

    assert reader.keep(pieces("b")) is not None, "what is refused keeps nobody from it"
    assert reader.keep(pieces("b")) is None
    afterwards = opened(tmp_path)
    assert names(afterwards) == ["b", "a"], "what was written where something was refused is as any other"
    assert afterwards.refused == []


def test_what_has_another_name_is_none_of_ours_and_stays(tmp_path: Path) -> None:
    """Whoever may write there may have put a link to another folder in place of this one: nothing of that goes."""
    opened(tmp_path).keep(pieces("a"))
    (kept,) = objects(tmp_path)
    others = tmp_path / "others"
    kept.parent.rename(others)
    kept.parent.symlink_to(others)
    (others / "letter").write_text("dear")
    (others / f"{kept.name}~").write_text("dear")
    (others / "below").mkdir()
    (others / "below" / kept.name).write_text("dear")
    reader = opened(tmp_path)
    assert names(reader) == ["a"]
    assert reader.refused == []
    reader.keep(pieces("a", "b"))
    assert {path.name for path in others.iterdir()} >= {"letter", f"{kept.name}~", "below", kept.name}
    assert (others / "below" / kept.name).exists()


@contextlib.contextmanager
def unprivileged() -> Iterator[Path]:
    """A folder, and whoever may read all may not meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    before = os.geteuid()
    if before == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(before)


def test_an_object_that_may_not_be_read_costs_itself(tmp_path: Path) -> None:
    """And it is counted, and stays: others may read it."""
    with unprivileged() as url:
        opened(url).keep(pieces("a"))
        opened(url).keep(pieces("b"))
        first, second = objects(url)
        first.chmod(0)
        reader = opened(url)
        with as_nobody():
            assert names(reader) == ["b"]
        (why,) = reader.refused
        assert "cannot succeed" in why
        for folder in (url, *second.parents):
            if url in (folder, *folder.parents):
                folder.chmod(0o777)
        with as_nobody():
            room = first.stat().st_size + second.stat().st_size
            keeper = opened(url, bytes_max=room)
            assert names(keeper) == ["b"]
            assert keeper.keep(pieces("c")) is not None
        assert first.exists()
        assert not second.exists()


def test_a_folder_that_may_not_be_written_is_an_error_and_nothing_goes(tmp_path: Path) -> None:
    with unprivileged() as url:
        opened(url).keep(pieces("a"))
        for path in (url, *url.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        with as_nobody(), pytest.raises(CheckpointError, match="give this user or key the right"):
            opened(url).keep(pieces("a", "b"))
        assert names(opened(url)) == ["a"]
        for path in url.rglob("*"):
            path.chmod(stat.S_IRWXU)


def test_an_object_that_never_opens_costs_the_wait_for_it(tmp_path: Path) -> None:
    """The youngest come first, and are there when time is up."""
    opened(tmp_path).keep(pieces("a"))
    opened(tmp_path).keep(pieces("b"))
    first, _ = objects(tmp_path)
    faults = Faults(Plan(Hang(60, path=f"*/{first.name}", on="read")))
    url, options = faults.around(str(tmp_path))
    came = arriving(CompiledStorage(url, options, key=KEY, machine={"cpu": "one"}).read, 0.5)
    assert [piece.key for piece in next(came)] == ["b"]
    with pytest.raises(TimeoutError):
        next(came)
    faults.heal()  # whoever waits for it goes on


def test_an_object_that_goes_while_it_is_looked_for_is_compiled_again(tmp_path: Path) -> None:
    storage = opened(tmp_path)
    storage.keep(pieces("a"))
    storage.keep(pieces("b"))
    reader = opened(tmp_path)
    read = reader.read()
    assert [piece.key for piece in next(read)] == ["b"]
    objects(tmp_path)[0].unlink()
    assert list(read) == []
    assert reader.refused == []


def test_each_save_is_one_object_and_each_object_is_one_request(s3: S3Server) -> None:
    """However many pieces there are; and a rank that finds its own there asks for no object."""
    url = "s3://runs/compiled"

    def of_rank() -> CompiledStorage:
        return CompiledStorage(url, s3.options, key=KEY, machine={"cpu": "one"})

    made = pieces(*map(str, range(300)), nbytes=1000)
    of_rank().keep(made)
    with watched(url) as traffic:
        assert of_rank().keep(made) is None
    assert traffic.requests == {"LIST elastic": 1}
    with watched(url) as traffic:
        of_rank().keep({**made, **pieces("more")})
    assert traffic.requests == {"LIST elastic": 1, "PUT elastic": 1}
    with watched(url) as traffic:
        assert sum(map(len, of_rank().read())) == 601
    assert traffic.requests == {"LIST elastic": 1, "GET elastic": 2}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("library:../../etc/x.so", "no place for a library"),
        ("library:/etc/cabcdefgh.so", "no place for a library"),
        ("library:ab/cabcdefgh.py", "no place for a library"),
        ("library:ab/../cabcdefgh.so", "no place for a library"),
        ("pgo:x", "nothing that is compiled"),
        ("x", "nothing that is compiled"),
    ],
)
def test_a_piece_is_of_a_kind_that_is_kept_and_a_library_has_its_place(name: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        decode(encode({name: b"code"}, key=KEY, path="here"), key=KEY, path="here")


def test_secrets_of_a_launch_make_no_lasting_key() -> None:
    assert lasting_key(LABEL, {}) is None
    assert lasting_key(LABEL, {VARIABLE: secret_of_one_launch()}) is None
    secret = generated_secret()
    assert lasting_key(LABEL, {VARIABLE: secret}) == lasting_key(LABEL, {VARIABLE: f"{secret}\n"})
    assert lasting_key(LABEL, {VARIABLE: secret}) != lasting_key(b"another label", {VARIABLE: secret})
