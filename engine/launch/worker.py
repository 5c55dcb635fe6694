"""The processes of a run: a host that a command has started, and the template, which forks hosts.

A host that a command has started reads its `Bootstrap` from its standard input.
"""

from __future__ import annotations

import gc
import os
import sys
import warnings
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
from numba.core.registry import cpu_target
from threadpoolctl import threadpool_limits

from partita.engine.files.access import HostFiles, RemoteFiles
from partita.engine.launch.bootstrap import Bootstrap
from partita.engine.launch.cores import keep_to_own_cores
from partita.engine.launch.descriptors import raise_limit
from partita.engine.launch.start import set_name
from partita.engine.launch.template import Template
from partita.engine.numerics.code_files import code_folder
from partita.engine.runtime.host import Host
from partita.engine.runtime.task import HostTask
from partita.engine.transport.keys import KeyPair
from partita.engine.transport.mailbox import Mailbox
from partita.engine.transport.sockets import given_socket
from partita.engine.transport.zeromq import ZmqMailbox


def settle(bootstrap: Bootstrap, task: HostTask) -> None:
    """Limits the threads of a role to its share of this machine. Kernels call a BLAS from threads of their
    own.
    """
    threadpool_limits(limits=1, user_api="blas")
    if bootstrap.together:
        keep_to_own_cores(*task.rank, task.threads)


def files_of(bootstrap: Bootstrap, keys: KeyPair) -> HostFiles:
    """Returns the files of the run, which may be on another machine."""
    if bootstrap.files is None:
        return HostFiles()
    place = bootstrap.listen.rpartition(":")[0]

    def mailbox() -> Mailbox:
        return ZmqMailbox(keys, endpoint=f"{place}:*", encryption=bootstrap.encryption)

    scratch = Path(bootstrap.scratch) if bootstrap.scratch else None
    return RemoteFiles(bootstrap.files, bootstrap.name, mailbox=mailbox, scratch=scratch)


def main() -> None:
    """Runs the host that standard input describes."""
    encoded = sys.stdin.buffer.read()
    if not encoded:
        raise SystemExit("a worker is started by partita and reads who it is from its standard input")
    live(encoded)


def template() -> None:
    """Serves the launcher at the other end of standard input, as `Template`."""
    control = given_socket(os.dup(0))
    with open(os.devnull, "rb") as nothing:  # for hosts to read
        os.dup2(nothing.fileno(), 0)
    # Numba sets itself up when it first compiles or loads something; here that is done once for all hosts.
    cpu_target.typing_context.refresh()
    cpu_target.target_context.refresh()
    code_folder()  # where it cannot be used, a warning; hosts have none
    gc.freeze()  # a collection in a host would write to, and so copy, nearly all that is shared with it
    gc.enable()
    Template(control, live).serve()
    os._exit(0)


def live(encoded: bytes | bytearray) -> None:
    """Runs the host of an encoded `Bootstrap`, and ends the process when the host has stopped."""
    bootstrap = msgspec.json.decode(encoded, type=Bootstrap)
    set_name(bootstrap.name)
    raise_limit()
    np.random.seed()  # forks of one process must not draw the same numbers
    # Numbers that are not finite are found in the loss and reported once; kernel threads would warn of each.
    warnings.filterwarnings("ignore", category=RuntimeWarning)
    sys.path.extend(folder for folder in bootstrap.path if folder not in sys.path)
    keys = KeyPair(bootstrap.public_key, bootstrap.secret_key)
    with ZmqMailbox(
        keys,
        endpoint=bootstrap.listen,
        machine=bootstrap.machine,
        encryption=bootstrap.encryption,
    ) as mailbox:
        host = Host(
            mailbox,
            bootstrap.name,
            bootstrap.incarnation,
            bootstrap.coordinator,
            prepare=partial(settle, bootstrap),
            files=files_of(bootstrap, keys),
        )
        host.run()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # nothing is left to do, and taking compiled code apart would take long
