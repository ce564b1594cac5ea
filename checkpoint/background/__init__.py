"""Saves that training does not wait for: shared memory, and a process that writes."""

WRITER_MODULE = "checkpoint.background.writer_server"
"""What that process runs: its command names it."""
