"""MLflow: one run there for one here, found again by a tag, whichever worker writes.

What stands there cannot be removed: a value is written if its step is behind the last one under its key. A step that is
done over after a rollback keeps its first values.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from elastic.errors import ConfigError
from elastic.logging.base import Logger

_TAG = "elastic.run"


class MLflow(Logger):
    """Logs to MLflow: a server; or a folder, for which MLflow 3 wants MLFLOW_ALLOW_FILE_STORE=true.

    Args:
        tracking_uri: MLflow's; default what its own settings say.
        experiment: By name; made where there is none.

    Raises:
        ConfigError: There is no `mlflow` here.
    """

    def __init__(self, tracking_uri: str | None = None, *, experiment: str = "Default") -> None:
        try:
            import mlflow
        except ImportError as missing:
            raise ConfigError(
                f"elastic.logging.MLflow needs a package that is not here: {missing}\n  next  pip install mlflow"
            ) from missing
        self._mlflow, self._uri, self._experiment = mlflow, tracking_uri, experiment
        self._client: Any = None
        self._id = ""
        self._last: dict[str, int] = {}

    def open(self, run: str, *, after: int) -> None:
        self._last = {}
        if self._client is not None:
            self._client.get_run(self._id)  # raises as long as the server is away
            return
        client = self._mlflow.MlflowClient(self._uri)
        found = client.get_experiment_by_name(self._experiment)
        experiment = found.experiment_id if found is not None else client.create_experiment(self._experiment)
        runs = client.search_runs([experiment], filter_string=f"tags.`{_TAG}` = '{run}'", max_results=1)
        name = run.rstrip("/").rpartition("/")[2]
        made = runs[0] if runs else client.create_run(experiment, tags={_TAG: run}, run_name=name)
        self._id, self._client = made.info.run_id, client

    def write(self, step: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        new = {name: value for name, value in values.items() if step > self._last_of(name)}
        now = time.time_ns() // 1_000_000
        self._client.log_batch(self._id, metrics=[Metric(name, value, now, step) for name, value in new.items()])
        self._last.update(dict.fromkeys(new, step))

    def missing(self, step: int, values: Mapping[str, float]) -> Mapping[str, float]:
        return values  # `write` looks at each

    def close(self) -> None:
        if self._client is not None:
            self._client.set_terminated(self._id)
        self._client = None

    def _last_of(self, name: str) -> int:
        if name not in self._last:
            there = self._client.get_metric_history(self._id, name)
            self._last[name] = max((one.step for one in there), default=-1)
        return self._last[name]
