"""Puts hosts somewhere, supervises them, and leaves nothing behind.

`launcher` is the interface, and hosts as threads of this process; `processes` starts them as processes, each
with a key pair of its own, on this machine or where a `placement` says; `worker` is what such a process runs,
and `cores` what it keeps to.
"""

from partita.engine.launch.launcher import Launcher, ThreadLauncher
from partita.engine.launch.placement import Placement
from partita.engine.launch.processes import ProcessLauncher

__all__ = ["Launcher", "Placement", "ProcessLauncher", "ThreadLauncher"]
