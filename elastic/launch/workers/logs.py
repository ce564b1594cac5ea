"""Where the output of workers goes: the agent's own streams, files, or both with each line marked, as torchrun has it.

    LOG_DIR/<run id>_<random>/attempt_<n>/<local rank>/stdout.log      n: how often that slot was started before

Workers write to their files themselves, so that no agent can hold them up; what is shown besides is read from there.

A failure that workers share is shown once: a worker prints its own where its stderr is not shared
(processes/worker.py), else its agent does, and only the first is shown at length.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import TextIO

from elastic.errors import ConfigError
from elastic.membership.messages.messages import Failed

PREFIX = "[${role_name}${local_rank}]:"
_OUT, _ERR = 1, 2  # torchrun's numbers for the two streams; 3 is both, 0 none
_SHOWN = 1 << 20  # bytes of a file at a time


@dataclass
class Tail:
    """A file of which some has not been shown yet."""

    fd: int
    target: TextIO
    prefix: str
    rest: bytes = b""

    def show(self, *, last: bool = False) -> None:
        """Show complete lines; with `last`, show the rest, too, and close the file."""
        while data := os.read(self.fd, _SHOWN):
            *lines, self.rest = (self.rest + data).split(b"\n")
            self._write(lines)
        if last:
            os.close(self.fd)
            if self.rest:
                self._write([self.rest])

    def _write(self, lines: list[bytes]) -> None:
        self.target.write("".join(f"{self.prefix}{line.decode(errors='replace')}\n" for line in lines))
        self.target.flush()


@dataclass
class Streams:
    """The streams of one worker; fds: to be given to it, by "stdout" and "stderr"; then `given` closes them here."""

    fds: dict[str, int] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)
    tails: list[Tail] = field(default_factory=list)

    def given(self) -> None:
        """Close the descriptors here that the worker has now."""
        for fd in self.fds.values():
            os.close(fd)
        self.fds = {}

    def close(self) -> None:
        self.given()
        for tail in self.tails:
            tail.show(last=True)
        self.tails = []


@dataclass(frozen=True, kw_only=True)
class LogRules:
    """The flags for the workers' output.

    redirects, tee  torchrun's numbers, for all local ranks or by local rank
    shown           only these local ranks appear on the console; None: all
    """

    log_dir: str | None = None
    run_id: str = "none"
    role: str = "default"
    prefix: str = PREFIX
    redirects: int | Mapping[int, int] = 0
    tee: int | Mapping[int, int] = 0
    shown: Collection[int] | None = None


class Logs:
    """The folder of a node's logs, which is made when the first file is."""

    def __init__(self, rules: LogRules, *, say: Callable[[str], None]) -> None:
        self._rules = rules
        self._say = say
        self._folder: Path | None = None

    def open(self, local_rank: int, attempt: int) -> Streams:
        """Open the streams of a worker; attempt: how many workers had its slot before."""
        rules, streams = self._rules, Streams()
        tee, redirects = _of(rules.tee, local_rank), _of(rules.redirects, local_rank)
        shown = rules.shown is None or local_rank in rules.shown
        for bit, name, console in ((_OUT, "stdout", sys.stdout), (_ERR, "stderr", sys.stderr)):
            if (tee | redirects) & bit:
                path = self._worker_folder(local_rank, attempt) / f"{name}.log"
                streams.fds[name] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
                streams.files[name] = path
                if tee & bit and shown:
                    streams.tails.append(
                        Tail(os.open(path, os.O_RDONLY | os.O_CLOEXEC), console, self._prefix(local_rank))
                    )
            elif not shown:
                streams.fds[name] = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        return streams

    def _worker_folder(self, local_rank: int, attempt: int) -> Path:
        """Make the folder of a worker's files. Raises ConfigError."""
        if self._folder is None:
            prefix = f"{self._rules.run_id.replace(os.sep, '-')}_"
            try:
                if self._rules.log_dir is not None:
                    os.makedirs(self._rules.log_dir, exist_ok=True)
                self._folder = Path(tempfile.mkdtemp(prefix=prefix, dir=self._rules.log_dir)).absolute()
            except OSError as refused:
                where = self._rules.log_dir or tempfile.gettempdir()
                raise ConfigError(
                    f"--log-dir {where}: no folder can be made there: {refused}\n"
                    "  state  no worker was started\n  next   name another folder, or leave the flag out"
                ) from refused
            self._say(f"the workers' output is in {self._folder}")
        folder = self._folder / f"attempt_{attempt}" / str(local_rank)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _prefix(self, local_rank: int) -> str:
        """Return what stands before each line, with the local rank for torchrun's rank, which is a place in a view."""
        return Template(self._rules.prefix).safe_substitute(
            role_name=self._rules.role, local_rank=local_rank, rank=local_rank
        )


def _of(rule: int | Mapping[int, int], local_rank: int) -> int:
    return rule if isinstance(rule, int) else rule.get(local_rank, 0)


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
