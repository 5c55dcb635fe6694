"""Facts of this machine for a pool: its versions, its resources, and its label."""

from __future__ import annotations

import hashlib
import os
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import psutil

from partita.engine.protocol.pool.resources import Resources
from partita.engine.protocol.pool.versions import SAME_RELEASE
from partita.engine.runtime.versions import versions as versions_of_hosts

_ENGINE: Final = Path(__file__).resolve().parents[2]
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_NETWORK: Final = Path("/proc/self/ns/net")
_DEVICES: Final = Path("/dev")


@cache
def versions() -> dict[str, str]:
    """Returns the versions that are compared when a worker or a client meets a pool.

    That of Partita holds a digest of its files: a clone is not the release that it came from.
    """
    found = versions_of_hosts() | {"partita": f"{_installed('partita')}+{_digest()}"}
    return found | {name: _installed(name) for name in SAME_RELEASE}


def machine_label() -> str:
    """Returns the label of this machine: processes with the same one can share memory.

    It stands for the kernel that runs, the network namespace, and the user.
    """
    try:
        boot, network = _BOOT.read_text(encoding="ascii").strip(), os.readlink(_NETWORK)
    except OSError:
        return ""
    return hashlib.sha256(f"{boot} {network} {os.getuid()}".encode()).hexdigest()[:16]


def resources() -> Resources:
    """Returns what this process may use: its cores, NVIDIA's devices, and the machine's memory."""
    gpus = sum(1 for path in _DEVICES.glob("nvidia[0-9]*") if path.name.removeprefix("nvidia").isdigit())
    return Resources(cpu=len(os.sched_getaffinity(0)), gpu=gpus, memory=int(psutil.virtual_memory().total))


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"


def _digest() -> str:
    found = hashlib.sha256()
    for path in sorted(_ENGINE.rglob("*.py")):
        found.update(path.relative_to(_ENGINE).as_posix().encode())
        found.update(path.read_bytes())
    return found.hexdigest()[:8]
