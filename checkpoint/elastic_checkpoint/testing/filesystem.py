"""`faulty://`: any fsspec filesystem, with faults between it and its user.

    write   pipe_file, put_file, a file opened with "wb" or "xb" when it is closed      read  cat_file, reads of a file
    list    ls, find, and what is made of them: walk, glob, du, expand_path             look  info, exists, modified
    delete  rm_file, and rm for each file

A copy is a read and a write. Folders are made and removed without faults. What fsspec's interface does not know goes to
the target untouched. A written file is held in memory until it is closed.
"""

from __future__ import annotations

import errno
import io
import os
from typing import Any

import fsspec
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from elastic_checkpoint.testing.fault_plan import Plan, ShortRead, StaleList, TornWrite
from elastic_checkpoint.testing.faulty_storage import Faults, Listings


class FaultyFileSystem(AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """See the file's promise; `Faults.around` makes a URL and options for it.

    target_protocol, target_options  the filesystem underneath
    faults  what goes wrong: a `Faults`, shared with whoever holds it; or a `Plan` or its `document()`, for a count of
            this filesystem's own
    record  where `faults` is a plan: a file that gets a line for each fault that strikes
    """

    protocol: str | tuple[str, ...] = "faulty"
    cachable = False  # two tests with equal plans are two

    def __init__(
        self,
        target_protocol: str,
        target_options: dict[str, Any] | None = None,
        *,
        faults: Faults | Plan | dict[str, Any],
        record: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if isinstance(faults, dict):
            faults = Plan.from_document(faults)
        self.faults = Faults(faults, record=record) if isinstance(faults, Plan) else faults
        caching = {"use_listings_cache": options["use_listings_cache"]} if "use_listings_cache" in options else {}
        self.target: Any = fsspec.filesystem(
            target_protocol, **{**(target_options or {}), **caching, "skip_instance_cache": True}
        )
        beneath = self.target.protocol
        self.protocol = ("faulty", *([beneath] if isinstance(beneath, str) else beneath))
        self._listings = Listings()

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        path = os.fspath(path).removeprefix("faulty://")
        return path.rstrip("/") or ("/" if path.startswith("/") else "")

    def __getattr__(self, name: str) -> Any:
        if name == "target" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.target, name)

    def pipe_file(self, path: str, value: Any, mode: str = "overwrite", **options: Any) -> None:
        path = self._strip_protocol(path)
        if mode != "overwrite":
            options["mode"] = mode
        with self.faults.during("write", path) as fault:
            if isinstance(fault, TornWrite):
                value = bytes(_first(value, fault.keep))
            self.target.pipe_file(path, value, **options)
            if isinstance(fault, TornWrite) and not fault.silent:
                raise OSError(errno.EIO, "the write ended halfway (on purpose)", path)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> Any:
        path = self._strip_protocol(path)
        with self.faults.during("read", path) as fault:
            data = self.target.cat_file(path, start=start, end=end, **options)
            return _first(data, fault.keep) if isinstance(fault, ShortRead) else data

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        found = self._listed("ls", path, detail=detail, **options)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return found

    def find(self, path: str, maxdepth: int | None = None, withdirs: bool = False, **options: Any) -> Any:
        detail = options.pop("detail", False)
        found = self._listed("find", path, maxdepth=maxdepth, withdirs=withdirs, detail=detail, **options)
        return ({} if detail else []) if found is None else found

    def info(self, path: str, **options: Any) -> Any:
        path = self._strip_protocol(path)
        with self.faults.during("look", path):
            return self.target.info(path, **options)

    def exists(self, path: str, **options: Any) -> bool:
        try:
            self.info(path, **options)
        except FileNotFoundError:
            return False
        return True

    def created(self, path: str) -> Any:
        with self.faults.during("look", self._strip_protocol(path)):
            return self.target.created(self._strip_protocol(path))

    def modified(self, path: str) -> Any:
        with self.faults.during("look", self._strip_protocol(path)):
            return self.target.modified(self._strip_protocol(path))

    def rm_file(self, path: str) -> None:
        path = self._strip_protocol(path)
        with self.faults.during("delete", path):
            self.target.rm_file(path)

    def _rm(self, path: str) -> None:
        self.rm_file(path)

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        for one in reversed(self.expand_path(path, recursive=recursive, maxdepth=maxdepth)):
            if self.target.isdir(one):
                self.target.rmdir(one)
            elif not recursive or self.target.exists(one):  # folders of objects go with the last of them
                self.rm_file(one)

    def cp_file(self, path1: str, path2: str, **options: Any) -> None:
        if self.target.isdir(self._strip_protocol(path1)):
            self.makedirs(path2, exist_ok=True)
        else:
            self.pipe_file(path2, self.cat_file(path1), **options)

    def mkdir(self, path: str, create_parents: bool = True, **options: Any) -> None:
        self.target.mkdir(self._strip_protocol(path), create_parents=create_parents, **options)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        self.target.makedirs(self._strip_protocol(path), exist_ok=exist_ok)

    def rmdir(self, path: str) -> None:
        self.target.rmdir(self._strip_protocol(path))

    def invalidate_cache(self, path: str | None = None) -> None:
        self.target.invalidate_cache(path)

    def _open(self, path: str, mode: str = "rb", autocommit: bool = True, **options: Any) -> Any:
        if mode == "rb":
            return _Reading(self, path, cache_type="none")
        if mode in ("wb", "xb"):
            return _Writing(self, path, exclusive=mode == "xb", autocommit=autocommit)
        raise NotImplementedError(f"{path}: a faulty filesystem opens files to read or to write anew, not {mode!r}")

    def _listed(self, method: str, path: str, **options: Any) -> Any:
        """Return the target's answer or, where it is to be stale, the last one: None if there is none."""
        path = self._strip_protocol(path)
        question = (method, path, repr(sorted(options.items())))
        with self.faults.during("list", path) as fault:
            if isinstance(fault, StaleList):
                return self._listings.recall(question)
            found = getattr(self.target, method)(path, **options)
            if any(isinstance(rule, StaleList) for rule in self.faults.plan.rules):
                self._listings.remember(question, found)
            return found


class _Reading(AbstractBufferedFile):  # type: ignore[misc]
    def _fetch_range(self, start: int, end: int) -> Any:
        return self.fs.cat_file(self.path, start=start, end=end)


class _Writing(io.BytesIO):
    """Becomes an object when it is closed or, in a transaction, when that is complete."""

    def __init__(self, filesystem: FaultyFileSystem, path: str, *, exclusive: bool, autocommit: bool) -> None:
        super().__init__()
        self._filesystem, self._path = filesystem, path
        self._mode = "create" if exclusive else "overwrite"
        self._autocommit = autocommit
        self._data: bytes | None = None

    def close(self) -> None:
        if self.closed:
            return
        self._data = self.getvalue()
        super().close()
        if self._autocommit:
            self.commit()

    def commit(self) -> None:
        data, self._data = self._data, None
        if data is not None:
            self._filesystem.pipe_file(self._path, data, mode=self._mode)

    def discard(self) -> None:
        self._data = None


def _first(data: Any, keep: float) -> memoryview | bytes:
    """Return the first bytes of `data`, never all of them unless there are none."""
    kept = min(int(len(data) * keep), max(0, len(data) - 1))
    return memoryview(data)[:kept] if not isinstance(data, bytes) else data[:kept]


fsspec.register_implementation("faulty", FaultyFileSystem, clobber=True)
