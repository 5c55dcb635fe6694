"""Drivers: a file for each training system, with its settings and what it does on a job.

`driver` is the base of settings, and `trainer` of a driver at work on a `job`: the data and the parameters,
and the files that hosts read them from; `identity` has the texts by which checkpoints know a network.
`downpour`, `easgd`, `sandblaster`, `all_reduce` and `fed_avg` are drivers that train; so are those whose
replicas make steps of their own (`local_sgd`, the base of `diloco`, `admm` and `dynamic_averaging`; and
`decoupled_diloco`, with shards), and `codistillation`, whose groups do. The driver of a `session` does the
steps that its user asks for, and that of `evaluate` shares minibatches of data. `trainers` chooses the
trainer: `leased_trainer` of replicas that work on their own, `joined_trainer` of those that work together,
and `evaluation_trainer` of those that evaluate a function; `paced` puts stops between the actions of a
driver's coordinator, `traffic` counts what a program sends by formulas, `compressed` has the actions of a
compressed exchange, and `replica_links` the links between replicas that a plan implies. `loss_scale` is
that of float16, and `scaled_losses` says who can train in it.
"""

from partita.engine.drivers.admm import ADMM
from partita.engine.drivers.all_reduce import AllReduce
from partita.engine.drivers.codistillation import Codistillation
from partita.engine.drivers.decoupled_diloco import DecoupledDiLoCo
from partita.engine.drivers.diloco import DiLoCo
from partita.engine.drivers.downpour import Downpour
from partita.engine.drivers.driver import Driver
from partita.engine.drivers.dynamic_averaging import DynamicAveraging
from partita.engine.drivers.easgd import EASGD
from partita.engine.drivers.fed_avg import FedAvg
from partita.engine.drivers.local_sgd import LocalSGD, ParameterAveraging
from partita.engine.drivers.sandblaster import Sandblaster

__all__ = [
    "ADMM",
    "EASGD",
    "AllReduce",
    "Codistillation",
    "DecoupledDiLoCo",
    "DiLoCo",
    "Downpour",
    "Driver",
    "DynamicAveraging",
    "FedAvg",
    "LocalSGD",
    "ParameterAveraging",
    "Sandblaster",
]
