"""What a run's last hub writes at its URL, on S3: of whole runs it is in tests/processes/test_hub_announcement.py."""

from __future__ import annotations

import pytest

from elastic.membership import hub_file
from tests.kit.s3 import S3Server

HUB = {"host": "10.0.0.1", "port": 4000, "nonce": "of this hub"}


def test_on_s3_a_hub_that_has_ended_is_found_no_more_and_the_next_one_is(
    any_s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent has no storage_options: credentials come from the environment, as where nodes meet by a URL."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", any_s3.endpoint_url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", any_s3.key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", any_s3.secret)
    url = "s3://runs/ended"
    hub_file.write(url, None, HUB)
    hub_file.write_end(url, "another's")
    assert hub_file.read(url) == HUB
    hub_file.write_end(url, str(HUB["nonce"]))
    assert hub_file.read(url) is None
    moved = {**HUB, "nonce": "of the next"}
    hub_file.write(url, None, moved)
    assert hub_file.read(url) == moved
