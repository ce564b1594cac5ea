"""What happened, as records that people, tests and the judge read afterwards. Code emits; prose is drawn from records.

One record per line of JSON, in segments per worker under <run>/events. In a folder every record is one O_APPEND write,
so a SIGKILL loses nothing that was emitted (a power cut may). Object storage cannot append: records wait in memory and
are uploaded by a thread once a minute and at saves, so a killed worker loses those since. A log that cannot be written
says so once, through `logging`, and never stops training.

A log is bounded (segments.py): of a long run's worker the newest steps are there one by one, and those before as sums
(compaction.py). Which events there are, and what each says, is schema.py's.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from elastic.events.event import Event, TypedEvent
from elastic.events.remote_sink import RemoteSink
from elastic.events.segments import encoded
from elastic.events.sinks import FileSink, Sink, local_folder, log

if TYPE_CHECKING:
    from elastic_checkpoint.storage import Scrubber

_WORDS = ("error", "why", "cause")


class EventLog:
    """This worker's records. Safe to use from several threads; nothing here raises for what storage does.

    url              the run's folder or fsspec URL; None discards every record
    worker_id        names the files; one per process
    clock            unix seconds
    storage_options  as for the run's checkpoints
    scrub            removes what is confidential: what an exception says is the script's own
    """

    def __init__(
        self,
        url: str | os.PathLike[str] | None,
        *,
        worker_id: str,
        clock: Callable[[], float] = time.time,
        storage_options: dict[str, Any] | None = None,
        scrub: Scrubber | None = None,
    ) -> None:
        self._worker_id = worker_id
        self._scrub = scrub
        self._clock = clock
        self._common: Event = {}
        self._sinks: list[Sink] = []
        self._hearing: list[Callable[[Event], None]] = []
        self._whole = False
        if url is not None:
            self.tee(url, storage_options=storage_options)

    def context(self, **facts: Any) -> None:
        """Set facts that every later record carries; None removes one."""
        merged = {**self._common, **facts}
        self._common = {name: fact for name, fact in merged.items() if fact is not None}

    def emit(self, event: TypedEvent) -> None:
        """Record that it happened now."""
        facts = event.facts()
        if (scrub := self._scrub) is not None:
            # Words of the script's are in these, or in texts with blanks; ids and digests, also in lists, stay as they
            # are, and a step's record costs nothing.
            said = {
                name: scrub(fact)
                for name, fact in facts.items()
                if isinstance(fact, str) and (" " in fact or name in _WORDS)
            }
            facts = {**facts, **said} if said else facts
        self._write(event.event_name, facts)

    def emit_named(self, event: str, **facts: Any) -> None:
        """Record an event that schema.py does not have: an observer's own.

        Facts are JSON values; of NumPy scalars the value is taken, of others the str().
        """
        if self._scrub is not None:
            facts = self._scrub.document(json.loads(encoded(facts)))  # all of it is the script's own
        self._write(event, facts)

    def _write(self, event: str, facts: Event) -> None:
        """Write a record to all sinks, and show it to all who hear; one that raises at that hears no more."""
        if not self._sinks and not self._hearing:
            return
        record = {"t": self._clock(), "worker": self._worker_id, "event": event, **self._common, **facts}
        if self._sinks:
            line = encoded(record)
            for sink in self._sinks:
                sink.write(record, line)
        for hear in tuple(self._hearing):
            try:
                hear(record)
            except Exception:  # whatever it is, what people are shown must not end what it is about
                self._hearing.remove(hear)
                log.exception("what is shown of this run is out of date from here on; training goes on")

    def tee(self, url: str | os.PathLike[str], *, storage_options: dict[str, Any] | None = None) -> None:
        """Send records to `url` as well, from now on: a drill keeps its evidence where a killed worker loses none."""
        folder = local_folder(url)
        sink: Sink = (
            RemoteSink(str(url), storage_options, self._worker_id)
            if folder is None
            else FileSink(folder / "events", self._worker_id)
        )
        if self._whole:
            sink.keep_uncompacted()
        self._sinks.append(sink)

    def hear(self, hear: Callable[[Event], None]) -> None:
        """Have `hear` called with each record from now on, in the thread that emits it; it must be quick."""
        self._hearing.append(hear)

    def keep_uncompacted(self) -> None:
        """Fold nothing, however long the log: for evidence."""
        self._whole = True
        for sink in self._sinks:
            sink.keep_uncompacted()

    def flush(self, *, wait: bool = False) -> None:
        """Have what waits uploaded; wait: return when it has been tried."""
        for sink in self._sinks:
            sink.flush(wait=wait)

    def close(self) -> None:
        """Flush and let go; what is emitted afterwards is discarded."""
        sinks, self._sinks, self._hearing = self._sinks, [], []
        for sink in sinks:
            sink.close()
