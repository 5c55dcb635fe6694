"""Versions that all hosts of a run must share. Imports nothing that takes long."""

from __future__ import annotations

import platform
from importlib.metadata import version

import cloudpickle
import zmq


def versions() -> dict[str, str]:
    """Returns the versions that all hosts of a run must share."""
    return {
        "python": platform.python_version(),
        "cloudpickle": cloudpickle.__version__,
        "numpy": version("numpy"),
        "libzmq": zmq.zmq_version(),
    }
