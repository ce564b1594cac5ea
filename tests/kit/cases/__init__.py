"""Trainings whose every bit must be the same at any world size. Importing this registers all of them."""

from tests.kit.cases import attributes, buffers, loops, numerics, trained
from tests.kit.cases.training import ALSO_FAST, CASES, Outcome, Training

__all__ = ["ALSO_FAST", "CASES", "Outcome", "Training", "attributes", "buffers", "loops", "numerics", "trained"]
