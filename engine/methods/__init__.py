"""Batch methods: minimisation by operations on distributed vectors, controlled by scalars only.

`method` is the interface; `objective` makes the operations that evaluate a full or a sampled batch.
`line_search_method` contains everything but the search `direction`, by `line_search` on scalars. `lbfgs` and
`descent` contain the methods, which run unchanged against shards, in one process, and from a journal.
"""

from partita.engine.methods.descent import GradientDescent, NonlinearCG
from partita.engine.methods.lbfgs import LBFGS
from partita.engine.methods.line_search import LineSearch
from partita.engine.methods.line_search_method import LineSearchMethod
from partita.engine.methods.method import Direction, DirectionGenerator, Method
from partita.engine.methods.objective import GRADIENT, Objective, Value

__all__ = [
    "GRADIENT",
    "LBFGS",
    "Direction",
    "DirectionGenerator",
    "GradientDescent",
    "LineSearch",
    "LineSearchMethod",
    "Method",
    "NonlinearCG",
    "Objective",
    "Value",
]
