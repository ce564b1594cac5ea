"""`elastic doctor` at a real S3 server: what a run does there, a key that is wrong, a clock that is."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from elastic_checkpoint.storage import open_storage
from tests.kit.doctor import doctor, wrong
from tests.kit.hosts import off_by, preloaded
from tests.kit.s3 import S3Server

URL = "s3://runs/doctor"


def at(server: S3Server, key: str | None = None, secret: str | None = None) -> dict[str, str]:
    return {
        "AWS_ACCESS_KEY_ID": key or server.key,
        "AWS_SECRET_ACCESS_KEY": secret or server.secret,
        "AWS_ENDPOINT_URL": server.endpoint_url,
    }


def test_a_bucket_that_can_be_used(rgw: S3Server) -> None:
    """And nothing is left there."""
    status, found = doctor(URL, env=at(rgw))
    assert wrong(found) == []
    assert status == 0
    for name in ("storage", "exclusive creation", "clock"):
        assert found[name]["verdict"] == "ok"
    assert open_storage(URL, rgw.options).list("") == {}


@pytest.mark.parametrize("which", ["key", "secret"])
def test_a_wrong_key_or_secret(rgw: S3Server, which: str) -> None:
    status, found = doctor(URL, env=at(rgw, **{which: "AKIAWRONGWRONGWRONG"}))
    assert status == 1
    assert wrong(found) == ["storage"]
    assert "check the key and the secret" in found["storage"]["next"]
    assert rgw.secret not in str(found)
    assert "exclusive creation" not in found


def test_a_bucket_that_is_not_there(rgw: S3Server) -> None:
    status, found = doctor("s3://no-such-bucket/doctor", env=at(rgw))
    assert (status, wrong(found)) == (1, ["storage"])
    assert "create the bucket" in found["storage"]["next"]


def test_a_clock_an_hour_off(rgw: S3Server, tmp_path: Path) -> None:
    """Of the server's answer, which refuses the request, follows by how much."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler, for a clock that is wrong")
    (offset := tmp_path / "offset").write_bytes(off_by(3600))
    status, found = doctor(URL, env=at(rgw), preload=preloaded(tmp_path, offset))
    assert status == 1
    assert "clock" in wrong(found)
    assert "ahead of the storage's" in found["clock"]["found"]
    assert "set this machine's clock" in found["clock"]["next"]
