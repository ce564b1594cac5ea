"""Ends a drill's processes when the drill itself is gone, however it ended: a small process that waits beside it.

    python -m elastic.drill.machine.lifeline FOLDER [DISK]: its input ends without a word  ->  SIGKILL to all with the
    mark; the drill's disk and what it made outside of its folder go

What a drill starts lives in sessions of its own, so nothing else would end it once the drill was killed outright.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from pathlib import Path

from elastic.drill.machine import disk, processes

_LET_GO = b"let go\n"
_CLOSE_S = 10.0


class Lifeline:
    """The drill's end of the process that waits beside it, which is there from `hold` to `let_go`.

    folder  the drill's
    at      where a small disk may be mounted for it
    """

    def __init__(self, folder: Path, *, at: Path | None) -> None:
        self._arguments = [str(folder)] if at is None else [str(folder), str(at)]
        self._process: subprocess.Popen[bytes] | None = None

    def hold(self) -> None:
        """Start the process that waits. Harmless when repeated."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "elastic.drill.machine.lifeline", *self._arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # a Ctrl-C is not for it
            )

    def let_go(self) -> None:
        """End that process in peace: nothing of the drill runs any more. Harmless when repeated."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(subprocess.TimeoutExpired, OSError):
            process.communicate(_LET_GO, timeout=_CLOSE_S)
        process.kill()
        process.wait()


def main() -> None:
    """Wait for the input's end; unless the drill has let go, kill what it started and remove what it made."""
    if sys.stdin.buffer.read() != _LET_GO:
        folder = Path(sys.argv[1])
        processes.kill_marked(folder)
        if (temporary := folder / "tmp").is_symlink():  # NodeStarter made it elsewhere, where paths are shorter
            shutil.rmtree(temporary.resolve(), ignore_errors=True)
        for at in sys.argv[2:]:
            disk.unmount(Path(at))


if __name__ == "__main__":
    main()
