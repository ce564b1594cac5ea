"""Where the curves of a run go: what `Run(loggers=[TensorBoard("curves")])` takes, and `run.log(loss=…)` writes to.

base          what a logger can do
writer        the thread that feeds one, so that training waits for none
rows          what a trainer logs, as rows of its run
csv_file      a table that spreadsheets and pandas read
tensorboard   event files
wandb         Weights & Biases
mlflow        MLflow

Each step stands in each of them once, whatever happens to workers: the coordinator of the moment writes, and whoever
becomes it writes again what it still holds, behind a cut.
"""

from elastic.logging.base import Logger
from elastic.logging.csv_file import CSV
from elastic.logging.mlflow import MLflow
from elastic.logging.tensorboard import TensorBoard
from elastic.logging.wandb import WandB

__all__ = ["CSV", "Logger", "MLflow", "TensorBoard", "WandB"]
