"""What a script asks for in a run that torchrun gives its workers: said behind its exception is what a run has instead.

A worker in an elastic.Run lives through changes of its rank and of the world size, so no variable holds them, and
torch.distributed's default group is not there: the run forms groups of its own, one for each view. A worker that is in
no run has them all, and is told nothing.
"""

from __future__ import annotations

_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK")
_OF_TORCH = (
    "Default process group has not been initialized",
    *(f"environment variable {name} expected" for name in _VARIABLES),
)
_NO_VARIABLE = """\
elastic: {name} is not set: it changes while a worker lives
  next   run.rank, run.world_size and run.is_coordinator of elastic.Run, or nothing at all: a run deals the data out by
         itself, and its result does not depend on how many workers there are; LOCAL_RANK is set
"""
_NO_GROUP = """\
elastic: there is no default group of torch.distributed: it would end with the first worker that is lost
  next   leave out init_process_group, DistributedDataParallel, DistributedSampler and collectives: elastic.Run
         exchanges gradients and deals the data out; run.add, run.sums and run.evaluate add up over all workers
"""


def advice(error: BaseException) -> str:
    """Return what people are told behind this error, "" for most. Raises nothing: the script's error must be told."""
    from elastic.membership import environment  # for most scripts never

    try:
        if environment.read().placed:
            return ""
        if isinstance(error, KeyError):
            name = error.args[0] if error.args else None
            asked = isinstance(name, str) and name in _VARIABLES and _is_of_the_environment(error)
            return _NO_VARIABLE.format(name=name) if asked else ""
        said = str(error)
    except Exception:  # an exception of the script's own may fail in its own words
        return ""
    return _NO_GROUP if any(text in said for text in _OF_TORCH) else ""


def _is_of_the_environment(error: BaseException) -> bool:
    """Return whether os.environ has raised it, and no dict of the script's own."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_globals.get("__name__") == "os"
