"""Data of any kind, as minibatches that are made ahead of computing.

A `dataset` says what examples hold and how a host reads them. Each kind of data that a user hands over has
an adapter, and `taking` finds it: `columns` of separate arrays (mapped files by `rows`), `items` (a
`Dataset` of PyTorch, rows of Hugging Face), a `stream` that a function opens, and files by their `paths`:
`npz_files`, `parquet_files` and `pictures`; some are read as `blocks`. What only one process can read is
copied once by `spool`. `loader` has the settings. The `order` of an epoch is the same for any number of
replicas; large ones are `counted`; `clients` divides the data. `prepared` data has `naming` (which field is
for which input), `transforms` with their `draws`, and `conversion` to the type of the network, with weights
of examples by `weighing`; minibatches are made `ahead`, by threads or by `workers`, each of which runs
`worker`, and `times` say how long computing waited for them.
"""

from typing import TYPE_CHECKING

from partita.engine.lazily import names_of

if TYPE_CHECKING:
    from partita.engine.data.dataset import DataError, Dataset, Field, Reader
    from partita.engine.data.draws import Draws
    from partita.engine.data.loader import Loader
    from partita.engine.data.npz_files import Npz
    from partita.engine.data.parquet_files import Parquet
    from partita.engine.data.pictures import Pictures
    from partita.engine.data.stream import Stream
    from partita.engine.data.transforms import (
        ChannelsLast,
        HorizontalFlip,
        Normalize,
        PerExample,
        RandomCrop,
    )
else:
    __getattr__ = names_of(__name__, __file__)

__all__ = [
    "ChannelsLast",
    "DataError",
    "Dataset",
    "Draws",
    "Field",
    "HorizontalFlip",
    "Loader",
    "Normalize",
    "Npz",
    "Parquet",
    "PerExample",
    "Pictures",
    "RandomCrop",
    "Reader",
    "Stream",
]
