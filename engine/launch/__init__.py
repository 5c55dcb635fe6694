"""Puts hosts somewhere, supervises them, and leaves nothing behind.

`launcher` is the interface, and hosts as threads of this process; `processes` starts them as processes of
this machine, each with a key pair of its own; `worker` is what such a process runs.
"""

from partita.engine.launch.launcher import Launcher, ThreadLauncher
from partita.engine.launch.processes import ProcessLauncher

__all__ = ["Launcher", "ProcessLauncher", "ThreadLauncher"]
