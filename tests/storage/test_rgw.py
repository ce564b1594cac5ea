"""What only a real S3 server shows: Ceph's gateway decides conditional writes, checks signatures, and goes with us."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import s3fs
import torch

from elastic_checkpoint import Checkpointer, StorageError
from elastic_checkpoint.storage import AlreadyThere, delete_many, open_storage
from tests.kit.s3 import S3Server

Make = Callable[..., Checkpointer]
STATE = {"w": torch.arange(6.0)}

# Starts a gateway, says which processes and folder it has, and waits to be killed.
STARTS_ONE = """
import psutil, sys
from tests.kit.rgw import rgw_server
with rgw_server():
    print(*(child.pid for child in psutil.Process().children(recursive=True)), flush=True)
    sys.stdin.read()
"""


def test_a_large_object_is_created_in_one_request_because_multipart_ignores_the_condition(rgw: S3Server) -> None:
    """Ceph completes a multipart upload over what is there, whatever the condition says; s3fs cuts from 100 MB on."""
    storage = open_storage("s3://runs/large", rgw.options, retry_s=5)
    storage.put_new("commits/one", b"first")
    with pytest.raises(AlreadyThere):
        storage.put_new("commits/one", bytes(101 * 2**20))
    assert storage.get("commits/one") == b"first"
    storage.close()


@pytest.mark.parametrize("wrong", ["key", "secret"])
def test_bad_credentials_are_refused_at_once_with_advice_and_not_shown(
    rgw: S3Server, checkpointer: Make, wrong: str
) -> None:
    options = {**rgw.options, wrong: "hidden-and-wrong"}
    acts: list[Callable[[Checkpointer], object]] = [
        lambda runs: runs.save(1, STATE),
        lambda runs: runs.read(),
        lambda runs: runs._storage.get("claims/x"),
        lambda runs: runs._storage.size("claims/x"),
        lambda runs: runs._storage.put("claims/x", b""),
    ]
    for act in acts:
        with pytest.raises(StorageError, match="check the key") as caught:
            act(checkpointer("s3://runs/refused", storage_options=options, retry_s=60))
        assert caught.value.attempts == 1
        for secret in ("hidden-and-wrong", rgw.secret, rgw.key):
            assert secret not in f"{caught.value} {caught.value!r} {caught.value.__cause__}"


def test_killed_tests_leave_no_ceph_behind(rgw: S3Server) -> None:
    """A gateway that outlived each aborted run would fill the machine."""
    with subprocess.Popen(
        [sys.executable, "-c", STARTS_ONE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as tests:
        assert tests.stdout is not None
        guardian, *daemons = (psutil.Process(int(pid)) for pid in tests.stdout.readline().split())
        assert {"ceph-mon", "ceph-osd", "radosgw"} <= {daemon.name() for daemon in daemons}
        [folder] = {Path(daemon.environ()["CEPH_CONF"]).parent for daemon in daemons}
        assert folder.is_dir()
        tests.send_signal(signal.SIGKILL)
        _, alive = psutil.wait_procs([guardian, *daemons], timeout=60)
        assert alive == []
    deadline = time.monotonic() + 60
    while folder.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not folder.exists()


def test_what_one_request_of_many_removals_may_not_remove_is_named(rgw: S3Server) -> None:
    """The server says 200 and lists what it kept; s3fs's own removal of many takes that for success."""
    rgw.new_bucket("partly")
    deny = {
        "Effect": "Deny",
        "Principal": "*",
        "Action": "s3:DeleteObject",
        "Resource": "arn:aws:s3:::partly/run/data/b*",
    }
    policy = json.dumps({"Version": "2012-10-17", "Statement": [deny]})
    s3fs.S3FileSystem(**rgw.options).call_s3("put_bucket_policy", Bucket="partly", Policy=policy)
    storage = open_storage("s3://partly/run", rgw.options, retry_s=5)
    for name in ("a", "b1", "b2", "c"):
        storage.put(f"data/{name}", b"1")
    with pytest.raises(StorageError, match=r"2 objects could not be removed: data/b1 \(AccessDenied") as failed:
        delete_many(storage, ["data/a", "data/b1", "data/b2", "data/c"])
    assert (failed.value.operation, failed.value.attempts) == ("delete", 1)
    assert "give this user or key" in str(failed.value)
    assert list(storage.list("")) == ["data/b1", "data/b2"]
    storage.close()
