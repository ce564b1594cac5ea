"""What is no run any more, or no storage, is not an empty one: a job that began anew there would bury what is left."""

from __future__ import annotations

import contextlib
import http.server
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem

from elastic_checkpoint import Checkpointer, CorruptCheckpoint, StorageError
from elastic_checkpoint.cli import main
from elastic_checkpoint.format.names import claim_key
from elastic_checkpoint.runs.newer_claim import withdraw
from elastic_checkpoint.storage import open_storage
from elastic_checkpoint.storage.fsspec import FsspecStorage

Make = Callable[..., Checkpointer]


# What a login page, a console, a maintenance page or another service sends with 200: some of it is no XML.
ANSWERS = {
    "a page": (b"<html>captive portal</html>", "text/html"),
    "a page that is no XML": (b"<!DOCTYPE html><html><meta charset=utf-8><br>log in</html>", "text/html"),
    "nothing": (b"", "text/plain"),
    "JSON": (b'{"ok": true}', "application/json"),
    "a listing of something else": (b"<ListAllMyBucketsResult><Buckets/></ListAllMyBucketsResult>", "application/xml"),
}


def state(step: int = 0) -> dict[str, Any]:
    return {"w": torch.full((3,), float(step))}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Of two claims, the second of which went on from step 2."""
    for first in (1, 3):
        with Checkpointer(tmp_path / "run", keep=9) as runs:
            runs.load(state(), default=0)
            for step in (first, first + 1):
                runs.save(step, state(step))
    return tmp_path / "run"


@contextlib.contextmanager
def answering(body: bytes, kind: str, status: int = 200) -> Iterator[str]:
    """The URL of a server that answers every request alike."""

    class Answer(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


@pytest.mark.parametrize(
    "look",
    [
        lambda runs: runs.load(state(), default=0),
        lambda runs: runs.read(),
        lambda runs: runs.latest(),
        lambda runs: runs.list(),
        lambda runs: runs.verify(),
        lambda runs: runs.claim(),
        lambda runs: runs.save(5, state()),
    ],
    ids=["load", "read", "latest", "list", "verify", "claim", "save"],
)
def test_a_run_whose_commits_are_gone_does_not_begin_anew(look: Any, run: Path, checkpointer: Make) -> None:
    """A lifecycle rule, a slip of `rm` or half a copy took them: load(default=0) returned 0, without a word."""
    lost = sorted((run / "commits").iterdir())[1].name
    shutil.rmtree(run / "commits")
    before = sorted(run.rglob("*"))
    with pytest.raises(CorruptCheckpoint, match=rf"claim 2 went on from {lost[:-5]}(.|\n)*remove claims/, too") as gone:
        look(checkpointer(run, grace_s=0))
    assert (gone.value.commit, gone.value.key) == (lost[:-5], f"commits/{lost}")
    assert sorted(run.rglob("*")) == before


def test_commits_of_withdrawn_claims_do_not_hide_that_the_others_are_gone(run: Path, checkpointer: Make) -> None:
    """That they are there was taken for a stale listing, which showed them: it was waited for until the deadline."""
    with Checkpointer(run) as other:
        other.load(state())
        kept = str(other.save(5, state(5)).id)
    withdraw(open_storage(run), 3, "its taker gave up")
    for commit in (run / "commits").iterdir():
        if commit.stem != kept:
            commit.unlink()
    lines: list[str] = []
    with pytest.raises(CorruptCheckpoint, match="its commits are gone"):
        checkpointer(run, grace_s=0, retry_s=600, log=lines.append).claim()
    assert not any("stale" in line for line in lines), lines


@pytest.mark.parametrize("noted", [True, False])
def test_a_run_of_one_claim_whose_commits_are_gone_does_not_begin_anew_if_a_note_tells_of_them(
    noted: bool, tmp_path: Path, checkpointer: Make
) -> None:
    """Its claim went on from nothing, and looks like that of a run that died before its first commit; but of that one
    no note can be there. Without one, that data is there is told."""
    lines: list[str] = []
    with checkpointer(tmp_path / "run") as runs:
        saved = runs.save(1, state(1))
        if noted:
            runs.note(saved, {"read": 1})
    shutil.rmtree(tmp_path / "run" / "commits")
    runs = checkpointer(tmp_path / "run", grace_s=0, log=lines.append)
    if noted:
        for look in (lambda: runs.load(state(), default=0), runs.claim, lambda: runs.save(5, state())):
            with pytest.raises(CorruptCheckpoint, match=r"note.json was written after its commit(.|\n)*claims/, too"):
                look()
        shutil.rmtree(tmp_path / "run" / "claims")
    assert runs.load(state(), default=0) == 0
    runs.save(1, state(1))
    assert any("no commit is there, and data of 1 saves" in line for line in lines)


def test_a_run_whose_commits_are_gone_is_not_swept_by_hand(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its data is all that is left of it."""
    shutil.rmtree(run / "commits")
    before = sorted(run.rglob("*"))
    for command in (["ls", str(run)], ["sweep", str(run), "--grace-s=0"], ["verify", str(run)]):
        assert main(command) != 0
        assert "its commits are gone" in capsys.readouterr().err
    assert sorted(run.rglob("*")) == before


