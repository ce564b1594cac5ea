"""Fixtures that run a training script for real, hurt it on purpose, and hand back what became of it.

Loaded by every pytest run in an environment that has elastic, so it imports nothing heavy until a fixture is used.
"""
