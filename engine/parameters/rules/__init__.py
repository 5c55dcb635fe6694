"""Update rules: how a gradient changes parameters, in one pass over memory.

`rule` says what a rule is; `sgd`, `adagrad`, `adam` and `lars` hold the rules and their compiled loops;
`schedule` learning rates that change; `norms` what depends on whole parameters, and `finite` the question
that every pass answers. `on_cuda` runs the same loops on a GPU (and is imported where there is one).
`options` reads rules from text; `settings` says what a number may be. No module here knows a shard, a machine
or a message.
"""

from partita.engine.parameters.rules.adagrad import Adagrad, RMSProp
from partita.engine.parameters.rules.adam import Adam, AdamW
from partita.engine.parameters.rules.finite import all_finite
from partita.engine.parameters.rules.lars import LARS
from partita.engine.parameters.rules.norms import Squares, sum_of_squares
from partita.engine.parameters.rules.rule import Apply, Moment, Rule, State
from partita.engine.parameters.rules.schedule import (
    Cosine,
    ExponentialDecay,
    InverseTime,
    LinearWarmup,
    Rate,
    Schedule,
    StepDecay,
)
from partita.engine.parameters.rules.sgd import SGD, Momentum

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
    "LinearWarmup",
    "Moment",
    "Momentum",
    "RMSProp",
    "Rate",
    "Rule",
    "Schedule",
    "Squares",
    "State",
    "StepDecay",
    "all_finite",
    "sum_of_squares",
]
