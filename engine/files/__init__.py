"""Files of the coordinator's machine, for hosts on any: data, first parameters, checkpoints.

On its machine a host opens them by their paths. Elsewhere it asks the host `files`, whose machine is
`protocol.file_server`: a `server` in the coordinator's process with a `catalogue` of what may be read and
written. A host's `access` decides which it is; its `connection` reads and writes chunks on a thread of its
own. `copies` of files are fetched as they are needed, and kept; an array that is being fetched is `fetched`,
and `remote_checkpoints` sends and fetches those. `sources` (one of them has `host_files`) say where data is,
and `stores` where checkpoints are kept; those at a URL have a `mirror`. The `push_log` keeps the pushes that
shards have acknowledged, `temporary` is the folder of a run, and `background` a thread for long work of a
host.
"""

from typing import TYPE_CHECKING

from partita.engine.lazily import names_of

if TYPE_CHECKING:
    from partita.engine.files.sources import ArrayFile, DataSource, Rows
    from partita.engine.files.stores import CheckpointStore, Folder, SharedFolder, UrlStore
else:
    __getattr__ = names_of(__name__, __file__)

__all__ = ["ArrayFile", "CheckpointStore", "DataSource", "Folder", "Rows", "SharedFolder", "UrlStore"]
