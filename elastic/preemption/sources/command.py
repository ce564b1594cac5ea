"""A command that is run again and again; what it may print says `parse_notice`; nothing: no notice."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from elastic.preemption.notice import Notice, parse_notice
from elastic.preemption.sources.command_output import CommandFailed, output_of
from elastic.preemption.sources.source import Source, SourceFailed

_WITHIN_S = 10.0


class Command(Source):
    name = "command"
    needs = "LINE"
    every_s = 5.0

    def __init__(self, command: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._command = command
        self._clock = clock
        self._wanted = True

    @classmethod
    def of(cls, rest: str, environ: Mapping[str, str]) -> Command:
        return cls(rest)

    def look(self) -> list[Notice]:
        try:
            text = output_of(self._command, within_s=_WITHIN_S, wanted=lambda: self._wanted).strip()
        except (CommandFailed, OSError) as failure:
            raise SourceFailed(str(failure)) from failure
        if not text:
            return []
        if (said := parse_notice(text)) is None:
            raise SourceFailed(
                f"`{self._command}` prints {text[:80]!r}; expected nothing, or a line that begins with leave or hint"
            )
        kind, left_s, why = said
        by_s = None if left_s is None else self._clock() + left_s
        words = f"`{self._command}` says {kind.value}" + (f": {why}" if why else "")
        # Seconds that are counted down are one notice.
        return [Notice(source=self.name, id=f"{kind.value} {why}", kind=kind, why=words, by_s=by_s)]

    def abort(self) -> None:
        self._wanted = False
