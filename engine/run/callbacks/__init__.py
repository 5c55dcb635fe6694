"""Callbacks of a run: a user's objects that watch it, and may end it, save it or change its learning rate.

`callback` defines what a callback is and the `Control` that it is given; `dispatch` calls them, and ends the
run where one fails. `early_stopping`, `model_checkpoint` and `reduce_on_plateau` are Partita's own, on a
`watched` metric. Loggers are callbacks, too (`run/loggers`).
"""

from partita.engine.run.callbacks.callback import Callback, Control
from partita.engine.run.callbacks.early_stopping import EarlyStopping
from partita.engine.run.callbacks.model_checkpoint import ModelCheckpoint
from partita.engine.run.callbacks.reduce_on_plateau import ReduceOnPlateau

__all__ = ["Callback", "Control", "EarlyStopping", "ModelCheckpoint", "ReduceOnPlateau"]
