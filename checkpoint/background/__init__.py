"""Saves that training does not wait for: shared memory, and a process that writes."""
