"""The failures of a node's workers as people see them: an exception is shown once, however many workers meet it.

A worker prints its own where its stderr is not shared (processes/worker.py); else its agent does. What all workers
have met, each tells from its own place in the code, and only the first is shown at length.
"""

from __future__ import annotations

from collections.abc import Callable

from elastic.launch.workers.logs import Streams
from elastic.membership.messages.messages import Failed


class ShownFailures:
    """The traces that people have seen, of the workers of one node."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._traces: set[str] = set()  # that people have seen

    def show(self, called: str, failed: Failed, streams: Streams) -> None:
        """Show how a worker failed, in a line where people have seen its trace; called: how they know that worker."""
        at = f" at step {failed.step}" if failed.step is not None else ""
        trace, error = failed.trace, failed.error
        if failed.shown:  # by the worker, in its file or on the console
            if not streams.files.get("stderr") or streams.tails:
                self._traces.add(trace)
        elif trace in self._traces or ("\n" in error and any(error in one for one in self._traces)):
            # the latter is known to all of them, and each tells it from its own place
            self._traces.add(trace)
            self._say(f"{called} failed{at} as shown above: {error.partition(chr(10))[0]}")
        else:
            self._traces.add(trace)
            self._say(f"{called} failed{at}\n{trace.rstrip()}")
        if "stderr" in streams.files:
            self._say(f"{called} failed{at}: {error}\n  log  {streams.files['stderr']}")

    def abridged(self, text: str) -> str:
        """Return the text without the traces in it that people have seen."""
        for trace in filter(str.strip, self._traces):
            text = text.replace(trace.rstrip(), "(the exception is shown above)")
        return text
