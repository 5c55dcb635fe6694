"""Pools: workers on any machine that start the hosts of runs, and the registry that knows them.

`pool` has `Pool`, the argument of `train`, `join_file` where a pool and keys are, and `launcher` the launcher
behind it, with `client`, the thread that keeps up its connections. `worker` is the process that `partita
worker` runs, `server` the registry of `partita pool serve`, and `probes` has the slow checks of both. The
decisions of all three are in `protocol/pool`. `facts` says what this machine is, `host_cores` keeps hosts to
cores of their own, `needs` says what the hosts of a plan need, `run_ids` by which ids the processes of a run
ask, and `user_code` lets the user's own modules travel; `inspect` asks a pool for its state.
"""

from typing import TYPE_CHECKING

from partita.engine.lazily import names_of

if TYPE_CHECKING:
    from partita.engine.launch.pool.inspect import ask_pool
    from partita.engine.launch.pool.join_file import JoinFile
    from partita.engine.launch.pool.launcher import PoolLauncher
    from partita.engine.launch.pool.pool import Pool
    from partita.engine.launch.pool.server import PoolServer
    from partita.engine.launch.pool.worker import PoolWorker, WorkerSettings
else:
    __getattr__ = names_of(__name__, __file__)

__all__ = ["JoinFile", "Pool", "PoolLauncher", "PoolServer", "PoolWorker", "WorkerSettings", "ask_pool"]
