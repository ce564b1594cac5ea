"""Tries again what may heal, gives up at once on what cannot, and says what was tried.

Transient (the network, a timeout, a busy or broken server, an I/O error) backs off with jitter up to a deadline.
Permanent (no rights, no bucket, a full disk, whatever else a server blames on the request) fails at the first attempt,
with advice. Either way the caller sees one `StorageError`, free of credentials. `AlreadyThere` and `Missing` are
answers, and pass through.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator, MutableSequence, Sequence
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

from tenacity import Retrying, retry_if_exception, stop_before_delay, wait_random_exponential

from elastic_checkpoint.errors import StorageError
from elastic_checkpoint.storage.answering import answer_within
from elastic_checkpoint.storage.base import (
    AlreadyThere,
    Buffer,
    Missing,
    Storage,
    delete_many,
    deletes_at_once,
    get_into,
    make_durable,
    map_object,
    put_lightly,
    version,
    written_at,
)
from elastic_checkpoint.storage.redact import Scrubber

T = TypeVar("T")

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.1, 10.0
_SHOWN = 5  # of the attempts in the message

# What an operation that failed leaves behind, and what to do once the storage works again.
_AFTER_WRITING = (
    "what was being saved is not known to be committed; earlier checkpoints are as they were",
    "the next save starts anew",
)
_AFTER_LOOKING = (
    "nothing was changed or loaded; a save that needed this is not committed",
    "then try again",
)
_AFTER_REMOVING = (
    "what was to go may still be there, and counts for nothing",
    "the next sweep removes it",
)
_AFTER = {
    "create": _AFTER_WRITING,
    "write": _AFTER_WRITING,
    "read": _AFTER_LOOKING,
    "list": _AFTER_LOOKING,
    "look up": _AFTER_LOOKING,
    "delete": _AFTER_REMOVING,
    "tidy": _AFTER_REMOVING,
}
_QUICK = ("list", "look up")
_WITHOUT_WORDS = "the client library says no more"
_RIGHTS = "the right to list, read, write and delete here"
_ADVICE_BY_ERRNO = {
    errno.EACCES: f"give this user or key {_RIGHTS}",
    errno.EPERM: f"give this user or key {_RIGHTS}; a local filesystem must support hard links, which FAT and some "
    "network mounts do not",
    errno.ENOSPC: "free some space, or keep fewer checkpoints",
    errno.EDQUOT: "the quota is used up: free some space, or keep fewer checkpoints",
    errno.EROFS: "the filesystem is mounted read-only: mount it writable, or use another URL",
    errno.ENOENT: "create the bucket or mount the folder, or correct the URL",
    errno.ELOOP: "a link leads back to itself: remove it, or correct the URL",
    errno.ENOTDIR: "a file lies where a folder is needed: correct the URL",
    errno.EISDIR: "a folder lies where a file is needed: correct the URL",
    errno.EFBIG: "this filesystem holds no file so large: use another one, or object storage",
    errno.ENAMETOOLONG: "use a shorter URL",
    errno.EXDEV: "the run's folder spans two filesystems: use a plain folder",
    errno.EOPNOTSUPP: "this filesystem has no hard links or no fsync: use another one, or object storage",
    errno.EMLINK: "this filesystem has no hard links: use another one, or object storage",
}
_WRONG_KEY = "check the key and the secret, in storage_options or in the environment: this server does not accept them"
_ADVICE_BY_NAME = {
    "NoCredentialsError": "no credentials were found: give them in storage_options or in the environment",
    "PartialCredentialsError": "the credentials are incomplete: give them in storage_options or in the environment",
    "ProfileNotFound": "correct the profile's name",
    "ParamValidationError": "correct the URL: the client library refuses the bucket's or the object's name",
    "UnsupportedOperation": "load from here as from anywhere, and save to a folder or an object store",
    "NoSuchBucket": "create the bucket, or correct the URL",
    "InvalidAccessKeyId": _WRONG_KEY,
    "SignatureDoesNotMatch": _WRONG_KEY,
    "AccessDenied": _ADVICE_BY_ERRNO[errno.EACCES],
    "403": f"check the key and the secret; if they are right, give this key {_RIGHTS}",
    "ExpiredToken": "the session token has expired: give a new one, in storage_options or in the environment",
    "RequestTimeTooSkewed": "set this machine's clock: it differs too much from the server's",
    "QuotaExceeded": _ADVICE_BY_ERRNO[errno.EDQUOT],
}
_OF_NAMES = {"KeyTooLongError", "InvalidBucketName", "InvalidObjectName", "ParamValidationError"}
# A server's 4xx blames the request, and repeating it is no use, but for these.
_PASSING_STATUS = (408, 409, 412, 425, 429)
_PASSING_CODES = {
    *("RequestTimeout", "SlowDown", "Throttling", "ThrottlingException", "TooManyRequests", "RequestLimitExceeded"),
    *("BadDigest", "IncompleteBody", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch"),  # damaged on the way
    "NoSuchUpload",  # the unfinished upload was swept away: the next attempt makes a new one
}
_REFUSED = "the server refuses this request: check the URL, the region and the other storage_options"
_NETWORK_MODULES = {
    *("botocore", "aiobotocore", "aiohttp", "urllib3", "requests", "google", "gcsfs", "azure", "fsspec"),
    "asyncio",  # whose TimeoutError is no OSError before Python 3.11
}


@dataclass(frozen=True)
class _Answer:
    """An exception that is one. Raised through tenacity it would refer to itself by its frames, and keep all of its
    callers' objects, a checkpointer and its writer process among them, until the garbage collector comes."""

    error: AlreadyThere | Missing


