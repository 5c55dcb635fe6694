"""What a user calls: a plan, data and a driver become a run, and a run gives predictions.

`downpour` and `sandblaster` hold a `driver`'s settings; before anything starts, `checks` looks at arguments,
`arrays` reads what a user has as arrays, and `data` compares them with the network. `job` is what is trained
and its files (in a `temporary` folder), and `identity` what its network is known by; `training` is any driver
at work on it, `downpour_training` and `sandblaster_training` (with its `run_journal`) are what is a driver's
own: tasks, coordinator, what is kept. `train` runs one after another and `supervisor` carries out what the
coordinator asks for; `interrupt` is Ctrl-C. `progress` adds up what parts report, `iterations` what a batch
method says, and `display` shows it, with the `phases` before; `caller` knows how the user started it; `run`
is what is left in the end. `session` plays single steps of one replica (`stages`: where its parts are;
`step`: what they come to; `tracing`: what each did when); `evaluate` and `predict` stand on it. `minimise`
plays a batch method in this process, on any function.
"""

from partita.engine.drivers.downpour import Downpour
from partita.engine.drivers.evaluate import Evaluation, evaluate, predict
from partita.engine.drivers.interrupt import Interrupted
from partita.engine.drivers.iterations import Iteration
from partita.engine.drivers.minimise import Minimum, minimise
from partita.engine.drivers.progress import Moment
from partita.engine.drivers.run import Run
from partita.engine.drivers.sandblaster import Sandblaster
from partita.engine.drivers.session import Session
from partita.engine.drivers.step import HostError, Step
from partita.engine.drivers.supervisor import RunFailed
from partita.engine.drivers.train import train

__all__ = [
    "Downpour",
    "Evaluation",
    "HostError",
    "Interrupted",
    "Iteration",
    "Minimum",
    "Moment",
    "Run",
    "RunFailed",
    "Sandblaster",
    "Session",
    "Step",
    "evaluate",
    "minimise",
    "predict",
    "train",
]
