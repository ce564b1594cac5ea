"""Where a hub is, as somebody wrote it: in the rendezvous' store, or beside the checkpoints.

    {"host", "port", "nonce", "nodes"}   nonce: what only agents of the run know
                                         nodes: of those who have met, [name, host, port], where somebody wrote them

Anybody may write there, and whoever reads it connects to what it says, so it is checked whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

Nodes = tuple[tuple[str, tuple[str, int]], ...]
_KINDS = {"host": str, "port": int, "nonce": str}
_BYTES_MAX = 1 << 20  # of nodes that have met it is some 60 bytes each
_PORT_MAX = (1 << 16) - 1


def hub_in(text: bytes) -> dict[str, Any] | None:
    """Return the hub that a text names; None: it is nothing of the kind."""
    if len(text) > _BYTES_MAX:  # some ten bytes of JSON may be a hundred of memory
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or any(type(found.get(name)) is not kind for name, kind in _KINDS.items()):
        return None
    return found if 0 < found["port"] <= _PORT_MAX else None


def written_hub(host: str, port: int, nonce: str, nodes: Iterable[tuple[str, tuple[str, int]]] = ()) -> dict[str, Any]:
    """Return the document that says where a hub is, with the nodes that have met."""
    met = [[name, *where] for name, where in nodes]
    return {"host": host, "port": port, "nonce": nonce, **({"nodes": met} if met else {})}


def nodes_in(hub: dict[str, Any]) -> Nodes:
    """Return the nodes that have met, from a hub's document; none where it is nothing of the kind."""
    nodes = hub.get("nodes")
    if not isinstance(nodes, list) or not all(map(_is_node, nodes)):
        return ()
    return tuple((name, (host, port)) for name, host, port in nodes)


def _is_node(found: Any) -> bool:
    if not isinstance(found, list) or [type(part) for part in found] != [str, str, int]:
        return False
    port: int = found[2]
    return 0 < port <= _PORT_MAX
