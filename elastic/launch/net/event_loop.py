"""One turn of an agent's event loop: each registered object comes with the function that is called once it is ready."""

from __future__ import annotations

import selectors


def run_once(loop: selectors.BaseSelector, timeout_s: float | None) -> bool:
    """Waits for what is ready, `timeout_s` at most, and calls it. Whether anything was.

    What one of them closes or changes is not called in this turn any more. It lies in the same batch all the same, and
    its number may belong to another socket by then; what is ready still comes with the next turn.
    """
    ready = loop.select(timeout_s)
    for key, _ in ready:
        if loop.get_map().get(key.fd) is key:
            key.data()
    return bool(ready)
