"""A file that is there while this node is to leave. What it may hold says `parse_notice`; an empty one says: leave."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Mapping

from elastic.events import words
from elastic.preemption.notice import Kind, Notice, parse_notice
from elastic.preemption.sources.source import Source, SourceFailed

_READ_MAX = 1 << 12


class File(Source):
    """A file as a source. Whatever else it holds is taken for the reason: that it is there is what counts."""

    name = "file"
    needs = "PATH"
    every_s = 0.5

    def __init__(self, path: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock

    @classmethod
    def of(cls, rest: str, environ: Mapping[str, str]) -> File:
        return cls(rest)

    def look(self) -> list[Notice]:
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe is not waited for
        except FileNotFoundError:
            return []
        except OSError as failure:
            raise SourceFailed(f"{self._path} cannot be read: {failure}") from failure
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise SourceFailed(f"{self._path} is no plain file")
            text = os.read(fd, _READ_MAX).decode("utf-8", "replace").strip()
        except OSError as failure:
            raise SourceFailed(f"{self._path} cannot be read: {failure}") from failure
        finally:
            os.close(fd)
        kind, left_s, why = parse_notice(text) or (Kind.LEAVE, None, words.printable(text.partition("\n")[0][:200]))
        by_s = None if left_s is None else self._clock() + left_s
        said = f"{self._path} says {kind.value}" + (f": {why}" if why else "")
        # Seconds that are counted down, by a daemon that writes the file again and again, are one notice.
        return [Notice(source=self.name, id=f"{kind.value} {why}", kind=kind, why=said, by_s=by_s)]
