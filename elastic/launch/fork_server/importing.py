"""What a process did while it imported that its forks must not have in common, and who did it.

variables    of a worker, or of a rank: they are absent here, and each worker has its own. Of a module that looks
             through all variables only what it keeps counts: many look for those that begin with their name
threads      do not live on in a fork
files        that are read, and connections: forks share the place where they are read
folders      of tempfile, made for one process: whichever fork ends first removes them
CUDA         cannot be used in a fork of a process that has initialised it, or only asked its runtime for GPUs
"""

from __future__ import annotations

import fcntl
import gc
import importlib.util
import os
import shutil
import sys
import sysconfig
import tempfile
import threading
import weakref
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from elastic_checkpoint import linux

RANK_VARIABLES = (
    *("RANK", "WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT"),
)
"""A worker's place in torchrun's world, or in its replica's; one that has entered a run has none but by its view."""
WORKER_VARIABLES = (
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "ELASTIC_CHANNEL",
    "ELASTIC_PROGRESS",
    "ELASTIC_TOKEN",
    "ELASTIC_RESTART",
    "ELASTIC_ORDERED",
    "ELASTIC_REPLICA",
    "ELASTIC_WORLD",
)
"""What differs between the workers of a node, or from the process that they are forked from."""

NVML_CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"
"""With it torch counts GPUs by the driver's library, so that `torch.cuda.is_available()` leaves forks able to use them.
docs.pytorch.org/docs/stable/generated/torch.cuda.is_available.html"""

ARROW_MALLOC = "JE_ARROW_MALLOC_CONF"
"""By it the allocator of pyarrow, which `datasets` imports, starts no thread as it is loaded; memory then goes back to
the system a little later. jemalloc.net/jemalloc.3.html, opt.background_thread"""

_ASKED_AGAIN_LATER = ("lightning.fabric.utilities.rank_zero", "torchmetrics.utilities.prints")
"""Modules that look, as they are imported, for who is to print, and are told so again by a Trainer's strategy."""

_COUNTING_GPUS = ("/dev/nvidiactl", *(f"/dev/nvidia{number}" for number in range(10)))
"""What the driver's library opens to count them. CUDA itself opens /dev/nvidia-uvm, too, whoever initialises it."""

_HARMLESS = ("/dev/null", "/dev/urandom", "/dev/random", "anon_inode:", *_COUNTING_GPUS)
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_OF_WATCHED = {"os", "collections.abc", "_collections_abc", "tempfile", __name__}


_STANDS_FOR_ALL = "ELASTIC_STANDS_FOR_A_WORKERS_VARIABLES"
"""A variable that only those find who look through all, with a value of which it is seen whether they keep it."""


class _Value(str):
    """The value of that variable, a new one each time: no str of Python's own can be referred to weakly."""


