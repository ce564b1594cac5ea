"""Training runs whose result does not depend on what happens to their workers.

import elastic

elastic.seed(0)
with elastic.Run("runs/digits", model=model, optimizer=optimizer, dataset=dataset,
                 batch_size=256, virtual_workers=24, epochs=20, seed=0) as run:
    for epoch in run.epochs():
        for x, y in run.batches():
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

run, orders, errors   what users import from here; version: all processes of a run have the same
config                what a run is configured with
loop                  one worker's training loop
data, group, state    examples; sums over a view; what must survive
membership            who is in the run
launch, preemption    `elastic run`; notices
events                what a run records; report: drawn from it afterwards; status: shown meanwhile; pages: of HTML
manifest              what a run was made with; record: what each step came to; logging: where its curves go
plan                  what a run should cost
integrations          frameworks with loops of their own
drill                 faults on purpose; demo: some of them, on a script of ours
reproduce             a run made again, and one of its steps
docs_command          `elastic docs`; doctor: `elastic doctor`; watch_command: `elastic watch`
"""

from typing import TYPE_CHECKING, Any

from elastic.errors import (
    BadStep,
    CollectiveFailed,
    CollectiveMismatch,
    ComputesWrongly,
    ConfigError,
    DataFileError,
    ElasticError,
    Evicted,
    ExampleError,
    IdentityMismatch,
    LoaderError,
    LoaderTimeout,
    NotLetIn,
    PeerLost,
    RendezvousTimeout,
    SavesFailed,
    StartFailed,
    StepError,
    WeightsNotFinite,
)
from elastic.version import __version__ as __version__

if TYPE_CHECKING:
    from elastic import logging, orders
    from elastic.config.argument_groups import Checks, Compute, Data, Saving, Update
    from elastic.data.audit import Audit, AuditFailed, AuditTimeout, audit
    from elastic.data.elastic_loader import ElasticLoader
    from elastic.data.mds_dataset import MDSDataset
    from elastic.data.records import RecordDataset, Scanned
    from elastic.data.streams import Streams
    from elastic.data.token_dataset import TokenDataset
    from elastic.group.replica_mesh import device_mesh
    from elastic.loop.steps.step import Step
    from elastic.preemption.preemption import Preemption
    from elastic.run import Run
    from elastic.state.on_bad import OnBad
    from elastic.state.randomness import seed

__all__ = [
    "Audit",
    "AuditFailed",
    "AuditTimeout",
    "BadStep",
    "Checks",
    "CollectiveFailed",
    "CollectiveMismatch",
    "Compute",
    "ComputesWrongly",
    "ConfigError",
    "Data",
    "DataFileError",
    "ElasticError",
    "ElasticLoader",
    "Evicted",
    "ExampleError",
    "IdentityMismatch",
    "LoaderError",
    "LoaderTimeout",
    "MDSDataset",
    "NotLetIn",
    "OnBad",
    "PeerLost",
    "Preemption",
    "RecordDataset",
    "RendezvousTimeout",
    "Run",
    "SavesFailed",
    "Saving",
    "Scanned",
    "StartFailed",
    "Step",
    "StepError",
    "Streams",
    "TokenDataset",
    "Update",
    "WeightsNotFinite",
    "audit",
    "device_mesh",
    "logging",
    "orders",
    "seed",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """Import what needs torch when it is used: the pytest plugin loads this package in every test run."""
    from importlib import import_module

    homes = {
        "Audit": "elastic.data.audit",
        "AuditFailed": "elastic.data.audit",
        "AuditTimeout": "elastic.data.audit",
        "Checks": "elastic.config.argument_groups",
        "Compute": "elastic.config.argument_groups",
        "Data": "elastic.config.argument_groups",
        "ElasticLoader": "elastic.data.elastic_loader",
        "MDSDataset": "elastic.data.mds_dataset",
        "Preemption": "elastic.preemption.preemption",
        "RecordDataset": "elastic.data.records",
        "OnBad": "elastic.state.on_bad",
        "Run": "elastic.run",
        "Saving": "elastic.config.argument_groups",
        "Scanned": "elastic.data.records",
        "Step": "elastic.loop.steps.step",
        "Streams": "elastic.data.streams",
        "TokenDataset": "elastic.data.token_dataset",
        "Update": "elastic.config.argument_groups",
        "audit": "elastic.data.audit",
        "device_mesh": "elastic.group.replica_mesh",
        "seed": "elastic.state.randomness",
    }
    if name in ("logging", "orders"):
        return import_module(f"elastic.{name}")
    if name in homes:
        return getattr(import_module(homes[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
