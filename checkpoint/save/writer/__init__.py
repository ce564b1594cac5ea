"""The writer process: hashes, stores and commits what was staged, beside training and even after its end."""

WRITER_MODULE = "checkpoint.save.writer.server"
"""What that process runs: its command names it."""
