"""How workers, agents and the hub talk: one JSON object per line, with a word in it.

Who says what: docs/internals/protocol.md. Framing is elastic_checkpoint/net/codec.py's, as for all connections of this
repository.
"""

from __future__ import annotations

from elastic.errors import ElasticError
from elastic_checkpoint.net.codec import LINE_MAX as LINE_MAX
from elastic_checkpoint.net.codec import Lines as Lines
from elastic_checkpoint.net.codec import Message as Message
from elastic_checkpoint.net.codec import NotAMessage as NotAMessage
from elastic_checkpoint.net.codec import encode as encode

LONG_LINE_MAX = 1 << 26  # of a process of the run: a view of 16,384 workers takes some 1.4 MB


class WireError(ElasticError, NotAMessage):
    """The other end said something that is no message; the connection is of no use any more."""
