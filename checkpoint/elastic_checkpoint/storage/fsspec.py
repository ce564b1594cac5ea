"""Any fsspec URL as storage: s3, gcs, memory and others, held to the contract of base.py.

Listings are never cached: what another writer did a moment ago decides who may go on. Objects are visible when their
request is complete, which S3, GCS, Azure and memory give; where a filesystem shows half-written objects, the hashes in
manifests and claims tell them.

Conditional writes differ: s3fs raises FileExistsError for some servers and a plain OSError with the server's code for
others, some servers ignore the condition, some filesystems do not have it. So it is tried once, on a key of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import logging
import os
import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeGuard

import fsspec
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.cached import CachingFileSystem

from elastic_checkpoint.storage.base import AlreadyThere, Buffer, Missing, NotDeleted, batches
from elastic_checkpoint.storage.failures import error_code
from elastic_checkpoint.storage.ranges import RANGE_BYTES, in_ranges, one_range
from elastic_checkpoint.storage.redact import redact
from elastic_checkpoint.storage.s3 import DELETED_AT_ONCE, is_s3, leave_retries_to_us, list_objects, protocols

_CONFLICT = ("PreconditionFailed", "412")
_ONE_REQUEST = {"chunksize": 2**31}  # s3fs: anything smaller than twice this is a single PUT
# What filesystems call an object's size, its entity tag and when it was written.
_TELL_TIMES = ("LastModified", "last_modified", "updated", "mtime", "created")
_TELL_VERSIONS = ("size", "ETag", "etag", "generation", *_TELL_TIMES)


_ABSENT = (404, 410)
_ONLY_READ = {"http", "https"}

_CONNECT_S, _READ_S = 5.0, 15.0

_log = logging.getLogger("elastic_checkpoint")
_checking = threading.Lock()  # "look, then write" within one process; memory:// is never shared by more


class FsspecStorage:
    """`Storage` at an fsspec URL. Connects at the first operation, anew in a forked child."""

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        self._full_url = url
        self._options = options
        self._opened: tuple[int, Any, str] | None = None  # process id, filesystem, path of the root
        self._exclusive: bool | None = None

    @property
    def url(self) -> str:
        return redact(self._full_url)

    def put_new(self, key: str, data: Buffer) -> None:
        if self.exclusive():
            self._create(key, data)
            return
        with _checking:
            filesystem, path = self._at(key)
            if self._is_there(key):
                raise AlreadyThere(key)
            filesystem.pipe_file(path, bytes(data), **self._one_request(filesystem))
        if self._read_back(key) != data:
            raise AlreadyThere(key)

    def put(self, key: str, data: Buffer) -> None:
        filesystem, path = self._at(key)
        filesystem.pipe_file(path, data if is_s3(filesystem) and not isinstance(data, memoryview) else bytes(data))

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        filesystem, path = self._at(key)
        if length == 0:
            return b""
        try:
            if filesystem.async_impl and length is not None and length > RANGE_BYTES:
                parts = in_ranges(filesystem, path, start, length)
                if parts is not None:
                    return b"".join(parts)
            if is_s3(filesystem) and length is None:
                # Asked for all of it, s3fs looks its size up first. Few objects that are read so are larger than this.
                data = one_range(filesystem, path, start, RANGE_BYTES)
                if len(data) < RANGE_BYTES:
                    return data
                begun = start + len(data)
                return data + self.get(key, begun, max(0, self.size(key) - begun))
            if is_s3(filesystem) and length is not None:
                return one_range(filesystem, path, start, length)
            end = None if length is None else start + length
            found: bytes = filesystem.cat_file(path, start=start or None, end=end)
        except FileNotFoundError as error:
            raise self._missing(key, error) from None
        return found

    def get_into(self, key: str, target: memoryview) -> int:
        """See base.get_into."""
        filesystem, path = self._at(key)
        parts = None
        try:
            if len(target) > RANGE_BYTES and filesystem.async_impl:
                parts = in_ranges(filesystem, path, 0, len(target) + 1)  # one more tells a larger object
        except FileNotFoundError as error:
            raise self._missing(key, error) from None
        if parts is None:
            size = self.size(key)
            if size != len(target):
                return size
            parts = [self.get(key, 0, size)]
        elif sum(map(len, parts)) > len(target):
            return self.size(key)
        found = 0
        for part in parts:
            target[found : found + len(part)] = part
            found += len(part)
        return found

    def list(self, prefix: str) -> dict[str, int]:
        filesystem, path = self._at(prefix) if prefix else self._root()
        filesystem.invalidate_cache()
        *_, behind = _layers(filesystem)
        if is_s3(behind):
            return list_objects(behind, path, self._root()[1])
        try:
            found = (
                _found_by_walking(filesystem, path) if _hides_errors(filesystem) else filesystem.find(path, detail=True)
            )
        except OSError as error:  # some filesystems have no FileNotFoundError of their own
            if not isinstance(error, FileNotFoundError) and error.errno != errno.ENOENT:
                raise
            return {}
        if not found and _ONLY_READ & set(protocols(behind)):
            self._refuse_who_has_anything(f"{prefix}/{secrets.token_hex(8)}".lstrip("/"))
        root = self._root()[1]
        sizes = {name[len(root) :].lstrip("/"): info["size"] for name, info in found.items() if info["type"] == "file"}
        return dict(sorted(sizes.items()))

    def size(self, key: str) -> int:
        filesystem, path = self._at(key)
        try:
            if is_s3(filesystem):  # s3fs's own `info` lists, too, where there is no object
                bucket, _, name = path.partition("/")
                return int(filesystem.call_s3("head_object", Bucket=bucket, Key=name)["ContentLength"])
        except FileNotFoundError as error:
            raise self._missing(key, error) from None
        return int(self._info(key)["size"])

    def version(self, key: str) -> str:
        """See base.version."""
        info = self._info(key)
        return ", ".join(f"{name} {info[name]}" for name in _TELL_VERSIONS if info.get(name) is not None)

    def written_at(self, key: str) -> float | None:
        """See base.written_at."""
        info = self._info(key)
        found = next((info[name] for name in _TELL_TIMES if info.get(name) is not None), None)
        if isinstance(found, datetime):
            return found.timestamp()
        return float(found) if isinstance(found, int | float) else None

    def delete(self, key: str) -> None:
        filesystem, path = self._at(key)
        with contextlib.suppress(FileNotFoundError):
            filesystem.rm_file(path)

    @property
    def deletes_at_once(self) -> int:
        """See base.deletes_at_once."""
        return DELETED_AT_ONCE if is_s3(self._root()[0]) else 1

    def delete_many(self, keys: Sequence[str]) -> None:
        """See base.delete_many."""
        filesystem, root = self._root()
        bucket = root.partition("/")[0]
        names = {self._at(key)[1][len(bucket) + 1 :]: key for key in keys}
        for some in batches(list(names), DELETED_AT_ONCE):
            asked = {"Objects": [{"Key": name} for name in some], "Quiet": True}
            answer = filesystem.call_s3("delete_objects", Bucket=bucket, Delete=asked)  # s3fs's own drops the errors
            if answer.get("Errors"):
                raise NotDeleted([(names.get(error.get("Key"), "?"), error) for error in answer["Errors"]])

    def tidy(self, older_than_s: float) -> tuple[str, ...]:
        filesystem, root = self._root()
        if not is_s3(filesystem):
            return ()
        bucket, _, prefix = root.partition("/")
        listed = filesystem.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=f"{prefix}/" if prefix else "")
        removed = []
        for upload in listed.get("Uploads", ()):
            if time.time() - upload["Initiated"].timestamp() >= older_than_s:
                which = {"Bucket": bucket, "Key": upload["Key"], "UploadId": upload["UploadId"]}
                filesystem.call_s3("abort_multipart_upload", **which)
                removed.append(f"{upload['Key'][len(prefix) :].lstrip('/')} (unfinished upload)")
        return tuple(removed)

    def exclusive(self) -> bool:
        if self._exclusive is None:
            if _ONLY_READ & {name for one in _layers(self._root()[0]) for name in protocols(one)}:
                raise self._only_reads()  # fsspec writes to some of these servers, and removes from none
            key = f"claims/probe-{secrets.token_hex(8)}"
            try:
                try:
                    self._exclusive = self._honours_create(key)
                finally:
                    self.delete(key)
            except NotImplementedError as error:
                self._exclusive = None
                raise self._only_reads() from error
            if self._exclusive:  # what is lacking, and what follows from it, whoever claims says
                _log.info("%s creates an object only if it is absent: tried with %s", self.url, key)
        return self._exclusive

    def close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is None or opened[0] != os.getpid() or not is_s3(opened[1]):
            return
        filesystem = opened[1]
        if filesystem._s3 is not None:
            filesystem.close_session(filesystem.loop, filesystem._s3)

    def _only_reads(self) -> OSError:
        return io.UnsupportedOperation(f"fsspec's {self.url.partition('://')[0]}:// only reads")

    def _honours_create(self, key: str) -> bool:
        """Return whether a second create of this key, which nobody else has, is refused and changes nothing."""
        try:
            with contextlib.suppress(AlreadyThere):  # only we know the key: an answer was lost
                self._create(key, b"first")
        except (TypeError, ValueError, NotImplementedError):
            return False  # a filesystem without the argument
        except OSError as error:
            if error_code(error) in ("NotImplemented", "501", "InvalidArgument", "InvalidRequest"):
                return False  # a server without the condition
            raise
        try:
            self._create(key, b"second")
        except AlreadyThere:
            return self._read_back(key) == b"first"
        return False

    def _read_back(self, key: str) -> bytes:
        """Return what was just created. Raises OSError if reading finds nothing."""
        try:
            return self.get(key)
        except Missing:
            raise OSError(
                f"{key} was just created here, and reading it finds nothing: who writes to a run must see at once what "
                "was written"
            ) from None

    def _refuse_who_has_anything(self, key: str) -> None:
        """Raise OSError where there is an object of this name, which nobody has made."""
        # A login page, or the like, answers whatever is asked, and an empty listing of its says nothing.
        if self._is_there(key):
            raise OSError(f"what answers here has whatever it is asked for, {key}, too: it is no folder of files")

    def _create(self, key: str, data: Buffer) -> None:
        """Create the object by the storage's own condition. Raises AlreadyThere."""
        filesystem, path = self._at(key)
        try:
            with _checking if "memory" in protocols(filesystem) else contextlib.nullcontext():
                filesystem.pipe_file(path, bytes(data), mode="create", **self._one_request(filesystem))
        except FileExistsError:
            raise AlreadyThere(key) from None
        except OSError as error:
            if error_code(error) in _CONFLICT:
                raise AlreadyThere(key) from None
            raise

    def _info(self, key: str) -> dict[str, Any]:
        """Return what fsspec tells of the object, asked for anew. Raises Missing, also for what is no file."""
        filesystem, path = self._at(key)
        try:
            filesystem.invalidate_cache()
            info: dict[str, Any] = filesystem.info(path)
        except FileNotFoundError as error:
            raise self._missing(key, error) from None
        if info["type"] != "file":
            raise Missing(key)
        return info

    def _is_there(self, key: str) -> bool:
        """Return whether the object is there. Raises whatever else goes wrong."""
        # fsspec's own `exists` takes any failure for absence, and we would write over what is there.
        try:
            self.size(key)
        except Missing:
            return False
        return True

    def _missing(self, key: str, error: FileNotFoundError) -> Exception:
        """Return the error to raise for what fsspec did not find: Missing, unless the server or its bucket is."""
        filesystem, path = self._at(key)
        if isinstance(filesystem, CachingFileSystem):  # to whom any failure is absence: who is behind it knows more
            try:
                filesystem.fs.info(path)
                return OSError(errno.EAGAIN, "its cache has not seen what is there", key)
            except FileNotFoundError as looked:
                error = looked
        if (cause := error.__cause__) is not None and _is_no_answer(cause):
            return cause
        return error if error_code(error) == "NoSuchBucket" else Missing(key)

    def _one_request(self, filesystem: Any) -> dict[str, int]:
        return _ONE_REQUEST if is_s3(filesystem) else {}

    def _root(self) -> tuple[Any, str]:
        """Return the filesystem and the run's path in it. A forked child opens its own: connections are not shared."""
        if self._opened is None or self._opened[0] != os.getpid():
            filesystem, path = fsspec.core.url_to_fs(self._full_url, **_all_options(self._full_url, self._options))
            for one in _layers(filesystem):
                if is_s3(one):
                    leave_retries_to_us(one)
            self._opened = os.getpid(), filesystem, path.rstrip("/")
        return self._opened[1], self._opened[2]

    def _at(self, key: str) -> tuple[Any, str]:
        """Return the filesystem and the key's path in it. Raises ValueError for what is no key."""
        if not key or any(part in ("", ".", "..") for part in key.split("/")):
            raise ValueError(f"{key!r} is not a key: keys are relative and stay below the run's folder")
        filesystem, root = self._root()
        return filesystem, f"{root}/{key}"


