"""Loggers: callbacks that write the figures of a run somewhere.

Each is in a file of its own, and all take their `figures` from the same events: steps and iterations as
they are reported, each validation and each epoch. `CSVLog` and `JSONLinesLog` write files, `PythonLog` the
messages of `logging`; `TensorBoardLog` needs the extra `tensorboard`, `WandBLog` and `MLflowLog` the packages
of these services (`package`).
"""

from partita.engine.run.loggers.csv_log import CSVLog
from partita.engine.run.loggers.json_lines_log import JSONLinesLog
from partita.engine.run.loggers.mlflow_log import MLflowLog
from partita.engine.run.loggers.python_log import PythonLog
from partita.engine.run.loggers.tensorboard_log import TensorBoardLog
from partita.engine.run.loggers.wandb_log import WandBLog

__all__ = ["CSVLog", "JSONLinesLog", "MLflowLog", "PythonLog", "TensorBoardLog", "WandBLog"]
