"""How a `Client` and a `Server` come to know each other, as types:

the server's Endpoint, by another channel  ->  the client: Greeting  ->  the server: Welcome, or it hangs up
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from elastic_checkpoint.net.codec import Vocabulary
from elastic_checkpoint.net.framing import NotAMessage

_PORT_MAX = (1 << 16) - 1


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Where a server listens.

    addresses  of its machine, without the loopback
    token      whoever knows it may connect
    machine    its boot id and network namespace: there the loopback will do
    """

    addresses: list[str]
    port: int
    token: str
    machine: list[str | None]

    def __post_init__(self) -> None:
        if not 0 < self.port <= _PORT_MAX:
            raise NotAMessage(f"port is {self.port}")


@dataclass(frozen=True, kw_only=True)
class Greeting:
    """number  under which it connects"""

    number: int
    token: str


@dataclass(frozen=True, kw_only=True)
class Welcome:
    """It is connected."""


FROM_STRANGER: Mapping[str, type] = {"greeting": Greeting}
FROM_SERVER: Mapping[str, type] = {"welcome": Welcome}
as_message = Vocabulary(FROM_STRANGER, FROM_SERVER).as_message
