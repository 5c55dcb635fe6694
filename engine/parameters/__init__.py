"""What the shards hold, and how it changes: vectors, optimizers, first values and checkpoints.

`vector` is the one kind of array; `slots` are ranges of parameters, `layout` says which lives where,
`storage` keeps a shard's vectors, `optimizers` changes them in one pass over memory, `vectors` does a batch
method's operations on vectors of any name, by `vector_loops`, `initialise` makes first values from names and
a seed, `checkpoint` writes what a shard holds (`tensors` without a copy) and `reader` reads it into any other
layout, `manifest` says what is in it, `folder_lock` lets one run at a time write there, `files` keeps whole
networks, `journal` keeps what a batch method was told (as `journal_format` says it). No module here knows a
socket or a thread. A part makes its local steps with the same optimizers and a state of its own: for `SGD`
that is the paper's w <- w - alpha*g, for the others it is ours (the paper does not say what a part's own rate
is).
"""

from partita.engine.parameters.checkpoint import Checkpoints
from partita.engine.parameters.files import load_parameters, save_parameters
from partita.engine.parameters.initialise import Spec, initial_range, initialise
from partita.engine.parameters.journal import Journal
from partita.engine.parameters.journal_format import JournalEntry, JournalHeader
from partita.engine.parameters.layout import Layout, Overlap, gather, scatter
from partita.engine.parameters.manifest import CheckpointError, Manifest, ShardRecord
from partita.engine.parameters.optimizers import (
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
    UpdateContext,
)
from partita.engine.parameters.reader import Checkpoint
from partita.engine.parameters.slots import Slot
from partita.engine.parameters.storage import Snapshot, Storage
from partita.engine.parameters.vector import Vector
from partita.engine.parameters.vectors import VectorStore

__all__ = [
    "LARS",
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "Checkpoint",
    "CheckpointError",
    "Checkpoints",
    "Cosine",
    "ExponentialDecay",
    "InverseTime",
    "Journal",
    "JournalEntry",
    "JournalHeader",
    "Layout",
    "LinearWarmup",
    "Manifest",
    "Momentum",
    "Optimizer",
    "Overlap",
    "RMSProp",
    "Schedule",
    "ShardRecord",
    "Slot",
    "Snapshot",
    "Spec",
    "StepDecay",
    "Storage",
    "UpdateContext",
    "Vector",
    "VectorStore",
    "gather",
    "initial_range",
    "initialise",
    "load_parameters",
    "save_parameters",
    "scatter",
]
