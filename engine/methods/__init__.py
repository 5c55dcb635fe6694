"""Batch methods: what is done to vectors that others hold, told scalars only.

`method` says what one is; `objective` says what is minimised, on all data or on samples. `line_search_method`
is all of a method but its direction, which `toward` hands it, with `line_search` on scalars. `lbfgs` (by
`two_loop`), `nonlinear_cg` and `gradient_descent` are methods, each a direction. They play against shards, in
one process and from a journal, and know none of them.
"""

from partita.engine.methods.gradient_descent import GradientDescent
from partita.engine.methods.lbfgs import LBFGS
from partita.engine.methods.line_search import LineSearch
from partita.engine.methods.line_search_method import LineSearchMethod
from partita.engine.methods.method import Method
from partita.engine.methods.nonlinear_cg import NonlinearCG
from partita.engine.methods.objective import GRADIENT, Objective, Value
from partita.engine.methods.toward import Directions, Toward

__all__ = [
    "GRADIENT",
    "LBFGS",
    "Directions",
    "GradientDescent",
    "LineSearch",
    "LineSearchMethod",
    "Method",
    "NonlinearCG",
    "Objective",
    "Toward",
    "Value",
]
