"""Where both runs of a drill live: folders of the drill's own, or below a URL that the user gave. Fresh, and removable.

What a URL's storage needs may hold credentials: it is in no file of the drill's and in nothing that it prints.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elastic.errors import ConfigError
from elastic_checkpoint.command_line import StorageOption
from elastic_checkpoint.storage.base import Storage
from elastic_checkpoint.storage.redact import redact
from elastic_checkpoint.storage.urls import refusal

_REMOVE_WITHIN_S = 60.0
_ANSWER_WITHIN_S = 60.0
_THEN = "\n  state"  # what storage errors go on with, which speaks of saves


@dataclass(frozen=True)
class StorageRoot:
    """The URL of an object store below which the user wants both runs.

    url: given by the user   options: for fsspec's filesystem   written: how the user gave them, without secrets
    """

    url: str = field(repr=False)
    options: dict[str, Any] | None = field(default=None, repr=False)
    written: Sequence[str] = ()

    @classmethod
    def asked(cls, url: str, options: Sequence[StorageOption]) -> StorageRoot:
        """Return the root that a command line names. Raises ConfigError, which shows nothing that may be a secret."""
        if "://" not in url or url.startswith(("file://", "local://", "memory://", "faulty://")):
            raise ConfigError(
                f"--storage {redact(url)}: expected the URL of an object store, such as s3://bucket/folder; for a "
                "folder of this machine, use --folder"
            )
        found = {one.key: one.value for one in options}
        return cls(url, found or None, [one.written for one in options])

    def replay(self) -> list[str]:
        """Return the flags that name it again; a value that was given on the command line is not repeated."""
        where = ["--storage", redact(self.url)]
        return where + [f"--storage-option={one}" for one in self.written]


class Location:
    """The place where both runs of a drill live.

    root  where the user wants them; None: in the drill's own folder
    """

    def __init__(self, root: StorageRoot | None) -> None:
        self._root = None if root is None else f"{root.url.rstrip('/')}/elastic-drill-{secrets.token_hex(4)}"
        self.options = root.options if root is not None else None

    def url(self, folder: Path, name: str) -> str:
        """Return where the run of this name lives: below the root, or in the drill's own folder."""
        return str(folder / name) if self._root is None else f"{self._root}/{name}"

    @property
    def elsewhere(self) -> str | None:
        """Return the URL of what is not in the drill's folder, without secrets; None: all is there."""
        return redact(self._root) if self._root is not None else None

    def check(self) -> None:
        """Raise ConfigError if no object can be written there. Waits no longer than a minute."""
        if self._root is None:
            return
        wrong = refusal(self._root, self.options)
        why = wrong.found if wrong is not None else _in_time(self._try, _ANSWER_WITHIN_S)
        if why is not None:
            raise ConfigError(
                f"--storage {self.elsewhere}: no object could be written there\n"
                f"  found  {why.partition(_THEN)[0]}\n"
                "  state  nothing was run\n"
                "  next   see that the URL, its bucket and each --storage-option are right, and that the server answers"
            )

    def remove(self) -> str | None:
        """Remove what is outside the drill's folder; return why that failed, if it did. Waits a minute at most."""
        return _in_time(self._remove, _REMOVE_WITHIN_S) if self._root is not None else None

    def _try(self) -> None:
        with contextlib.closing(self._open(retry_s=_ANSWER_WITHIN_S / 4)) as storage:
            storage.put_new("probe", b"of a drill")
            storage.delete("probe")

    def _remove(self) -> None:
        with contextlib.closing(self._open(retry_s=_REMOVE_WITHIN_S / 2)) as storage:
            for name in list(storage.list("")):
                storage.delete(name)
            storage.tidy(0.0)

    def _open(self, *, retry_s: float) -> Storage:
        from elastic_checkpoint.storage import open_storage

        return open_storage(str(self._root), self.options, retry_s=retry_s)


def _in_time(do: Callable[[], None], within_s: float) -> str | None:
    """Do it in a thread, and return why it failed, if it did: a server that does not answer is not waited for."""
    failure: list[str] = [f"not done within {within_s:.0f} s"]

    def run() -> None:
        try:
            do()
            failure.clear()
        except Exception as error:  # whatever it is, the user reads it, and the drill ends
            failure[0] = str(error)

    thread = threading.Thread(target=run, name="drill-storage", daemon=True)
    thread.start()
    thread.join(within_s)
    return failure[0] if failure else None