class RetryingStorage:
    """`Storage` around another one."""

    def __init__(
        self,
        inner: Storage,
        *,
        retry_s: float,
        scrub: Scrubber,
        sleep: Callable[[float], None] = time.sleep,
        answer_s: float | None = None,
    ) -> None:
        """answer_s: for the first answer to listing or looking up, all attempts together, whatever the client library
        waits for; a storage that has answered may take its time for a long list"""
        self._inner = inner
        self._retry_s = retry_s
        self._answer_s = answer_s
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
            if not self._is_there(key, data):
                raise
            self._call("create", key, lambda: make_durable(self._inner, key))

    def put(self, key: str, data: Buffer) -> None:
        self._call("write", key, lambda: self._inner.put(key, data))

    def put_lightly(self, key: str, data: Buffer) -> None:
        self._call("write", key, lambda: put_lightly(self._inner, key, data))

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        return self._call("read", key, lambda: self._inner.get(key, start, length))

    def get_into(self, key: str, target: memoryview) -> int:
        return self._call("read", key, lambda: get_into(self._inner, key, target))

    def map(self, key: str) -> memoryview | None:
        return self._call("read", key, lambda: map_object(self._inner, key))

    def list(self, prefix: str) -> dict[str, int]:
        return self._call("list", prefix, lambda: self._inner.list(prefix))

    def size(self, key: str) -> int:
        return self._call("look up", key, lambda: self._inner.size(key))

    def version(self, key: str) -> str:
        return self._call("look up", key, lambda: version(self._inner, key))

    def written_at(self, key: str) -> float | None:
        return self._call("look up", key, lambda: written_at(self._inner, key))

    def delete(self, key: str) -> None:
        self._call("delete", key, lambda: self._inner.delete(key))

    @property
    def deletes_at_once(self) -> int:
        return deletes_at_once(self._inner)

    def delete_many(self, keys: Sequence[str]) -> None:
        what = f"{keys[0]} and {len(keys) - 1} more" if len(keys) > 1 else "".join(keys)
        self._call("delete", what, lambda: delete_many(self._inner, keys))

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
        answered = self._tried(operation, key, act)
        if isinstance(answered, _Answer):
            try:
                raise answered.error
            finally:
                del answered
        return answered

    def _tried(self, operation: str, key: str, act: Callable[[], T]) -> T | _Answer:
        attempts: MutableSequence[str] = []
        begun_s = time.monotonic()

        def once() -> T | _Answer:
            try:
                if self._answer_s is None or operation not in _QUICK:
                    return act()
                answer = answer_within(begun_s + self._answer_s - time.monotonic(), act)
                self._answer_s = None
                return answer
            except (AlreadyThere, Missing) as answer:
                return _Answer(type(answer)(*answer.args))  # without frames, nor what it came of
            except Exception as error:
                code = error_code(error)
                answered = f" (the server says {code})" if code and code not in str(error) else ""
                attempts.append(self._scrub(f"{type(error).__name__}: {str(error) or _WITHOUT_WORDS}{answered}"))
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
            failed = self._failed(operation, key, attempts, advice(error), hopeless=_is_hopeless(error))
            # Its own text may hold what was scrubbed from ours: then the chain is cut.
            raise failed from (error if self._scrub(str(error)) == str(error) else None)

    def _failed(
        self, operation: str, key: str, attempts: Sequence[str], next_step: str | None, *, hopeless: bool
    ) -> StorageError:
        first = len(attempts) - len(attempts[-_SHOWN:]) + 1
        shown = "\n".join(f"  attempt {first + i}  {text}" for i, text in enumerate(attempts[-_SHOWN:]))
        within_s = max(self._retry_s, self._answer_s or 0.0) if operation in _QUICK else self._retry_s
        how = f"failed {len(attempts)} times within {within_s:g} s" if next_step is None else "cannot succeed"
        state, then = _AFTER[operation]
        return StorageError(
            f"{self.url}: {operation} {key or 'everything'} {how}\n{shown}\n"
            f"  state  {state}\n"
            f"  next   {next_step or f'see whether the storage can be reached; {then}'}",
            operation=operation,
            key=key,
            attempts=len(attempts),
            hopeless=hopeless,
        )


