"""Starts hosts, supervises them, and leaves nothing behind.

`launcher` is the interface, and starts hosts as threads of this process; `processes` starts them as
processes, each with a key pair of its own, on this machine or in another `placement`. On this machine a
`template` imports the engine once and forks each host; `forks` is its launcher's side. Hosts that are
`inline` run in the coordinator's process. `start` is the first file of any process, `bootstrap` its first
message, `worker` its life as a host, and `cores` the cores it keeps to; `descriptors` checks that there are
enough open files.

`on` is the table of all ways to start hosts beyond this process, and `request` what a run asks of each. The
subpackage `pool` starts hosts at workers on other machines, `symmetric` at the ranks of a job, and `ray` in
the bundles of a Ray cluster. `remote_workers` starts workers by ssh, on the machines of a `hostfile`;
`spawned_worker` is such a worker, and `own_pool` the pool that a process serves for its own runs.
"""

from typing import TYPE_CHECKING

from partita.engine.lazily import names_of

if TYPE_CHECKING:
    from partita.engine.launch.launcher import Launcher, ThreadLauncher
    from partita.engine.launch.placement import Placement
    from partita.engine.launch.processes import ProcessLauncher
else:
    __getattr__ = names_of(__name__, __file__)

__all__ = ["Launcher", "Placement", "ProcessLauncher", "ThreadLauncher"]
