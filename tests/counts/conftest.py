"""Ceph's gateway, for counts on a real S3 server."""

from __future__ import annotations

from tests.storage.conftest import rgw

__all__ = ["rgw"]
