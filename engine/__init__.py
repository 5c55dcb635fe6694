"""Execution of a plan's programs on hosts, under a driver.

`train` runs a plan under a driver: `Downpour` with an optimizer (`SGD`, `Adagrad`, `Adam` and others),
whose learning rate may follow a schedule (`Cosine` and others), `AllReduce` with an optimizer and an
algorithm (`Ring` and others), `Sandblaster` with a batch method (`LBFGS` and others), or `FedAvg` with
clients. The result is a `Run`, which can be saved; callbacks such as `EarlyStopping` watch a run, and
loggers such as `CSVLog` write its figures; `train_by_resolution` trains on small pictures first. `evaluate`
and `predict` apply a run to data, and `predict_with_exits` as far as each example needs; `Session` runs
single steps; a `Loader` says how data of any kind is read; `check_gradients` compares a layer's backward
function with finite differences; `Torch` makes a layer of a module of PyTorch, and `from_torch` a network;
`minimise` runs a batch method on any function.
"""

from typing import TYPE_CHECKING

from partita.engine.lazily import names_of

if TYPE_CHECKING:
    from partita.engine.data.dataset import Dataset, Field, Reader
    from partita.engine.data.draws import Draws
    from partita.engine.data.loader import Loader
    from partita.engine.data.npz_files import Npz
    from partita.engine.data.parquet_files import Parquet
    from partita.engine.data.pictures import Pictures
    from partita.engine.data.stream import Stream
    from partita.engine.data.transforms import ChannelsLast, HorizontalFlip, Normalize, PerExample, RandomCrop
    from partita.engine.drivers.admm import ADMM
    from partita.engine.drivers.all_reduce import AllReduce
    from partita.engine.drivers.codistillation import Codistillation
    from partita.engine.drivers.decoupled_diloco import DecoupledDiLoCo
    from partita.engine.drivers.diloco import DiLoCo
    from partita.engine.drivers.downpour import Downpour
    from partita.engine.drivers.dynamic_averaging import DynamicAveraging
    from partita.engine.drivers.easgd import EASGD
    from partita.engine.drivers.fed_avg import FedAvg
    from partita.engine.drivers.local_sgd import LocalSGD, ParameterAveraging
    from partita.engine.drivers.loss_scale import LossScale
    from partita.engine.drivers.sandblaster import Sandblaster
    from partita.engine.files.host_files import Files
    from partita.engine.files.sources import DataSource
    from partita.engine.files.stores import CheckpointStore, SharedFolder
    from partita.engine.kernels.check import GradientCheck, check_gradients
    from partita.engine.kernels.nodes.errors import SlowNodeWarning
    from partita.engine.launch.pool.pool import Pool
    from partita.engine.launch.ray.settings import Ray
    from partita.engine.launch.remote_workers import HostFile
    from partita.engine.launch.symmetric.environment import Environment
    from partita.engine.methods import (
        LBFGS,
        Direction,
        DirectionGenerator,
        GradientDescent,
        LineSearchMethod,
        Method,
        NonlinearCG,
        Objective,
    )
    from partita.engine.parameters.optimizers import (
        LAMB,
        LARS,
        SGD,
        Adagrad,
        Adam,
        AdamW,
        Cosine,
        ExponentialDecay,
        InverseTime,
        LinearWarmup,
        Momentum,
        Optimizer,
        RMSProp,
        Schedule,
        StepDecay,
    )
    from partita.engine.protocol.commands import Outcome
    from partita.engine.protocol.durability import Log, Replicated
    from partita.engine.protocol.exchange import Hierarchical, Ring, Server, Tree
    from partita.engine.protocol.failure import HostError, RunFailed
    from partita.engine.protocol.staleness import Bounded, Compensated, Damped
    from partita.engine.pytorch.from_torch import from_torch
    from partita.engine.pytorch.module_layer import Torch
    from partita.engine.run.as_module import PartitionedModule, as_module
    from partita.engine.run.callbacks import (
        Callback,
        Control,
        EarlyStopping,
        ModelCheckpoint,
        ReduceOnPlateau,
    )
    from partita.engine.run.distbelief import DistBelief
    from partita.engine.run.evaluate import Evaluation, evaluate, predict
    from partita.engine.run.exit_predictions import ExitPredictions
    from partita.engine.run.exit_thresholds import choose_thresholds
    from partita.engine.run.exits import predict_with_exits
    from partita.engine.run.interrupt import Interrupted
    from partita.engine.run.loggers import (
        CSVLog,
        JSONLinesLog,
        MLflowLog,
        PythonLog,
        TensorBoardLog,
        WandBLog,
    )
    from partita.engine.run.metrics import Iteration, Record
    from partita.engine.run.minimise import Minimum, minimise
    from partita.engine.run.resolution import shrink_pictures, train_by_resolution
    from partita.engine.run.run import Run
    from partita.engine.run.session import Session
    from partita.engine.run.state_files import load_tensors
    from partita.engine.run.train import train
    from partita.engine.runtime.metric import MeanAbsoluteError, Metric, TopK
else:
    __getattr__ = names_of(__name__, __file__)

__all__ = [
    "ADMM",
    "EASGD",
    "LAMB",
    "LARS",
    "LBFGS",
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "AllReduce",
    "Bounded",
    "CSVLog",
    "Callback",
    "ChannelsLast",
    "CheckpointStore",
    "Codistillation",
    "Compensated",
    "Control",
    "Cosine",
    "Damped",
    "DataSource",
    "Dataset",
    "DecoupledDiLoCo",
    "DiLoCo",
    "Direction",
    "DirectionGenerator",
    "DistBelief",
    "Downpour",
    "Draws",
    "DynamicAveraging",
    "EarlyStopping",
    "Environment",
    "Evaluation",
    "ExitPredictions",
    "ExponentialDecay",
    "FedAvg",
    "Field",
    "Files",
    "GradientCheck",
    "GradientDescent",
    "Hierarchical",
    "HorizontalFlip",
    "HostError",
    "HostFile",
    "Interrupted",
    "InverseTime",
    "Iteration",
    "JSONLinesLog",
    "LineSearchMethod",
    "LinearWarmup",
    "Loader",
    "LocalSGD",
    "Log",
    "LossScale",
    "MLflowLog",
    "MeanAbsoluteError",
    "Method",
    "Metric",
    "Minimum",
    "ModelCheckpoint",
    "Momentum",
    "NonlinearCG",
    "Normalize",
    "Npz",
    "Objective",
    "Optimizer",
    "Outcome",
    "ParameterAveraging",
    "Parquet",
    "PartitionedModule",
    "PerExample",
    "Pictures",
    "Pool",
    "PythonLog",
    "RMSProp",
    "RandomCrop",
    "Ray",
    "Reader",
    "Record",
    "ReduceOnPlateau",
    "Replicated",
    "Ring",
    "Run",
    "RunFailed",
    "Sandblaster",
    "Schedule",
    "Server",
    "Session",
    "SharedFolder",
    "SlowNodeWarning",
    "StepDecay",
    "Stream",
    "TensorBoardLog",
    "TopK",
    "Torch",
    "Tree",
    "WandBLog",
    "as_module",
    "check_gradients",
    "choose_thresholds",
    "evaluate",
    "from_torch",
    "load_tensors",
    "minimise",
    "predict",
    "predict_with_exits",
    "shrink_pictures",
    "train",
    "train_by_resolution",
]
