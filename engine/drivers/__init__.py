"""What a user calls: a plan, data and a driver become a run, and a run gives predictions.

`downpour` holds a driver's settings; before anything starts, `checks` looks at arguments and `data` at the
user's arrays. `job` makes the tasks of all hosts, `train` runs them and `supervisor` carries out what the
coordinator asks for; `interrupt` is Ctrl-C. `progress` adds up what parts report and `display` shows it;
`run` is what is left in the end. `session` plays single steps of one replica (`stages`: where its parts are;
`step`: what they come to; `tracing`: what each did when); `evaluate` and `predict` stand on it.
`minimise` plays a batch method in one process, on any function.
"""

from partita.engine.drivers.downpour import Downpour
from partita.engine.drivers.evaluate import Evaluation, evaluate, predict
from partita.engine.drivers.interrupt import Interrupted
from partita.engine.drivers.minimise import Minimum, minimise
from partita.engine.drivers.progress import Moment
from partita.engine.drivers.run import Run
from partita.engine.drivers.session import Session
from partita.engine.drivers.step import HostError, Step
from partita.engine.drivers.supervisor import RunFailed
from partita.engine.drivers.train import train

__all__ = [
    "Downpour",
    "Evaluation",
    "HostError",
    "Interrupted",
    "Minimum",
    "Moment",
    "Run",
    "RunFailed",
    "Session",
    "Step",
    "evaluate",
    "minimise",
    "predict",
    "train",
]
