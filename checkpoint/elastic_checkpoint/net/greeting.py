"""How a `Client` and a `Server` come to know each other, as types.

the server's Endpoint, by another channel  ->  the client: Greeting  ->  the server: Welcome, or it hangs up
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from elastic_checkpoint.net.codec import Facts, Int, Tagged, by_word


class Endpoint(Facts):
    """Where a server listens.

    addresses  of its machine, without the loopback
    token      whoever knows it may connect
    machine    its boot id and network namespace: there the loopback will do
    """

    addresses: list[str]
    port: Annotated[int, Meta(gt=0, lt=1 << 16)]
    token: str
    machine: list[str | None]


class Greeting(Tagged):
    """A client says who it is; number: under which it connects."""

    number: Int
    token: str


class Welcome(Tagged):
    """The client is connected."""


FROM_STRANGER = by_word(Greeting)
FROM_SERVER = by_word(Welcome)
