"""What a test needs that is not to be had for every Python that this project is for."""

from __future__ import annotations

import sys

import pytest

needs_transformers = pytest.mark.skipif(
    sys.version_info < (3, 11), reason="needs transformers, whose releases from 5.21 on need Python 3.11"
)
