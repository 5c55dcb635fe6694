"""A network on one machine: hosts with addresses of their own, and links of a chosen rate between them.

Each host is a network namespace, joined to a bridge by a pair of virtual interfaces; the bridge stands in a
namespace of its own, and this process is joined to it as well, without a limit. Namespaces have no names:
each is held by a process that ends with this one, and with the last process in it goes all that is in it. So
nothing is left behind, even by a kill. It needs root, `ip` and `tc`.

What it is not: the hosts share the machine's cores and memory, and a packet costs processor time where a
network card would cost none, so that 2 cores carry about 5 Gbit/s however fast a link may be. Delay, jitter
and loss are those of a bridge: none to speak of.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

from partita.engine.launch import Placement

MBIT: Final = 10**6
GBIT: Final = 10**9

_TOOLS: Final = ("ip", "tc", "unshare", "nsenter")
_NETWORK: Final = "198.18"  # set aside for benchmarks of networks (RFC 2544)
_QUEUE_BYTES: Final = 64 << 20  # a sender's window never fills it, so nothing is dropped
_PACKET_BYTES: Final = 70_000  # a little more than the largest that TCP hands to an interface
_SLOW: Final = 300 * MBIT
_SLOW_BURST_BYTES: Final = 10_000
_BURST_S: Final = 0.0003


@dataclass(frozen=True)
class Network:
    """Hosts on a network.

    Args:
        listen: the endpoint for a coordinator that runs in this process.
        places: where hosts run; each is a machine of its own, and shares memory with nobody.
        holders: the process that holds each host's namespaces.
        switch: the process that holds the bridge's.
    """

    listen: str
    places: tuple[Placement, ...]
    holders: tuple[int, ...]
    switch: int

    def plug(self, host: int, *, up: bool) -> None:
        """Pulls the cable of a host out of the bridge, or puts it back. Raises RuntimeError."""
        _run("ip", "link", "set", f"host{host}", "up" if up else "down", within=self.switch)

    def limit(self, host: int, bits_per_s: float) -> None:
        """Changes what the link of a host carries, each way. Raises RuntimeError."""
        for name, within in (("cable", self.holders[host]), (f"host{host}", self.switch)):
            _limit(name, bits_per_s, within=within)


def why_not() -> str | None:
    """The reason why network namespaces are not possible here, or None."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"there is no command {missing[0]!r}"
    if os.geteuid() != 0:
        return "only root makes network namespaces"
    try:
        with network(1, bits_per_s=GBIT):
            return None
    except (OSError, RuntimeError) as error:
        return str(error)


@contextmanager
def network(
    hosts: int, *, bits_per_s: float, mounts: str = "", burst_bytes: int | None = None
) -> Iterator[Network]:
    """Makes a network, and takes it down again.

    Args:
        hosts: how many there are, at most 200.
        bits_per_s: what the link of each host carries, each way.
        mounts: a shell script that gives each host file systems of its own: it runs in a mount namespace of
            that host. Without it hosts have the files of this machine.
        burst_bytes: what may pass at once after a silence; None: what keeps a link of this rate exact.

    Raises:
        RuntimeError: the system does not allow it; says which command failed.
    """
    name, subnet = secrets.token_hex(4), f"{_NETWORK}.{secrets.randbelow(256)}"
    with ExitStack() as stack:
        switch = stack.enter_context(_namespace("--net"))
        _run("ip", "link", "add", "bridge", "type", "bridge", within=switch)
        _run("ip", "link", "set", "bridge", "up", within=switch)
        coordinator = f"pt{name}"
        stack.callback(_remove, coordinator)
        _plug(coordinator, switch, "coordinator")
        _join(coordinator, f"{subnet}.1", within=None)
        kinds = ("--net", "--mount") if mounts else ("--net",)
        places, holders = [], []
        for host in range(hosts):
            inside = stack.enter_context(_namespace(*kinds))
            outside, address = f"host{host}", f"{subnet}.{host + 2}"
            _plug("cable", switch, outside, within=inside)
            _join("cable", address, within=inside)
            _limit("cable", bits_per_s, within=inside, burst_bytes=burst_bytes)
            _limit(outside, bits_per_s, within=switch, burst_bytes=burst_bytes)
            enter = _enter(inside, *kinds)
            if mounts:
                _run("sh", "-ec", mounts, entered=enter)
            places.append(Placement(enter, address))
            holders.append(inside)
        yield Network(f"tcp://{subnet}.1:*", tuple(places), tuple(holders), switch)


@contextmanager
def _namespace(*kinds: str) -> Iterator[int]:
    """Namespaces of these kinds, by the process that holds them."""
    with subprocess.Popen(
        ["unshare", *kinds, "sh", "-c", "echo held; exec cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # a Ctrl-C in the terminal does not take the network from under the hosts
    ) as holder:
        assert holder.stdout is not None and holder.stderr is not None
        if not holder.stdout.readline():
            raise RuntimeError(f"no network namespace: {holder.stderr.read().decode().strip()}")
        try:
            _run("ip", "link", "set", "lo", "up", within=holder.pid)
            yield holder.pid
        finally:
            holder.kill()


def _plug(name: str, switch: int, outside: str, *, within: int | None = None) -> None:
    """A pair of interfaces: one here or in a namespace, the other a port of the bridge."""
    _run(
        *("ip", "link", "add", name, "type", "veth", "peer", "name", outside, "netns", str(switch)),
        within=within,
    )
    _run("ip", "link", "set", outside, "master", "bridge", "up", within=switch)


def _join(name: str, address: str, *, within: int | None) -> None:
    _run("ip", "address", "add", f"{address}/24", "dev", name, within=within)
    _run("ip", "link", "set", name, "up", within=within)


def _limit(name: str, bits_per_s: float, *, within: int, burst_bytes: int | None = None) -> None:
    """Limits the traffic that leaves by this interface.

    `burst` may pass at once. Below a packet of TCP's, the kernel cuts each into pieces and waits between
    them: that keeps slow links exact, and halves the rate of a fast one (1 Gbit/s came to 0.5).
    """
    fast = max(_PACKET_BYTES, round(bits_per_s / 8 * _BURST_S))
    burst = burst_bytes or (fast if bits_per_s > _SLOW else _SLOW_BURST_BYTES)
    _run(
        *("tc", "qdisc", "replace", "dev", name, "root", "tbf", "rate", f"{round(bits_per_s)}bit"),
        *("burst", str(burst), "limit", str(_QUEUE_BYTES)),
        within=within,
    )


def _enter(holder: int, *kinds: str) -> tuple[str, ...]:
    files = {"--net": "net", "--mount": "mnt"}
    return ("nsenter", *(f"{kind}=/proc/{holder}/ns/{files[kind]}" for kind in kinds), "--")


def _remove(name: str) -> None:
    """The namespaces' own interfaces go with them; this one, in ours, sooner."""
    subprocess.run(["ip", "link", "delete", name], capture_output=True, check=False)


def _run(*command: str, within: int | None = None, entered: tuple[str, ...] = ()) -> None:
    entered = _enter(within, "--net") if within is not None else entered
    done = subprocess.run([*entered, *command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"'{' '.join(command)}' failed: {done.stderr.strip()}")
