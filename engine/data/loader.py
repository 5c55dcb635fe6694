"""`Loader`: data with the settings of how it is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

from partita.engine.data.dataset import Dataset
from partita.engine.data.order import Ordering
from partita.engine.data.prepared import AHEAD_BYTES
from partita.engine.data.transforms import Transform
from partita.layers.arguments import Arguments
from partita.layers.checks import check_fields, check_whole

WINDOW_BYTES = 1 << 25
"""Bytes of the window within which examples are permuted that are read by blocks, unless a user says so."""

_MOST_WORKERS = 256


@dataclass(frozen=True)
class Loader(Arguments):
    """Data of any kind that `train`, `evaluate` and `predict` take, and how minibatches are made of it.

    Args:
        data: the data.
        transform: a function of a minibatch, or several that follow one another: `transform(batch)` or
            `transform(batch, draws)`, where `batch` is a dictionary of arrays `[count, *shape]` and `draws`
            gives random numbers by the seed, the epoch and the example (`Draws`). It returns such a
            dictionary.
        shuffle: whether training takes the examples of each epoch in a new order; False: as they lie. A
            number: examples are permuted within windows of so many, whose blocks come in a new order where
            that is possible. True permutes all examples; where they are read by blocks, within windows of
            32 MiB.
        workers: threads or processes that read and transform for each part.
        processes: whether these are processes, which Python code of transforms or of a `Dataset` needs to run
            at the same time. They open the data by themselves. Streams are read by threads.
        ahead_bytes: the most bytes of minibatches that are made ahead of a part; two are, in any case.

    Raises:
        ValueError: a setting is out of range, or a transform is no function.
    """

    _meant: ClassVar[Mapping[str, str | tuple[str, ...]]] = {
        "num_workers": ("workers",),
        "transforms": ("transform",),
        "batch_size": "the batch is that of partition(net, cluster, batch=...)",
        "drop_last": "no example is left out: the last minibatch of an epoch has the remainder",
        "prefetch_factor": ("ahead_bytes",),
        "buffer_size": ("shuffle",),
    }

    data: Any
    _: KW_ONLY
    transform: Transform | Sequence[Transform] = ()
    shuffle: bool | int = True
    workers: int = 1
    processes: bool = False
    ahead_bytes: int = AHEAD_BYTES

    def __post_init__(self) -> None:
        check_fields(self, check_whole, "workers", "ahead_bytes", of="Loader's")
        if self.workers > _MOST_WORKERS:
            raise ValueError(f"Loader has {self.workers} workers; give at most {_MOST_WORKERS}")
        if not isinstance(self.shuffle, bool):
            check_fields(self, check_whole, "shuffle", of="Loader's")
        for one in self.transforms:
            if not callable(one):
                raise ValueError(f"the transform {one!r} is no function; give a function of a minibatch")
        if isinstance(self.data, Loader):
            raise ValueError("the data of this Loader is a Loader; give one of them, with all settings")

    @property
    def transforms(self) -> tuple[Transform, ...]:
        """All transforms, in their order."""
        return (self.transform,) if callable(self.transform) else tuple(self.transform)

    @property
    def is_plain(self) -> bool:
        """Returns whether minibatches are made without any of these settings."""
        return not self.transforms and self.workers == 1 and not self.processes and self.shuffle is True

    def ordering(self, dataset: Dataset) -> Ordering:
        """Returns the order of a data set's examples."""
        if self.shuffle is False:
            return Ordering(shuffled=False)
        blocks = dataset.blocks
        if self.shuffle is not True:
            return Ordering(window=self.shuffle, blocks=blocks, seekable=dataset.seekable)
        if not blocks:
            return Ordering()
        window = max(WINDOW_BYTES // max(dataset.example_bytes, 1), 1)
        return Ordering(window=window, blocks=blocks, seekable=dataset.seekable)
