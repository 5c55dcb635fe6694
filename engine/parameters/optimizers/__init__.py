"""Optimizers: updates of parameters by gradients, in one pass over memory.

`optimizer` is the interface; `sgd`, `adagrad`, `adam`, `lars` and `lamb` contain the arithmetic of one
number, and `update_loop` the compiled pass around it, `row_update` that over some rows, and `on_torch` the
pass on tensors. `schedule` contains learning rates that change, `options` the text forms, and `settings` the
checks of arguments. No module here knows shards, machines or messages.
"""

from partita.engine.parameters.optimizers.adagrad import Adagrad, RMSProp
from partita.engine.parameters.optimizers.adam import Adam, AdamW
from partita.engine.parameters.optimizers.lamb import LAMB
from partita.engine.parameters.optimizers.lars import LARS
from partita.engine.parameters.optimizers.optimizer import Optimizer, Squares, Update, UpdateContext
from partita.engine.parameters.optimizers.row_update import update_rows
from partita.engine.parameters.optimizers.schedule import (
    Cosine,
    ExponentialDecay,
    InverseTime,
    LearningRate,
    LinearWarmup,
    Schedule,
    StepDecay,
)
from partita.engine.parameters.optimizers.sgd import SGD, Momentum
from partita.engine.parameters.optimizers.update_loop import all_finite, sum_of_squares

__all__ = [
    "LAMB",
    "LARS",
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "Cosine",
    "ExponentialDecay",
    "InverseTime",
    "LearningRate",
    "LinearWarmup",
    "Momentum",
    "Optimizer",
    "RMSProp",
    "Schedule",
    "Squares",
    "StepDecay",
    "Update",
    "UpdateContext",
    "all_finite",
    "sum_of_squares",
    "update_rows",
]
