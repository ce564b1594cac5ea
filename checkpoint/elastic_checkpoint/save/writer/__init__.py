"""The writer process: hashes, stores and commits what was staged, beside training and even after its end.

server          the process itself; process: as its parent sees it
link            how the two reach each other; messages: what they say
roles           the writer processes of a group, and what they say to each other
"""

WRITER_MODULE = "elastic_checkpoint.save.writer.server"
"""What that process runs: its command names it."""
