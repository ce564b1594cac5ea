"""Looks, for one node, at every source of notices, and tells what is new. A thread for each source.

Promises  a source that is absent, slow, failing or lying delays no other one, nor whoever is told: its thread waits.
          A notice is told once, however often it is seen; once more each time that its deadline has come nearer; and
          once more, withdrawn, when it is not there any more.
          What a source fails of is said once an hour at most; it is asked less often while it tells nothing at all.
          What it says beside a failure is told, and what is not said then is not taken for withdrawn.
          `close` returns within a moment: what is under way then is given up.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from elastic.preemption.notice import Kind, Notice, changes, in_force
from elastic.preemption.sources.source import PartlyFailed, Source, SourceFailed, in_words

_SLOWEST_S = 15.0  # between two questions to one that fails: the shortest notice of a cloud is 30 s
_LEAST_S = 0.01
_SAY_AGAIN_S = 3600.0
_END_S = 1.0


class Watcher:
    """Asks every source of a node, each in a thread of its own, and tells what is new.

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
        """End the watching. gone: the node has left on what was told; whoever waits for that may be told."""
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
        """Ask a source again and again, less often while it tells nothing, and tell what has changed."""
        failures, silent_until_s = 0, 0.0
        while not self._end.is_set():
            failed: Exception | None = None
            try:
                found = list(source.look())
                failures = 0
            except PartlyFailed as partly:
                failed, failures = partly, 0
                found = [*self._in_force[source].values(), *partly.heard]  # what is not said now is not withdrawn
            except Exception as wholly:  # SourceFailed; or what nobody foresaw that a service may say
                failed, failures = wholly, failures + 1
                found = list(self._in_force[source].values())
            self._tell_changes(source, found)
            if failed is not None and time.monotonic() >= silent_until_s and not self._end.is_set():
                silent_until_s = time.monotonic() + _SAY_AGAIN_S
                which = "notices" if failures else "some notices"
                self._say(f"{which} from {source.name} are not heard, and asked for again: {in_words(failed)}")
            slower = 2.0 ** min(failures, 10) if failures else 1.0
            self._end.wait(max(source.every_s, min(source.every_s * slower, _SLOWEST_S), _LEAST_S))

    def _tell_changes(self, source: Source, found: Sequence[Notice]) -> None:
        before, here = self._in_force[source], [replace(notice, node=self._node) for notice in found]
        self._in_force[source] = in_force(before, here)
        for notice in changes(before, here):
            if not self._end.is_set():
                self._tell(notice)
