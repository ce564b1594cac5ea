"""Carries the plan out: in the workers, in what they read, store and run on, and beside them."""
