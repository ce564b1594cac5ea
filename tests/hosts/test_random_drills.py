"""Random drills of hosts, as tests/processes/test_random_drills.py; the long test is `make soak HOSTS=100 SEED=7`."""

from __future__ import annotations

import os

import pytest

from tests.kit.drills_at_once import SEED, run_all
from tests.kit.sampling import seeds

HOSTS = os.environ.get("HOSTS")


@pytest.mark.nightly(sample=1, of="drills of hosts")
@pytest.mark.timeout(4 * 3600)
@pytest.mark.usefixtures("hosts")
def test_random_drills_of_hosts_keep_every_promise() -> None:
    """The first host is among the victims in most."""
    run_all([f"hosts-{SEED + at}" for at in (range(int(HOSTS)) if HOSTS else seeds(4, sample=1))])
