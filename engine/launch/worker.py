"""The process of a host: `python -m partita.engine.launch.worker`, told who it is on its standard input."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import warnings
from functools import partial

import msgspec
from threadpoolctl import threadpool_limits

from partita.engine.launch.cores import keep_to_own_cores
from partita.engine.launch.processes import Bootstrap
from partita.engine.runtime.host import Host
from partita.engine.runtime.task import Task
from partita.engine.transport.keys import KeyPair
from partita.engine.transport.zeromq import ZmqMailbox

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Asks the kernel to kill this process when its parent's thread ends; ends at once if it already has."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise SystemExit("the process that started this worker is gone")


def settle(bootstrap: Bootstrap, task: Task) -> None:
    """What a role's threads may use of this machine."""
    threadpool_limits(limits=task.threads, user_api="blas")
    if bootstrap.together:
        keep_to_own_cores(*task.rank, task.threads)


def main() -> None:
    """Lives as the host that standard input describes."""
    told = sys.stdin.buffer.read()
    if not told:
        raise SystemExit("a worker is started by partita and told who it is on its standard input")
    bootstrap = msgspec.json.decode(told, type=Bootstrap)
    die_with_parent(bootstrap.parent)
    # Numbers that run away are found in the loss and told once; kernel threads would warn of each.
    warnings.filterwarnings("ignore", category=RuntimeWarning)
    sys.path.extend(folder for folder in bootstrap.path if folder not in sys.path)
    keys = KeyPair(bootstrap.public_key, bootstrap.secret_key)
    with ZmqMailbox(keys, endpoint=bootstrap.listen, machine=bootstrap.machine) as mailbox:
        host = Host(
            mailbox,
            bootstrap.name,
            bootstrap.incarnation,
            bootstrap.coordinator,
            settle=partial(settle, bootstrap),
        )
        host.run()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # nothing is left to do, and taking compiled code apart would take long


if __name__ == "__main__":
    main()
