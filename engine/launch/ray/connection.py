"""The connection of this process to a Ray cluster."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from partita.engine.launch.ray.bundles import Bundle
from partita.engine.protocol.failure import RunFailed
from partita.engine.transport.addresses import interfaces, unreachable

ADDRESS: Final = "RAY_ADDRESS"
"""Variable of the environment with the address of a cluster: Ray's own."""


def imported() -> Any:
    """Returns Ray's module.

    Raises:
        ImportError: it is not installed.
    """
    try:
        import ray
    except ImportError as error:
        raise ImportError(
            f"{error}, and hosts on a Ray cluster need it; run: pip install 'partita[ray]'"
        ) from None
    return ray


@contextmanager
def connected(address: str | None, log: Callable[[str], object]) -> Iterator[None]:
    """Connects this process to a cluster while the context lasts, unless it is connected already.

    Args:
        address: as `ray.init` takes it; Ray's rules if not given.
        log: shows a line.

    Raises:
        ImportError: Ray is not installed.
        RunFailed: there is no cluster at the address.
    """
    ray = imported()
    if ray.is_initialized():
        yield
        return
    handler = signal.getsignal(signal.SIGTERM)
    try:
        _connect(ray, address, log)
        yield
    finally:
        ray.shutdown()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)  # Ray has set its own


def _connect(ray: Any, address: str | None, log: Callable[[str], object]) -> None:
    wanted = address or os.environ.get(ADDRESS)
    host, _, port = (wanted or "").removeprefix("ray://").rpartition(":")
    why = unreachable(f"tcp://{host}:{port}") if host and port.isdigit() else None
    if why is not None:
        raise RunFailed(
            f"there is no Ray cluster at {wanted}: {why}; see that `ray start --head` runs there and that "
            f"{'the address' if address else ADDRESS} is right"
        )
    try:
        ray.init(address=address or "auto", logging_level=logging.WARNING)
    except ConnectionError as error:
        if "AuthenticationError" in str(error.__cause__):
            raise RunFailed(
                f"the Ray cluster at {wanted or 'this machine'} wants its token: set RAY_AUTH_MODE=token, "
                "and RAY_AUTH_TOKEN_PATH to a file with the token of its head"
            ) from None
        if wanted is not None:
            text = " ".join(str(error).split())
            raise RunFailed(f"there is no Ray cluster at {wanted}: {text}") from None
    else:
        log(f"uses the Ray cluster at {ray.get_runtime_context().gcs_address}")
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(address="local", logging_level=logging.WARNING, include_dashboard=False)
    log(f"{ADDRESS} is not set and no Ray cluster is found here: one is started here, and ends with this run")


def nodes() -> dict[str, Bundle]:
    """Returns what each node has that is alive, by its address; a second node there gets a number."""
    found: dict[str, Bundle] = {}
    for node in imported().nodes():
        if node["Alive"]:
            address = str(node["NodeManagerAddress"])
            names = (address if n == 1 else f"{address} ({n})" for n in range(1, len(found) + 2))
            found[next(name for name in names if name not in found)] = node["Resources"]
    return found


def own_address() -> str:
    """Returns the address that Ray uses for this machine.

    Raises:
        RunFailed: this process is not in the cluster.
    """
    ray = imported()
    here = ray.get_runtime_context().get_node_id()
    address = next(str(node["NodeManagerAddress"]) for node in ray.nodes() if node["NodeID"] == here)
    if address not in interfaces().values():
        raise RunFailed(
            f"Ray has this process at {address}, an address that this machine does not have, so workers "
            "cannot connect to it; run it on a machine of the cluster, for example by `ray job submit`, and "
            "not over ray://"
        )
    return address
