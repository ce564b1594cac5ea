"""What a run's storage says of the agent that has the hub, in the background: where others join, and who answers.

    elastic/hub.json         where the hub is, for nodes that are given the run's URL (hub_file.py)
    claims/00000007.beacon   who answers for the run's claim, where that is not the agent any more that its claim names:
                             whoever starts the same run by mistake, on the machine that left, is refused

Written by the coordinator, as views begin and when the hub moves within one. What cannot be written is written with the
next view.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import elastic_checkpoint
from elastic.membership import hub_file
from elastic.status.console import Console


class HubNotice:
    """Writes to the run's storage who has the hub; url, options: of that storage."""

    def __init__(self, url: str, options: Mapping[str, Any] | None, console: Console) -> None:
        self._url = url
        self._options = options
        self._console = console
        self._state = threading.Lock()
        self._writing = threading.Lock()
        self._liveness: Mapping[str, Any] | None = None
        self._claim: elastic_checkpoint.Claim | None = None
        self._hub_written: object = None
        self._moved: object = None

    def write(self, liveness: Mapping[str, Any] | None, claim: elastic_checkpoint.Claim | None) -> None:
        """Write what is new of the hub and its liveness endpoint, in the background.

        liveness  of the agent that has the hub, as in a view (hub.py): "nonce", "endpoint", "hub"
        claim   that the run writes under; None: as far as is known here it names that endpoint
        """
        if liveness is None:
            return
        with self._state:
            self._liveness, self._claim = liveness, claim or self._claim
            if not self._has_news():
                return
        threading.Thread(target=self._write, name="elastic-hub-notice", daemon=True).start()

    def _has_news(self) -> bool:
        return self._news_of_hub() is not None or self._news_of_liveness() is not None

    def _news_of_hub(self) -> Mapping[str, Any] | None:
        """Return where the hub is, if the storage does not say so yet."""
        hub = self._liveness.get("hub") if self._liveness is not None else None
        return hub if hub != self._hub_written else None

    def _news_of_liveness(self) -> tuple[elastic_checkpoint.Claim, str, Mapping[str, Any]] | None:
        """Return the claim, and who answers for it, if neither the claim nor the storage says so yet."""
        if self._liveness is None or self._claim is None:
            return None
        nonce, claim = self._liveness["nonce"], self._claim
        if claim.nonce == nonce or self._moved == (claim.number, nonce):
            return None
        return claim, nonce, self._liveness["endpoint"]

    def _write(self) -> None:
        """Write the newest that is known, one thread after the other."""
        with self._writing:
            with self._state:
                hub, moved = self._news_of_hub(), self._news_of_liveness()
            try:
                if hub is not None:
                    hub_file.write(self._url, self._options, hub)
                    self._hub_written = hub
                if moved is not None:
                    claim, nonce, endpoint = moved
                    options = dict(self._options) if self._options else None
                    with elastic_checkpoint.Checkpointer(self._url, storage_options=options) as storage:
                        storage.move_liveness(claim, answers=(nonce, dict(endpoint)))
                    self._moved = claim.number, nonce
            except elastic_checkpoint.CheckpointError as failure:
                self._console.say(
                    f"where the run's hub is now could not be written beside its checkpoints: {failure}\n"
                    "  state  the run goes on; a second launch of it elsewhere may find nobody who answers for it\n"
                    "  next   nothing: it is written with the next view"
                )
