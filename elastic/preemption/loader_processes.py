"""Processes of torch's DataLoader, too, stay at a signal to everybody that their parent acts on (forked_children.py).

The first thing that each does is to take SIGTERM for itself, in C: a signal of anybody but its parent ends it, and the
parent's loop with an error before it could save. What that is called is private to torch: the name that it looks up in
`signal_handling`, as torchdata's StatefulDataLoader does. Checked against torch 2.13 and torchdata 0.11.

Leaves  those of an elastic.Run to data/loader_process.py. Processes that are spawned, or come from a forkserver, are
        torch's: the first is no fork of this process.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

from torch.utils.data._utils import signal_handling

from elastic.membership.forked_children import OfParent

_as_torch_begins = signal_handling._set_worker_signal_handlers


def stay_with_parent() -> None:
    """Have all that are forked from now on stay at a signal to everybody, while their parent has a pipe for that."""
    signal_handling._set_worker_signal_handlers = _begin


def _begin() -> None:
    """Begin a child as torch does, and then put back the handlers that torch's have taken the place of."""
    _as_torch_begins()
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
        handler = signal.getsignal(number)
        if isinstance(handler, OfParent):
            handler.before = _end if number == signal.SIGTERM else handler.before
            signal.signal(number, handler)  # which torch's has taken the place of


def _end(_number: int, _frame: FrameType | None) -> None:
    """End with status 0, as torch's handler does at its parent's SIGTERM: at another the parent raises an error."""
    os._exit(0)
