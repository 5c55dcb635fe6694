"""The machines of a pool, without I/O: a registry, its workers, and the clients that train on them.

A *worker* is a process that joins a pool and starts hosts for clients; the *registry* knows all workers and
places the hosts of each run on them; a *client* is one run. All talk by repeated states and not by events:
who joins or asks repeats it about twice a second, every answer holds everything, and so a message that is
lost, late or doubled does no harm, and whoever is restarted learns all from the next message.

`messages` are theirs, `resources` what a worker has and a host needs, `placement` who gets what, `versions`
what must match; `registry`, `worker` and `client` are the machines, with their events and effects in
`registry_events`, `worker_events` and `client_events`. `members` has the workers and runs that a registry
knows, and `pauses` the time in which the own process did not run.
"""

from partita.engine.protocol.pool.client import ClientMachine
from partita.engine.protocol.pool.registry import RegistryMachine
from partita.engine.protocol.pool.resources import Resources
from partita.engine.protocol.pool.worker import WorkerMachine

__all__ = ["ClientMachine", "RegistryMachine", "Resources", "WorkerMachine"]