def test_a_commit_that_is_gone_from_among_others_is_told_of(run: Path, checkpointer: Make) -> None:
    """Half a copy of the run: it goes on from what is there, and not without a word."""
    lines: list[str] = []
    for name in sorted((run / "commits").iterdir())[1:]:
        name.unlink()
    assert checkpointer(run, log=lines.append).load(state()) == 1
    assert any("s000000002-" in line and "is gone, from which claim 2 went on" in line for line in lines)


@pytest.mark.parametrize("digits", [13, 15])
@pytest.mark.parametrize("folder", ["commits", "claims"])
def test_a_stray_of_a_number_beyond_all_claims_blocks_nobody(
    folder: str, digits: int, run: Path, checkpointer: Make
) -> None:
    """A copy of a commit under c999999999999999 made the next claim one whose name nobody reads: it was "taken by
    another writer" for ever."""
    lines: list[str] = []
    newest = sorted((run / "commits").iterdir())[-1]
    stray = f"c{'9' * digits}{newest.name[9:]}" if folder == "commits" else f"{'9' * digits}.json"
    shutil.copy(newest, run / folder / stray)
    with checkpointer(run, log=lines.append, retry_s=0) as runs:
        assert runs.load(state()) == 4
        assert runs.save(5, state(5)).claim == 3
        runs.sweep()
    assert checkpointer(run).load(state()) == 5
    assert (run / folder / stray).exists()
    told = any(f"commits/{stray} is passed over" in line for line in lines)
    assert told == (folder == "commits")


@pytest.mark.parametrize("kind", ["a folder", "a link"])
def test_what_lies_where_the_next_claim_belongs_is_named(kind: str, run: Path, checkpointer: Make) -> None:
    """It was said that other jobs win every claim, and that all but one are to be stopped."""
    path = run / claim_key(3)
    path.mkdir() if kind == "a folder" else path.symlink_to(path.name)
    with pytest.raises(StorageError, match=r"claims/00000003.json is a (folder|link).*in the way(.|\n)*next   remove"):
        checkpointer(run, retry_s=0.2, grace_s=0).save(5, state())


@pytest.mark.parametrize("client", ["s3fs", "obstore", "simplecache", "http"])
@pytest.mark.parametrize("what", ANSWERS)
def test_a_server_that_answers_200_to_anything_is_no_empty_bucket(what: str, client: str, checkpointer: Make) -> None:
    """load(default=0) said that there is no checkpoint; the job began anew, for nothing that it saved was there."""
    with answering(*ANSWERS[what]) as endpoint:
        options: dict[str, Any] = {"endpoint_url": endpoint, "key": "k", "secret": "s"}
        url = "s3://bucket/run"
        if client == "obstore":
            pytest.importorskip("obstore")
            options["client"] = "obstore"
        elif client == "simplecache":
            url, options = f"simplecache::{url}", {"s3": options}
        elif client == "http":
            url, options = f"{endpoint}/run", {}
        runs = checkpointer(url, storage_options=options, retry_s=0)
        with pytest.raises(StorageError) as refused:
            runs.load(state(), default=0)
        with pytest.raises(StorageError):
            runs.save(1, state())
    assert not re.search(r"\b500\b", str(refused.value)), "it is not the server that says so"
    said = ("is no S3 server", "has whatever it is asked for", "invalid list response")
    assert any(words in str(refused.value) for words in said)


@pytest.mark.parametrize("body", [b"<html>not found</html>", b"not found", b""])
def test_a_web_server_that_knows_no_bucket_is_no_empty_one(body: bytes, checkpointer: Make) -> None:
    with answering(body, "text/html", 404) as endpoint:
        options = {"endpoint_url": endpoint, "key": "k", "secret": "s"}
        with pytest.raises(StorageError, match=r"list commits cannot succeed(.|\n)*(create the bucket|check the URL)"):
            checkpointer("s3://bucket/run", storage_options=options, retry_s=60).load(state(), default=0)


class Forgetful(MemoryFileSystem):  # type: ignore[misc]
    """Shows nobody what was just written: S3 without reads after writes."""

    protocol = "forgetful"

    def cat_file(self, path: str, *_: Any, **__: Any) -> bytes:
        raise FileNotFoundError(path)


@pytest.mark.parametrize("exclusive", [True, False])
def test_a_storage_that_does_not_show_what_was_written_is_named(
    exclusive: bool, checkpointer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first save ended with `Missing: claims/probe-...`, and nothing else."""
    fsspec.register_implementation("forgetful", Forgetful, clobber=True)
    if not exclusive:
        monkeypatch.setattr(FsspecStorage, "exclusive", lambda self: False)
    with pytest.raises(StorageError, match=r"claims/[\w.-]+ was just created here, and reading it finds nothing"):
        checkpointer("forgetful://run", retry_s=0).save(1, state())
