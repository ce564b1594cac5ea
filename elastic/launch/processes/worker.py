"""The life of a worker process: it runs the script as python would, and tells its agent how it failed.

Used by what the fork server forks (fork_server/process.py) and, as `python -m elastic.launch.processes.worker`, by a
fresh interpreter.

Promises  the script sees itself as `__main__` (script.py), and ends like any python program: threads are joined,
          atexit functions run, files are flushed, SystemExit means what it means.
          An exception goes to the agent with its trace before the process ends. It is printed by the one who can
          do it once: the agent, where all workers share a stderr, else the worker.
          A worker leads a group of its own, so that a terminal's Ctrl-C reaches the agent alone; it gets SIGTERM when
          the agent dies, and is woken if it is stopped then (linux.lead_group). SIGUSR2 prints the stacks of all
          threads. It goes on where nobody can read what it prints any more (status/unread_output.py).
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import signal
import socket
import sys
import traceback
import types
import warnings
from collections.abc import Sequence
from typing import NoReturn

from elastic.errors import ComputesWrongly
from elastic.launch.processes import robust_mutex
from elastic.launch.processes.ending import end
from elastic.launch.processes.of_torchrun import advice
from elastic.launch.processes.script import MainModule, Script
from elastic.membership.messages.wire import encode
from elastic.membership.messages.worker_messages import ME, Failed
from elastic.membership.progress import BYTES, Record
from elastic.status.unread_output import drop_unread_output
from elastic_checkpoint import linux
from elastic_checkpoint.net.codec import as_message

NAME = "elastic-worker"  # as `top` shows it
AGENT = "ELASTIC_AGENT"  # the agent's pid
SHARED_STDERR = "ELASTIC_SHARED_STDERR"  # set where this worker's stderr is the agent's own
STREAMS = {"stdout": 1, "stderr": 2}
_CHANNEL, _PROGRESS = "ELASTIC_CHANNEL", "ELASTIC_PROGRESS"

_SHOWN_MAX, _HEAD = 1 << 15, 1 << 12  # characters


def main(command: Sequence[str]) -> NoReturn:
    """Be the worker of a fresh interpreter."""
    linux.name_process(NAME)
    for name in (_CHANNEL, _PROGRESS):
        if name in os.environ:
            os.set_inheritable(int(os.environ[name]), False)
    run(MainModule(Script.of_command(command)))


def run(main_module: MainModule) -> NoReturn:
    """Run the script in this process, and end it."""
    _leave_with_agent()
    drop_unread_output()
    robust_mutex.hold(int(os.environ[_PROGRESS]), BYTES)  # its agent waits for that
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Whole lines, at once, with `python -u`, too: workers write to the same terminal or pipe.
        sys.stdout.reconfigure(line_buffering=True, write_through=False)
    # torch counts GPUs by the driver's library first, which may not work in a fork, and then by CUDA's runtime.
    warnings.filterwarnings("ignore", "Can't initialize NVML", UserWarning)
    faulthandler.register(signal.SIGUSR2, all_threads=True, chain=False)
    end(_status_of(main_module))


def _status_of(main_module: MainModule) -> int:
    """Run the script, tell how it failed, and return the exit status."""
    try:
        main_module.run()
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return int(ended.code or 0)
        print(ended.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt as interrupt:
        _print(interrupt)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # as python ends: by the signal itself
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException as error:
        shared = SHARED_STDERR in os.environ and sys.excepthook is sys.__excepthook__
        heard = _tell_failure(error, shown=not shared)
        if not (shared and heard):
            _print(error)
        return error.exit_status if isinstance(error, ComputesWrongly) else 1
    return 0


def _leave_with_agent() -> None:
    """Have the agent's death be a SIGTERM from here on; end this process now if the agent is dead already."""
    linux.signal_at_parents_end(signal.SIGTERM)
    if os.getppid() != int(os.environ[AGENT]):
        os._exit(0)


def _tell_failure(error: BaseException, *, shown: bool) -> bool:
    """Return whether the agent could be told; shown: the trace is printed by this process."""
    what = "".join(traceback.format_exception_only(type(error), error)).strip()
    trace = "".join(traceback.format_exception(type(error), error, _of_script(error))) + advice(error)
    said = Failed(worker=ME, error=cut(what), trace=cut(trace), step=_step(), shown=shown)
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(os.environ[_CHANNEL]))) as channel:
        channel.sendall(encode(as_message(said)))
        return True
    return False


def cut(text: str) -> str:
    """Return the text without its middle where it is long, as the channel takes no line of a megabyte.

    An exception begins with its type, a trace with the script, and both end with the reason.
    """
    return text if len(text) <= _SHOWN_MAX else f"{text[:_HEAD]} … {text[_HEAD - _SHOWN_MAX :]}"


def _step() -> int | None:
    with contextlib.suppress(OSError):
        return Record.read(int(os.environ[_PROGRESS])).at_step
    return None


def _print(error: BaseException) -> None:
    sys.excepthook(type(error), error, _of_script(error))
    sys.stderr.write(advice(error))


def _of_script(error: BaseException) -> types.TracebackType | None:
    """Return the traceback without the frames of this file, script.py and runpy above the script's own."""
    trace = error.__traceback__
    while trace is not None and (
        (above := trace.tb_frame.f_globals) is globals() or above.get("__name__") in (MainModule.__module__, "runpy")
    ):
        trace = trace.tb_next
    return trace if trace is not None else error.__traceback__


if __name__ == "__main__":
    main(sys.argv[1:])
