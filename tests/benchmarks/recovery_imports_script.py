"""recovery_script.py as a script of a trainer's, whose imports take seconds."""

from __future__ import annotations

import datasets
import lightning

from tests.benchmarks import recovery_script

_HEAVY = datasets, lightning

if __name__ == "__main__":
    recovery_script.main()
