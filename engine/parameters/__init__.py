"""Parameters of the shards: vectors, optimizers, initial values and checkpoints.

`vector` is the array type; `slots` are ranges of parameters, and `layout` their positions on machines and
shards. `vectors` has a shard's vectors, and executes a batch method's operations by `vector_loops`;
`storage` updates them by `optimizers`; `compression/` has short messages in the place of gradients; a
`snapshot` is for a file; `initial_values` makes those. `checkpoint` writes shards (`tensors`, without a
copy), `reader` reads them into any other layout, `manifest` describes them (with `module_names` of PyTorch),
`folder_lock` admits one run at a time; `files` has whole networks, whose layers are compared by
`layer_text`, `journal` (in `journal_format`) the scalars of a batch method, and a `log` (in `log_format`)
the records of a shard. Older `formats` are read, too. `row_payload` has the bytes of a few rows of sparse
tables.
No module here knows sockets or threads.

A part makes its local steps with the same optimizers and a state of its own: for `SGD` that is the paper's
w <- w - alpha*g, for the others it is ours (the paper does not say what a part's own rate is).
"""

from typing import TYPE_CHECKING

from partita.engine.lazily import names_of

if TYPE_CHECKING:
    from partita.engine.parameters.checkpoint import Checkpoints
    from partita.engine.parameters.files import load_parameters, save_parameters
    from partita.engine.parameters.initial_values import initialise
    from partita.engine.parameters.journal import Journal
    from partita.engine.parameters.journal_format import JournalHeader
    from partita.engine.parameters.layout import Layout, gather, scatter
    from partita.engine.parameters.manifest import CheckpointError, Manifest, ShardRecord
    from partita.engine.parameters.optimizers import (
        LARS,
        SGD,
        Adagrad,
        Adam,
        AdamW,
        Cosine,
        InverseTime,
        Momentum,
        Optimizer,
        RMSProp,
        UpdateContext,
    )
    from partita.engine.parameters.reader import Checkpoint
    from partita.engine.parameters.slots import Slot
    from partita.engine.parameters.snapshot import ShardSnapshot
    from partita.engine.parameters.storage import Updater
    from partita.engine.parameters.vector import Vector
    from partita.engine.parameters.vectors import VectorStore
else:
    __getattr__ = names_of(__name__, __file__)

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
    "InverseTime",
    "Journal",
    "JournalHeader",
    "Layout",
    "Manifest",
    "Momentum",
    "Optimizer",
    "RMSProp",
    "ShardRecord",
    "ShardSnapshot",
    "Slot",
    "UpdateContext",
    "Updater",
    "Vector",
    "VectorStore",
    "gather",
    "initialise",
    "load_parameters",
    "save_parameters",
    "scatter",
]
