"""One optimizer of each kind."""

from __future__ import annotations

from partita.engine import LARS, SGD, Adagrad, Adam, AdamW, Momentum, RMSProp

OPTIMIZERS = [
    SGD(0.1, weight_decay=0.01),
    Momentum(0.1, nesterov=True),
    Adagrad(0.1),
    RMSProp(0.01),
    RMSProp(0.01, momentum=0.5, centered=True),
    Adam(0.01),
    AdamW(0.01),
    LARS(0.1),
]
