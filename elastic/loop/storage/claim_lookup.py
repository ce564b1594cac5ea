"""A node that could not read the run's claim in the storage when it came reads it later, beside the training.

Until then the storage is no witness of a view with that node, of which a majority alone goes on (succession.py).

Promises  nobody waits for it; it ends with the view, however long the storage fails.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from tenacity import (
    Retrying,
    retry_if_exception_type,
    sleep_using_event,
    stop_when_event_set,
    wait_exponential,
)

from elastic_checkpoint.errors import CheckpointError

_FIRST_S, _LONGEST_S = 0.5, 30.0  # between two tries


class ClaimLookup:
    """Looks for a claim in a thread, until the storage answers or `end` is called."""

    def __init__(self) -> None:
        self._ended = threading.Event()

    def begin(self, sees: Callable[[], bool], tell: Callable[[], None]) -> None:
        """Look for the claim from now on, and for none that was asked for before.

        sees  whether the claim is there. Raises CheckpointError
        tell  the hub, that it is
        """
        self.end()
        self._ended = threading.Event()
        arguments = sees, tell, self._ended
        threading.Thread(target=_tries, args=arguments, name="elastic-claim-lookup", daemon=True).start()

    def end(self) -> None:
        """Stop looking: a try that has begun is left to itself, and nobody is told of it."""
        self._ended.set()


def _tries(sees: Callable[[], bool], tell: Callable[[], None], ended: threading.Event) -> None:
    """Look for the claim until the storage answers; tell the hub if it is there."""
    retrying = Retrying(
        retry=retry_if_exception_type(CheckpointError),
        wait=wait_exponential(multiplier=_FIRST_S, max=_LONGEST_S),
        stop=stop_when_event_set(ended),
        sleep=sleep_using_event(ended),
        retry_error_callback=lambda _: False,
    )
    if retrying(sees) and not ended.is_set():
        tell()
