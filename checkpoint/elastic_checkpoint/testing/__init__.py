"""Storage that fails on purpose, as planned and never otherwise: for tests of anything that writes through fsspec.

    import fsspec
    from elastic_checkpoint.testing import Error, Faults, Plan, TornWrite

    def test_my_index_survives_a_bad_day():
        plan = Plan(Error("reset", on="write", after=2, times=3),        # the 3rd, 4th and 5th write
                    TornWrite(path="*.index", chance=0.1), seed=7)       # a tenth of them, always the same ones
        faults = Faults(plan)
        url, options = faults.around("memory://index")                   # any URL; its own options go in as well
        filesystem, path = fsspec.url_to_fs(url, **options)
        my_index.build(filesystem, path)                                 # must not notice, or say that it failed
        faults.heal()
        assert my_index.read(filesystem, path) == my_index.expected(), faults.report()

`elastic_checkpoint.Checkpointer(url, storage_options=options)` takes the two as they are. fault_plan.py holds what can
go wrong, faulty_storage.py carries it out and keeps the record, filesystem.py puts it between you and the storage.
"""

from elastic_checkpoint.testing.fault_plan import (
    ERRORS,
    Cut,
    Delay,
    Error,
    Hang,
    Plan,
    Rule,
    ShortRead,
    StaleList,
    TornWrite,
)
from elastic_checkpoint.testing.faulty_storage import Faults, Happened, PowerCut
from elastic_checkpoint.testing.filesystem import FaultyFileSystem

__all__ = [
    "ERRORS",
    "Cut",
    "Delay",
    "Error",
    "Faults",
    "FaultyFileSystem",
    "Hang",
    "Happened",
    "Plan",
    "PowerCut",
    "Rule",
    "ShortRead",
    "StaleList",
    "TornWrite",
]
