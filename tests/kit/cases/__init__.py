"""Trainings whose every bit must be the same at any world size. Importing this registers all of them."""

from tests.kit.cases import buffers, loops, numerics
from tests.kit.cases.training import ALSO_FAST, CASES, Outcome, Training

__all__ = ["ALSO_FAST", "CASES", "Outcome", "Training", "buffers", "loops", "numerics"]
