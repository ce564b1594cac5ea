"""Saving and loading by all ranks of a process group at once."""
