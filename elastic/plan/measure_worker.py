"""One process of `elastic plan --measure`: it times passes and all-reduces over gloo while the others do the same.

Rank 0 prints what it found, as JSON.

    python -m elastic.plan.measure_worker RANK WORLD_SIZE RENDEZVOUS_FILE MODULE:FUNCTION
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys

from elastic_checkpoint import linux


def main(argv: list[str]) -> int:
    """Measure as one of the processes, and return the exit status."""
    linux.signal_at_parents_end(signal.SIGKILL)
    if os.getppid() == 1:
        return 1  # whoever measures has ended already
    rank, world_size, file, named = int(argv[0]), int(argv[1]), argv[2], argv[3]
    sys.path.insert(0, os.getcwd())
    module, _, function = named.partition(":")
    try:
        there = importlib.import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name not in (module, module.partition(".")[0]):
            raise  # of an import within it
        return _said(f"--model {named}: {missing}; expected a module that can be imported from {os.getcwd()}")
    if not hasattr(there, function):
        return _said(
            f"--model {named}: module {module!r} has no attribute {function!r}; expected the name of a function of it"
        )
    import torch  # only now: it takes seconds, and a --model that is not there is named without it

    from elastic.plan.measured_step import measured

    torch.set_num_threads(1)
    made = getattr(there, function)()
    if not isinstance(made, (tuple, list)) or len(made) != 2 or not isinstance(made[0], torch.nn.Module):
        return _said(f"--model {named} gives {type(made).__name__}; expected (model, loss), a module and a function")
    model, loss = made
    found = measured(model, loss, rank=rank, world_size=world_size, rendezvous=file)
    if rank == 0:
        print(json.dumps(found))
    return 0


def _said(why: str) -> int:
    """Print why a process has nothing to measure; return its exit status."""
    print(why, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
