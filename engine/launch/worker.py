"""The process of a host: `python -m partita.engine.launch.worker`, told who it is on its standard input."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

import msgspec
from threadpoolctl import threadpool_limits

from partita.engine.launch.processes import Bootstrap
from partita.engine.runtime.host import Host
from partita.engine.transport.keys import KeyPair
from partita.engine.transport.zeromq import ZmqMailbox

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Asks the kernel to kill this process when its parent's thread ends; ends at once if it already has."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise SystemExit("the process that started this worker is gone")


def main() -> None:
    """Lives as the host that standard input describes."""
    bootstrap = msgspec.json.decode(sys.stdin.buffer.read(), type=Bootstrap)
    die_with_parent(bootstrap.parent)
    sys.path.extend(folder for folder in bootstrap.path if folder not in sys.path)
    with ZmqMailbox(KeyPair(bootstrap.public_key, bootstrap.secret_key)) as mailbox:
        host = Host(
            mailbox,
            bootstrap.name,
            bootstrap.incarnation,
            bootstrap.coordinator,
            limit_threads=lambda threads: threadpool_limits(limits=threads, user_api="blas"),
            orphaned_s=bootstrap.orphaned_s,
        )
        host.run()


if __name__ == "__main__":
    main()