class Importing:
    """Watches imports: the environment and new folders within `with`, threads and files from its making on.

    found()        what forks must not share, in words, since the last time it was asked; None: nothing
    read_by_script whether the script itself has asked for such a variable, which it will do again in each worker
    changed        the variables that were set to something else, or removed
    cuda           whether torch is built for it; default: as installed
    """

    def __init__(self, *, cuda: bool | None = None) -> None:
        self.read_by_script = False
        self.changed: set[str] = set()
        self._cuda = _is_built_for_cuda() if cuda is None else cuda
        wanted = {ARROW_MALLOC: "background_thread:false"} | ({NVML_CHECK: "1"} if self._cuda else {})
        self._sets = {name: value for name, value in wanted.items() if name not in os.environ}
        self._reads: list[tuple[str, str]] = []  # who, which variable
        self._values: list[tuple[str, weakref.ref[_Value]]] = []  # who was given it, who looked through all variables
        self._folders: list[tuple[str, str]] = []  # who, which folder
        self._descriptors = _descriptors()
        self._threads = set(threading.enumerate())

    def found(self) -> str | None:
        """Return in words what forks must not share, since the last time this was asked; None: nothing."""
        reads, self._reads = self._reads, []
        values, self._values = self._values, []
        if any(value() is not None for _, value in values):
            gc.collect()
        reads += [(who, "and keeps the whole environment") for who, value in values if value() is not None]
        if reads:
            who, variable = reads[0]
            return f"{who} reads {variable} while it is imported, which differs between workers"
        if folders := [(who, folder) for who, folder in self._folders if os.path.isdir(folder)]:
            for _, folder in folders:
                shutil.rmtree(folder, ignore_errors=True)  # this process is given up, and nobody else would
            who, folder = folders[0]
            return f"{who} makes the temporary folder {folder} while it is imported, which is one process's own"
        if self._cuda and "torch" in sys.modules and _lost_in_forks():
            return "an import initialises CUDA, or asks its runtime for GPUs"
        if names := [thread.name for thread in threading.enumerate() if thread not in self._threads]:
            return f"an import starts threads: {', '.join(names)}"
        if shared := [name for fd, name in _descriptors().items() if fd not in self._descriptors]:
            return f"an import opens {shared[0]} and keeps it open, so that workers would read it at one common place"
        return None

    def __enter__(self) -> Importing:
        os.environ.update(self._sets)
        reads, value, changed, plain = self._reads_variable, self._value, self.changed, type(os.environ)

        class Watched(plain):  # type: ignore[misc, valid-type]
            def __getitem__(self, name: Any) -> Any:
                if name == _STANDS_FOR_ALL:
                    return value()
                if name in RANK_VARIABLES or name in WORKER_VARIABLES:
                    reads(name)
                return super().__getitem__(name)

            def __setitem__(self, name: Any, value: Any) -> None:
                if name == _STANDS_FOR_ALL:
                    return  # whoever puts a copy back
                try:
                    new = super().__getitem__(name) != value
                except KeyError:
                    new = True
                if new:
                    changed.add(name)
                super().__setitem__(name, value)

            def __delitem__(self, name: Any) -> None:
                if name != _STANDS_FOR_ALL:
                    changed.add(name)
                    super().__delitem__(name)

            def __iter__(self) -> Any:
                names = list(super().__iter__())
                return iter([*names, _STANDS_FOR_ALL] if names else [])

        self._plain = plain
        os.environ.__class__ = Watched
        makes, self._mkdtemp = self._makes_folder, tempfile.mkdtemp

        def mkdtemp(*args: Any, **options: Any) -> Any:
            return makes(*args, **options)

        tempfile.mkdtemp = mkdtemp  # TemporaryDirectory calls it, too
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.environ.__class__ = self._plain
        tempfile.mkdtemp = self._mkdtemp
        for name in self._sets:
            os.environ.pop(name, None)

    def _reads_variable(self, variable: str) -> None:
        """Note who reads a variable that differs between workers, while it is imported."""
        frame = _importing_frame(sys._getframe(2))
        if frame is None or frame.f_globals.get("__name__") in _ASKED_AGAIN_LATER:
            return
        if frame.f_globals is sys.modules["__main__"].__dict__:
            self.read_by_script = True
        else:
            self._reads.append((_named(frame), variable))

    def _value(self) -> _Value:
        """Return a value for one who looks through all variables, to see whether it is kept."""
        value, frame = _Value("0"), _importing_frame(sys._getframe(2))
        if frame is not None and frame.f_globals is sys.modules["__main__"].__dict__:
            self.read_by_script = True
        elif frame is not None:
            self._values.append((_named(frame), weakref.ref(value)))
        return value

    def _makes_folder(self, *args: Any, **options: Any) -> Any:
        """Make a folder, and note who did; installed modules may: theirs are caches, which they do without."""
        folder = self._mkdtemp(*args, **options)
        frame = _importing_frame(sys._getframe(1))
        if frame is not None and not _is_of_library(frame):
            self._folders.append((_named(frame), os.fsdecode(folder)))
        return folder


def _importing_frame(frame: FrameType | None) -> FrameType | None:
    """Return the frame of the module that is being imported there; None: none is."""
    while frame is not None and frame.f_globals.get("__name__") in _OF_WATCHED:
        frame = frame.f_back
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    return frame


def _is_of_library(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_LIBRARIES)


def _named(frame: FrameType) -> str:
    return f"{frame.f_globals.get('__name__')} ({frame.f_code.co_filename}, line {frame.f_lineno})"


def _is_built_for_cuda() -> bool:
    """Return whether the torch that would be imported is built for CUDA, without importing it."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    return (Path(spec.origin).parent / "lib" / "libtorch_cuda.so").exists()


def _lost_in_forks() -> bool:
    """Return whether a fork of this process could not use the GPUs that are here."""
    torch = sys.modules["torch"]
    child = os.fork()
    if child == 0:
        os._exit(int(torch.cuda._is_in_bad_fork()))  # which torch knows in a fork (private; torch 2.13)
    lost = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0
    return lost and torch.cuda.device_count() > 0  # where there are none it has asked in vain, and a fork may again


def _descriptors() -> dict[int, str]:
    """Return what is open for reading, but for what has no place of its own."""
    found = {}
    for number, target in linux.descriptors().items():
        try:
            flags = fcntl.fcntl(number, fcntl.F_GETFL)
        except OSError:
            continue  # another thread has closed it
        if flags & os.O_ACCMODE != os.O_WRONLY and not target.startswith(_HARMLESS) and not Path(target).is_dir():
            found[number] = target
    return found
