"""Torch's rendezvous names the method that makes a record, in each of them: here it does so quickly.

It asks `inspect.stack()` twice for each, which looks in all modules for the source of every frame: in one round 0.5 to
1 s of a processor, of every node that joins (torch 2.13, 2026-11-27).

`get_method_name` of torch's dynamic_rendezvous is not documented: where it is missing, nothing is changed.
"""

from __future__ import annotations

import inspect

from torch.distributed.elastic.rendezvous import dynamic_rendezvous

_ASKED = "get_method_name"


def name_callers_quickly() -> bool:
    """Replace torch's search in this process, from now on; return whether it could be done."""
    if not hasattr(dynamic_rendezvous, _ASKED):
        return False
    setattr(dynamic_rendezvous, _ASKED, caller)
    return True


def caller(depth: int = 2) -> str:
    """Return the name of the function so many calls above."""
    frame = inspect.currentframe()
    for _ in range(depth):
        frame = frame.f_back if frame is not None else None
    return frame.f_code.co_name if frame is not None else "no_method_name"