def advice(error: BaseException) -> str | None:
    """What to do about an error that trying again cannot heal, or None if it may heal."""
    code, status = error_code(error), _http_status(error)
    if code in _PASSING_CODES:
        return None
    for name in (code, type(error).__name__, type(error.__cause__).__name__):
        if name in _ADVICE_BY_NAME:
            return _ADVICE_BY_NAME[name]
    if isinstance(error, OSError):
        implied = {PermissionError: errno.EACCES, FileNotFoundError: errno.ENOENT, NotADirectoryError: errno.ENOTDIR}
        known = _ADVICE_BY_ERRNO.get(error.errno or implied.get(type(error), 0))
        if known is not None:
            return known
    return _REFUSED if status is not None and 400 <= status < 500 and status not in _PASSING_STATUS else None


def _is_hopeless(error: BaseException) -> bool:
    return getattr(error, "errno", None) == errno.ENAMETOOLONG or bool(
        {error_code(error), type(error).__name__} & _OF_NAMES
    )


def error_code(error: BaseException | None) -> str | None:
    """The server's own code, such as "NoSuchBucket", of an error of botocore's or of one that it caused."""
    for response in _responses(error):
        if isinstance(response.get("Error"), dict):
            return str(response["Error"].get("Code"))
    return None


def answered_at(error: BaseException | None) -> float | None:
    """When the server said so, in unix seconds by its own clock, where the answer tells."""
    for response in _responses(error):
        date = response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
        with suppress(TypeError, ValueError):
            return parsedate_to_datetime(date).timestamp()
    return None


def _http_status(error: BaseException) -> int | None:
    for response in _responses(error):
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        if isinstance(status, int):
            return status
    of_http = getattr(error, "status", None)  # aiohttp's ClientResponseError
    return of_http if isinstance(of_http, int) and type(error).__module__.startswith("aiohttp") else None


def _responses(error: BaseException | None) -> Iterator[dict[str, Any]]:
    """What the server answered, where botocore raised this error or the one behind it."""
    for one in (error, error.__cause__ if error else None):
        response: Any = getattr(one, "response", None)
        if isinstance(response, dict):
            yield response


def _of_storage(error: BaseException) -> bool:
    """Whether the storage failed, rather than somebody's code."""
    return isinstance(error, OSError) or type(error).__module__.split(".")[0] in _NETWORK_MODULES
