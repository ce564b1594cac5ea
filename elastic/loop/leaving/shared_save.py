"""All nodes leave, each with a network of its own: one worker of every other node helps to upload the last save.

    the coordinator invites, all hear it  ->  it saves, as ever; the helpers upload what it offers them, in threads,
      while they wait for it with all others  ->  it commits

It is the coordinator's save: its claim, its plain values, its manifest. A helper is offered objects with their hashes,
and uploads those of which it holds the very bytes; what it does not, the coordinator does
(elastic_checkpoint/save/helping). A node's own network is what is gained, so workers of the coordinator's node do not
help, and no second one of another."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import elastic_checkpoint
from elastic.group.fingerprint import Kind
from elastic.loop.session import Session
from elastic.membership.progress import Phase

HELPERS_MAX = 63  # with as many the storage is the narrow place, not a node's network


def helpers_of(nodes: Sequence[str]) -> list[int]:
    """The ranks that help. nodes: of each rank"""
    first = {node: rank for rank, node in reversed([*enumerate(nodes)])}
    return sorted(first.values())[1 : 1 + HELPERS_MAX]


class SharedSave:
    """Of one worker. wait_for_all: see Recovery"""

    def __init__(self, session: Session, wait_for_all: Callable[[Kind, str | None], str | None]) -> None:
        self._session = session
        self._wait_for_all = wait_for_all

    @property
    def uploaders(self) -> int:
        """How many nodes may upload a save that all wait for."""
        return 1 + len(self._helpers)

    @contextmanager
    def shared(self, by_s: float | None) -> Iterator[None]:
        """While this lasts the coordinator saves, and the others wait for it. All call it together. Raises PeerLost.

        by_s  this node is gone then, by time.monotonic(); None: nobody says
        """
        helper = self._helper(by_s) if self._helpers else None
        try:
            yield
        finally:
            if helper is not None:
                helper.close()

    @property
    def _helpers(self) -> list[int]:
        return helpers_of(self._session.view_group.nodes)

    def _helper(self, by_s: float | None) -> elastic_checkpoint.Helper | None:
        session, rank = self._session, self._session.view_group.rank
        saver, invitation = session.restorer.saver, None
        if saver is not None:
            session.phases.enter(Phase.SAVING, session.restorer.storage_s)
            invited = saver.invite(self._helpers, step=session.state.step, by_s=by_s)
            invitation = None if invited is None else json.dumps(invited)
        said = self._wait_for_all(Kind.SAVE, invitation)
        if said is None or rank not in self._helpers:
            return None
        config, console = session.context.config, session.context.console
        try:
            state = session.train_state.objects()
            return elastic_checkpoint.Helper(
                config.url, config.storage_options, json.loads(said), rank, state, log=console.say
            )
        except Exception as error:  # of the script's own objects, too: the coordinator saves all the same
            console.say(f"this worker does not help with the save: {type(error).__name__}: {error}")
            return None
