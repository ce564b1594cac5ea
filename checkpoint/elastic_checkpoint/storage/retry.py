"""Tries again what may heal, gives up at once on what cannot, and says what was tried.

Transient (the network, a timeout, a busy or broken server, an I/O error) backs off with jitter up to a deadline.
Permanent (no rights, no bucket, a full disk, whatever else a server blames on the request) fails at the first attempt,
with advice. Either way the caller sees one `StorageError`, free of credentials. `AlreadyThere` and `Missing` are
answers, and pass through.
"""

from __future__ import annotations

import time
from collections.abc import Callable, MutableSequence, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tenacity import Retrying, retry_if_exception, stop_before_delay, wait_random_exponential

from elastic_checkpoint.errors import StorageError
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
from elastic_checkpoint.storage.failures import advice, error_code, is_hopeless, is_of_storage
from elastic_checkpoint.storage.reads import answer_within
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


@dataclass(frozen=True)
class _Answer:
    """An exception that is an answer, kept as a value.

    Raised through tenacity it would refer to itself by its frames, and keep all of its callers' objects, a checkpointer
    and its writer process among them, until the garbage collector comes.
    """

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
        """Retry what this storage does.

        answer_s  for the first answer to listing or looking up, all attempts together, whatever the client library
                  waits for; a storage that has answered may take its time for a long list
        """
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
        """Return whether the object is there, with these bytes."""
        try:
            return self.size(key) == memoryview(data).nbytes and self.get(key) == data
        except Missing:
            return False

    def _call(self, operation: str, key: str, act: Callable[[], T]) -> T:
        """Do an operation, as often as it takes. Raises StorageError, and the answers AlreadyThere and Missing."""
        answered = self._tried(operation, key, act)
        if isinstance(answered, _Answer):
            try:
                raise answered.error
            finally:
                del answered
        return answered

    def _tried(self, operation: str, key: str, act: Callable[[], T]) -> T | _Answer:
        """Do as `_call` does, but return an answer instead of raising it."""
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
            retry=retry_if_exception(lambda error: is_of_storage(error) and advice(error) is None),
            stop=stop_before_delay(self._retry_s),
            wait=wait_random_exponential(multiplier=_FIRST_WAIT_S, max=_LONGEST_WAIT_S),
            sleep=self._sleep,
            reraise=True,
        )
        try:
            return retrying(once)
        except Exception as error:
            if not is_of_storage(error):
                raise
            failed = self._failed(operation, key, attempts, advice(error), hopeless=is_hopeless(error))
            # Its own text may hold what was scrubbed from ours: then the chain is cut.
            raise failed from (error if self._scrub(str(error)) == str(error) else None)

    def _failed(
        self, operation: str, key: str, attempts: Sequence[str], next_step: str | None, *, hopeless: bool
    ) -> StorageError:
        """Return the error of an operation that was given up, with its last attempts and what to do next."""
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
