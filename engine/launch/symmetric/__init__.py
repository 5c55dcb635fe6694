"""Symmetric start: all ranks of a job run the same program, and one of them coordinates.

`environment` has `Environment`, the argument of `train`. `job` is the table of those who start ranks, with
Slurm's lists of nodes in `node_list`; `rendezvous` says how ranks find rank 0 and by which keys they know one
another, with `job_keys` for those that follow from a secret. `rank_zero` coordinates, `rank_worker` is what
all other ranks do.
"""

from typing import TYPE_CHECKING

from partita.engine.lazily import names_of

if TYPE_CHECKING:
    from partita.engine.launch.symmetric.environment import Environment
    from partita.engine.launch.symmetric.job_keys import JobSecret
else:
    __getattr__ = names_of(__name__, __file__)

__all__ = ["Environment", "JobSecret"]
