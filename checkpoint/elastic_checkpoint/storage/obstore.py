"""S3 through obstore (Rust's object_store), where it is asked for: storage_options={"client": "obstore", ...}.

Beside s3fs it took a fifth of the processor for writes, a third for reads and a tenth for small requests, and less time
for each (tests/benchmarks/storages_s3.py). What it lacks goes through s3fs: looking for unfinished uploads, servers
without conditional writes, and everything in a forked child of a process that has used it, since its threads are not
in the child. It finds credentials in the options, in the environment and at the cloud's own address, not in ~/.aws.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from elastic_checkpoint.errors import CheckpointError
from elastic_checkpoint.storage.base import AlreadyThere, Buffer, Missing
from elastic_checkpoint.storage.fsspec import FsspecStorage
from elastic_checkpoint.storage.ranges import joined, ranges
from elastic_checkpoint.storage.redact import redact
from elastic_checkpoint.storage.s3 import DELETED_AT_ONCE

T = TypeVar("T")

_AT_ONCE = 4  # requests for one object
_PART_BYTES = 16 * 2**20  # of uploads of more than two of these
_REQUEST_S = 120  # for a whole request, of at most so many bytes
_CONNECT_S = 10
_KNOWN = {"endpoint_url", "key", "secret", "token", "anon", "client_kwargs"}
_KNOWN_TO_CLIENT = {"endpoint_url", "region_name"}
_PLAIN = re.compile(r"[A-Za-z0-9_./=,:@+ -]*")  # others are written in other ways by object_store and by s3fs
_CODE = re.compile(r"<Code>(\w+)</Code>")
_STATUS = re.compile(r"status code: (\d{3})")

_used_in: set[int] = set()  # ids of the processes, of which this one is a child or the same, in which obstore has run


class ServerRefused(OSError):
    """obstore's error, as a client library of Python's would have it.

    response  with the server's code and the status of its answer, where the error's text tells them
    """

    def __init__(self, error: Exception) -> None:
        text = str(error)
        super().__init__(f"{type(error).__name__}: {text.partition('Debug source')[0].strip()}")
        code, status = _CODE.search(text), _STATUS.search(text)
        self.response: dict[str, Any] = {}
        if code is not None:
            self.response["Error"] = {"Code": code[1]}
        elif status is not None:
            self.response["Error"] = {"Code": status[1]}
        if status is not None:
            self.response["ResponseMetadata"] = {"HTTPStatusCode": int(status[1])}

    @property
    def code(self) -> str:
        return str(self.response.get("Error", {}).get("Code"))


class ObstoreStorage:
    """`Storage` at an s3:// URL."""

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        """Contact nothing yet. Raises `CheckpointError` where this URL or these options are not for obstore."""
        self._full_url = url
        self._s3fs = FsspecStorage(url, options)
        self._bucket, self._prefix, self._config = _translated(url, options)
        try:
            self._obstore: Any = importlib.import_module("obstore")
            self._stores: Any = importlib.import_module("obstore.store")
        except ImportError as error:
            raise CheckpointError(
                f"storage_options ask for the client obstore, which is not installed: {error}\n"
                "  next  pip install obstore, or leave the option out"
            ) from error
        self._opened: Any = None

    @property
    def url(self) -> str:
        return redact(self._full_url)

    def put_new(self, key: str, data: Buffer) -> None:
        if self._forked() or not self.exclusive():
            self._s3fs.put_new(key, data)
            return
        self._do(key, lambda store: self._obstore.put(store, key, data, mode="create", use_multipart=False))

    def put(self, key: str, data: Buffer) -> None:
        if self._forked():
            self._s3fs.put(key, data)
            return
        several = len(data) > 2 * _PART_BYTES
        how = {"use_multipart": several, "chunk_size": _PART_BYTES, "max_concurrency": _AT_ONCE}
        self._do(key, lambda store: self._obstore.put(store, key, data, **how))

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        if self._forked():
            return self._s3fs.get(key, start, length)
        if length is None and not start:
            return self._do(key, lambda store: bytes(self._obstore.get(store, key).bytes()))
        if length is None:
            length = max(0, self.size(key) - start)
        parts = self._ranges(key, start, length, lambda at, part: part)
        return b"".join(map(bytes, parts)) if parts is not None else self._s3fs.get(key, start, length)

    def get_into(self, key: str, target: memoryview) -> int:
        """See base.get_into."""

        def put_into_place(at: int, part: Any) -> Any:
            if at + len(part) <= len(target):
                target[at : at + len(part)] = memoryview(part)
            elif at < len(target):
                target[at:] = memoryview(part)[: len(target) - at]
            return range(len(part))  # as long as the part

        if self._forked():
            return self._s3fs.get_into(key, target)
        parts = self._ranges(key, 0, len(target) + 1, put_into_place)  # one more tells a larger object
        found = sum(map(len, parts)) if parts is not None else len(target) + 1
        return found if found <= len(target) else self.size(key)

    def list(self, prefix: str) -> dict[str, int]:
        if self._forked():
            return self._s3fs.list(prefix)
        if prefix:
            _check(prefix)
        found = self._do(
            None, lambda store: [one for some in self._obstore.list(store, prefix or None) for one in some]
        )
        if not found:  # any XML is an empty listing to obstore, a login page's, too
            return self._s3fs.list(prefix)
        return {one["path"]: int(one["size"]) for one in sorted(found, key=lambda one: str(one["path"]))}

    def size(self, key: str) -> int:
        if self._forked():
            return self._s3fs.size(key)
        return int(self._do(key, lambda store: self._obstore.head(store, key))["size"])

    def version(self, key: str) -> str:
        """See base.version."""
        return self._s3fs.version(key)

    def written_at(self, key: str) -> float | None:
        """See base.written_at."""
        return self._s3fs.written_at(key)

    def delete(self, key: str) -> None:
        self.delete_many([key])

    @property
    def deletes_at_once(self) -> int:
        """See base.deletes_at_once."""
        return DELETED_AT_ONCE

    def delete_many(self, keys: Sequence[str]) -> None:
        """See base.delete_many."""
        for key in keys:
            _check(key)
        if self._forked():
            self._s3fs.delete_many(keys)
        elif keys:
            self._do(None, lambda store: self._obstore.delete(store, list(keys)))

    def tidy(self, older_than_s: float) -> tuple[str, ...]:
        return self._s3fs.tidy(older_than_s)

    def exclusive(self) -> bool:
        return self._s3fs.exclusive()  # the condition is the server's

    def close(self) -> None:
        self._opened = None
        self._s3fs.close()

    def _ranges(self, key: str, start: int, length: int, take: Callable[[int, Any], Any]) -> Sequence[Any] | None:
        """Read ranges at once; return what `take` makes of each and of its place, or None as `joined` does."""
        _check(key)
        if not length:
            return []
        wanted = ranges(start, length)

        def one(first: int, end: int) -> Any:
            try:
                part = self._do(key, lambda store: self._obstore.get_range(store, key, start=first, end=end))
            except ServerRefused as error:
                if error.code not in ("InvalidRange", "416"):
                    raise
                part = b""
            return take(first - start, part)

        if len(wanted) == 1:
            return joined([one(*wanted[0])], wanted)
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="checkpoint-obstore") as pool:
            return joined(list(pool.map(lambda pair: one(*pair), wanted)), wanted)

    def _do(self, key: str | None, act: Callable[[Any], T]) -> T:
        """Call `act` with the store, and raise obstore's errors as Missing, AlreadyThere or ServerRefused."""
        if key is not None:
            _check(key)
        try:
            return act(self._store())
        except FileNotFoundError as error:
            refused = ServerRefused(error)
            if refused.code == "NoSuchBucket" or key is None:
                raise refused from None
            raise Missing(key) from None
        except Exception as error:
            if type(error).__name__ == "AlreadyExistsError":
                raise AlreadyThere(str(key)) from None
            if type(error).__module__.startswith("obstore"):
                raise ServerRefused(error) from None
            raise

    def _store(self) -> Any:
        """Return obstore's client, made at its first use in this process."""
        if self._opened is None:
            _used_in.add(os.getpid())
            self._opened = self._stores.S3Store(self._bucket, prefix=self._prefix or None, **self._config)
        return self._opened

    def _forked(self) -> bool:
        """Return whether a parent of this process has used obstore, and this one has not: its threads are not here."""
        return bool(_used_in) and os.getpid() not in _used_in


