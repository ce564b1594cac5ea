"""What is an optional extra is imported by nobody who has not asked for it."""

from __future__ import annotations

import subprocess
import sys

OPTIONAL = ("accelerate", "transformers", "lightning", "datasets", "pyarrow", "albumentations")


def test_elastic_imports_no_framework() -> None:
    """They cost seconds at each start of a worker, begin threads that a fork cannot carry, and need not be there."""
    asks = f"import sys, elastic, elastic.run; print(*(name for name in {OPTIONAL} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.split() == []
