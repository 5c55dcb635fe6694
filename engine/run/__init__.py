"""Functions for users: a plan, data and a driver become a run, and a run predicts.

Before anything starts, `arrays` converts the user's data to arrays, and `data` compares them with the
network. `training` is the run loop of every driver: it finds the run to go on with, writes checkpoints and
the `run_journal`, and makes the result. `train` (with `train_arguments`) runs one training after another
and `supervisor` carries out the effects of the coordinator; `interrupt` handles Ctrl-C. `metrics` makes one
stream of records of all reports, and `display` shows them (in a cell of a `notebook`, too), with the
`phases` before, and the line of `calibrated`; `caller` names the call or the command that started a run,
and `run` is its result. `session` plays single steps of one replica, as its user asks (`inline_backend`: in
the calling thread, `hosted_backend`: on hosts, by the same `supervisor`), and makes each `step` of its
parts' answers. `evaluate` and `predict` stand on it, with `minibatches` that replicas share; `exits` plays
an `exit_session` and makes `exit_predictions`, with thresholds that `exit_thresholds` may find; so does
`as_module`, whose `module_parts` play a `module_session` over a plan with `given_gradients`. `resolution`
trains at one size of pictures after another. `state_files` reads and writes parameters as tensors by name.
`minimise` plays a batch method in this process, on any function. `callbacks` watch a run, of which
`loggers` are some; `stops` is what a training does for them, `validation` what `train` is given for them,
and `figures` the means of a validation and of `evaluate`. `watched` writes what a run does as records;
`live_page` starts a page that shows them, and waits for it. `distbelief` trains by two `user_functions`, of
outputs and of gradients.
"""

from partita.engine.protocol.failure import HostError, RunFailed
from partita.engine.run.evaluate import Evaluation, evaluate, predict
from partita.engine.run.interrupt import Interrupted
from partita.engine.run.metrics import Iteration, Record, TrainingProgress
from partita.engine.run.minimise import Minimum, minimise
from partita.engine.run.run import Run
from partita.engine.run.session import Session
from partita.engine.run.step import Step
from partita.engine.run.train import train

__all__ = [
    "Evaluation",
    "HostError",
    "Interrupted",
    "Iteration",
    "Minimum",
    "Record",
    "Run",
    "RunFailed",
    "Session",
    "Step",
    "TrainingProgress",
    "evaluate",
    "minimise",
    "predict",
    "train",
]
