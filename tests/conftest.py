"""Which script the drills of this project's own tests run."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings


@pytest.fixture(scope="session")
def elastic_script() -> Path:
    return Path(__file__).parent / "kit" / "programs" / "small.py"


settings.register_profile("any machine", deadline=None)  # a busy one is no failure
settings.load_profile("any machine")