def _translated(url: str, options: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
    """Return bucket, prefix, and what obstore calls the options that s3fs knows. Raises `CheckpointError`."""
    protocol, _, path = url.partition("://")
    bucket, _, prefix = path.rstrip("/").partition("/")
    client = options.get("client_kwargs") or {}
    foreign = sorted({*options} - _KNOWN) + sorted(f"client_kwargs.{name}" for name in {*client} - _KNOWN_TO_CLIENT)
    why = None
    if protocol not in ("s3", "s3a"):
        why = f"obstore is for s3:// URLs here, and this is {protocol}://"
    elif not _PLAIN.fullmatch(prefix):
        why = "the URL holds characters that obstore writes in another way than s3fs"
    elif foreign:
        why = f"these options are s3fs's own: {', '.join(foreign)}"
    if why is not None:
        raise CheckpointError(f"the client obstore cannot be used: {why}\n  next  leave the option `client` out")
    endpoint = options.get("endpoint_url") or client.get("endpoint_url")
    config: dict[str, Any] = {
        "access_key_id": options.get("key"),
        "secret_access_key": options.get("secret"),
        "session_token": options.get("token"),
        "region": client.get("region_name"),
        "endpoint": endpoint,
        "virtual_hosted_style_request": False if endpoint else None,
        "skip_signature": True if options.get("anon") else None,
    }
    if endpoint and config["region"] is None:
        config["region"] = "us-east-1"
    config = {name: value for name, value in config.items() if value is not None}
    config["client_options"] = {
        "timeout": f"{_REQUEST_S}s",
        "connect_timeout": f"{_CONNECT_S}s",
        "allow_http": bool(endpoint and str(endpoint).startswith("http://")),
    }
    config["retry_config"] = {"max_retries": 0}  # retry.py decides
    return bucket, prefix, config


def _check(key: str) -> None:
    if not key or not _PLAIN.fullmatch(key) or any(part in ("", ".", "..") for part in key.split("/")):
        raise ValueError(f"{key!r} is not a key: keys are relative and stay below the run's folder")
