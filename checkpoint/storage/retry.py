"""Tries again what may heal, gives up at once on what cannot, and says what was tried.

Transient (the network, a busy server, an I/O error) backs off with jitter up to a deadline. Permanent (no rights, no
bucket, a full disk) fails at the first attempt, with advice. Either way the caller sees one `StorageError`, free of
credentials. `AlreadyThere` and `Missing` are answers, and pass through.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, MutableSequence, Sequence
from typing import Any, TypeVar

from tenacity import Retrying, retry_if_exception, stop_before_delay, wait_random_exponential

from checkpoint.errors import StorageError
from checkpoint.storage.base import AlreadyThere, Buffer, Missing, Storage
from checkpoint.storage.redact import Scrubber

T = TypeVar("T")

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.1, 10.0
_SHOWN = 5  # of the attempts in the message

_ADVICE_BY_ERRNO = {
    errno.EACCES: "give this user or key the right to list, read, write and delete here",
    errno.EPERM: "give this user or key the right to list, read, write and delete here; a local filesystem must "
    "support hard links, which FAT and some network mounts do not",
    errno.ENOSPC: "free some space, or keep fewer checkpoints",
    errno.EDQUOT: "the quota is used up: free some space, or keep fewer checkpoints",
    errno.EROFS: "the filesystem is mounted read-only: mount it writable, or use another URL",
    errno.ENOENT: "create the bucket or mount the folder, or correct the URL",
    errno.ENOTDIR: "a file lies where a folder is needed: correct the URL",
    errno.EISDIR: "a folder lies where a file is needed: correct the URL",
    errno.ENAMETOOLONG: "use a shorter URL",
    errno.EXDEV: "the run's folder spans two filesystems: use a plain folder",
    errno.EOPNOTSUPP: "this filesystem has no hard links or no fsync: use another one, or object storage",
    errno.EMLINK: "this filesystem has no hard links: use another one, or object storage",
}
_ADVICE_BY_NAME = {
    "NoCredentialsError": "no credentials were found: give them in storage_options or in the environment",
    "PartialCredentialsError": "the credentials are incomplete: give them in storage_options or in the environment",
    "ProfileNotFound": "correct the profile's name",
    "NoSuchBucket": "create the bucket, or correct the URL",
}
_NETWORK_MODULES = ("botocore", "aiobotocore", "aiohttp", "urllib3", "requests", "google", "gcsfs", "azure", "fsspec")


class RetryingStorage:
    """`Storage` around another one."""

    def __init__(
        self, inner: Storage, *, retry_s: float, scrub: Scrubber, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._inner = inner
        self._retry_s = retry_s
        self._scrub = scrub
        self._sleep = sleep

    @property
    def url(self) -> str:
        return self._inner.url

    def put_new(self, key: str, data: Buffer) -> None:
        try:
            self._call("create", key, lambda: self._inner.put_new(key, data))
        except AlreadyThere:
            # An attempt whose answer was lost, here or inside a client library, may be what is there already.
            if self._is_there(key, data):
                return
            raise

    def put(self, key: str, data: Buffer) -> None:
        self._call("write", key, lambda: self._inner.put(key, data))

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        return self._call("read", key, lambda: self._inner.get(key, start, length))

    def list(self, prefix: str) -> dict[str, int]:
        return self._call("list", prefix, lambda: self._inner.list(prefix))

    def size(self, key: str) -> int:
        return self._call("look up", key, lambda: self._inner.size(key))

    def delete(self, key: str) -> None:
        self._call("delete", key, lambda: self._inner.delete(key))

    def tidy(self, older_than_s: float) -> tuple[str, ...]:
        return self._call("tidy", "", lambda: self._inner.tidy(older_than_s))

    def exclusive(self) -> bool:
        return self._call("create", "a test object", self._inner.exclusive)

    def close(self) -> None:
        self._inner.close()

    def _is_there(self, key: str, data: Buffer) -> bool:
        try:
            return self.size(key) == memoryview(data).nbytes and self.get(key) == data
        except Missing:
            return False

    def _call(self, operation: str, key: str, act: Callable[[], T]) -> T:
        attempts: MutableSequence[str] = []

        def once() -> T:
            try:
                return act()
            except Exception as error:
                attempts.append(self._scrub(f"{type(error).__name__}: {error}"))
                raise

        retrying = Retrying(
            retry=retry_if_exception(lambda error: _of_storage(error) and advice(error) is None),
            stop=stop_before_delay(self._retry_s),
            wait=wait_random_exponential(multiplier=_FIRST_WAIT_S, max=_LONGEST_WAIT_S),
            sleep=self._sleep,
            reraise=True,
        )
        try:
            return retrying(once)
        except Exception as error:
            if not _of_storage(error):
                raise
            failed = self._failed(operation, key, attempts, advice(error))
            # Its own text may hold what was scrubbed from ours: then the chain is cut.
            raise failed from (error if self._scrub(str(error)) == str(error) else None)

    def _failed(self, operation: str, key: str, attempts: Sequence[str], next_step: str | None) -> StorageError:
        first = len(attempts) - len(attempts[-_SHOWN:]) + 1
        shown = "\n".join(f"  attempt {first + i}  {text}" for i, text in enumerate(attempts[-_SHOWN:]))
        how = f"failed {len(attempts)} times within {self._retry_s:g} s" if next_step is None else "cannot succeed"
        return StorageError(
            f"{self.url}: {operation} {key or 'everything'} {how}\n{shown}\n"
            "  state  whatever was being saved is not committed; earlier checkpoints are as they were\n"
            f"  next   {next_step or 'see whether the storage can be reached; the next save starts anew'}",
            operation=operation,
            key=key,
            attempts=len(attempts),
        )


def advice(error: BaseException) -> str | None:
    """What to do about an error that trying again cannot heal, or None if it may heal."""
    for one in (error, error.__cause__):
        code = error_code(one) or type(one).__name__
        if code in _ADVICE_BY_NAME:
            return _ADVICE_BY_NAME[code]
    if isinstance(error, OSError):
        implied = {PermissionError: errno.EACCES, FileNotFoundError: errno.ENOENT, NotADirectoryError: errno.ENOTDIR}
        return _ADVICE_BY_ERRNO.get(error.errno or implied.get(type(error), 0))
    return None


def error_code(error: BaseException | None) -> str | None:
    """The server's own code, such as "NoSuchBucket", of an error of botocore's or of one that it caused."""
    for one in (error, error.__cause__ if error else None):
        response: Any = getattr(one, "response", None)
        if isinstance(response, dict) and isinstance(response.get("Error"), dict):
            return str(response["Error"].get("Code"))
    return None


def _of_storage(error: BaseException) -> bool:
    """Whether the storage failed, rather than somebody's code."""
    return isinstance(error, OSError) or type(error).__module__.split(".")[0] in _NETWORK_MODULES
