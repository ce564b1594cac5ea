"""Looks, for one node, at every source of notices, and tells what is new. A thread for each source.

Promises  a source that is absent, slow, failing or lying delays no other one, nor whoever is told: its thread waits.
          A notice is told once, however often it is seen, and once more, withdrawn, when it is not there any more.
          What a source fails of is said once an hour at most; it is asked less often meanwhile.
          `close` returns within a moment: what is under way then is given up.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from elastic.preemption.notice import Kind, Notice, changes
from elastic.preemption.sources.source import Source, SourceFailed

_SLOWEST_S = 15.0  # between two questions to one that fails: the shortest notice of a cloud is 30 s
_LEAST_S = 0.01
_SAY_AGAIN_S = 3600.0
_END_S = 1.0


class Watcher:
    """
    tell  called with each notice, in a source's thread; it must be quick
    say   called there with what people should know
    """

    def __init__(
        self, sources: Sequence[Source], *, tell: Callable[[Notice], None], say: Callable[[str], None]
    ) -> None:
        self._sources = sources
        self._tell = tell
        self._say = say
        self._node = socket.gethostname()
        self._end = threading.Event()
        self._in_force: dict[Source, dict[str, Notice]] = {source: {} for source in sources}
        self._threads = [
            threading.Thread(target=self._watch, args=[source], name=f"elastic-notices-{source.name}", daemon=True)
            for source in sources
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self, *, gone: bool = False) -> None:
        """gone: the node has left on what was told; whoever waits for that may be told"""
        self._end.set()
        for source in self._sources:
            in_force = self._in_force[source]
            if gone and (ids := [id for id, notice in in_force.items() if notice.kind is Kind.LEAVE]):
                with contextlib.suppress(SourceFailed):  # it comes to its own conclusion by the deadline
                    source.gone(ids)
            source.abort()
        until_s = time.monotonic() + _END_S
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(timeout=max(0.0, until_s - time.monotonic()))

    def _watch(self, source: Source) -> None:
        failures, silent_until_s = 0, 0.0
        while not self._end.is_set():
            try:
                found = [replace(notice, node=self._node) for notice in source.look()]
                failures = 0
            except Exception as failed:  # SourceFailed; or what nobody foresaw that a service may say
                failures += 1
                if time.monotonic() >= silent_until_s and not self._end.is_set():
                    silent_until_s = time.monotonic() + _SAY_AGAIN_S
                    self._say(f"notices from {source.name} are not heard, and asked for again: {_why(failed)}")
            else:
                self._tell_changes(source, found)
            slower = 2.0 ** min(failures, 10) if failures else 1.0
            self._end.wait(max(source.every_s, min(source.every_s * slower, _SLOWEST_S), _LEAST_S))

    def _tell_changes(self, source: Source, found: Sequence[Notice]) -> None:
        before = self._in_force[source]
        self._in_force[source] = {notice.id: before.get(notice.id, notice) for notice in found}
        for notice in changes(before, found):
            if not self._end.is_set():
                self._tell(notice)


def _why(failed: Exception) -> str:
    return str(failed) if isinstance(failed, SourceFailed) else f"{type(failed).__name__}: {failed}"
