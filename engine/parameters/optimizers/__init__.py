"""Optimizers: how a gradient changes parameters, in one pass over memory.

`optimizer` says what an optimizer is; `sgd`, `adagrad`, `adam` and `lars` hold the optimizers and their
compiled loops; `schedule` learning rates that change; `norms` what depends on whole parameters, and `finite`
the question that every pass answers. `on_cuda` runs the same loops on a GPU (and is imported where there is
one). `options` reads optimizers from text; `settings` says what a number may be. No module here knows a
shard, a machine or a message.
"""

from partita.engine.parameters.optimizers.adagrad import Adagrad, RMSProp
from partita.engine.parameters.optimizers.adam import Adam, AdamW
from partita.engine.parameters.optimizers.finite import all_finite
from partita.engine.parameters.optimizers.lars import LARS
from partita.engine.parameters.optimizers.norms import Squares, sum_of_squares
from partita.engine.parameters.optimizers.optimizer import Apply, Moment, Optimizer, State
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

__all__ = [
    "LARS",
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "Apply",
    "Cosine",
    "ExponentialDecay",
    "InverseTime",
    "LearningRate",
    "LinearWarmup",
    "Moment",
    "Momentum",
    "Optimizer",
    "RMSProp",
    "Schedule",
    "Squares",
    "State",
    "StepDecay",
    "all_finite",
    "sum_of_squares",
]