def _all_options(url: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options as fsspec takes them: of the first protocol, and in a chain each other's under its name."""
    fresh = {"use_listings_cache": False, "skip_instance_cache": True}
    first, *others = [part.partition("://")[0] for part in url.split("::")]
    known = fsspec.available_protocols()
    beneath = {name: {**_limits(name), **given.get(name, {}), **fresh} for name in others if name in known}
    return {**_limits(first), **given, **beneath, **fresh}


def _layers(filesystem: Any) -> Iterator[Any]:
    """Yield a filesystem, and those that it is a cache or a view of, one beneath the other."""
    while isinstance(filesystem, fsspec.AbstractFileSystem):  # pyarrow's have another filesystem beneath
        yield filesystem
        filesystem = getattr(filesystem, "fs", None)


def _limits(protocol: str) -> dict[str, Any]:
    """Return options that limit waiting on a connection."""
    if protocol not in ("http", "https"):
        return {}  # s3fs has the same by itself, and aiohttp 5 minutes for a whole request
    from aiohttp import ClientTimeout

    return {"client_kwargs": {"timeout": ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=_READ_S)}}


def _is_no_answer(cause: BaseException) -> TypeGuard[Exception]:
    """Return whether a server did not answer: fsspec's http:// takes whatever went wrong for an absence."""
    if isinstance(cause, (TimeoutError, asyncio.TimeoutError, ConnectionError)):
        return True
    of_http = type(cause).__module__.startswith("aiohttp")
    return of_http and getattr(cause, "status", 500) not in _ABSENT


def _hides_errors(filesystem: Any) -> bool:
    """Return whether `find` is fsspec's own, which takes a server that cannot be reached for an empty folder."""
    if isinstance(filesystem, AsyncFileSystem):
        return type(filesystem)._find is AsyncFileSystem._find
    # Of the instance: one that caches another's files has that one's.
    return getattr(filesystem.find, "__func__", None) is fsspec.AbstractFileSystem.find


def _found_by_walking(filesystem: Any, path: str) -> dict[str, dict[str, Any]]:
    """List all files as `find` does, but raise the first error. Raises FileNotFoundError where nothing is there."""
    found, folders = {}, []
    for info in filesystem.ls(path, detail=True):
        if info["type"] == "directory" and info["name"].rstrip("/") != path.rstrip("/"):
            folders.append(info["name"])
        elif info["type"] != "directory":
            found[info["name"]] = info
    for folder in folders:
        with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile
            found.update(_found_by_walking(filesystem, folder))
    return found
