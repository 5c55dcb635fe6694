"""One machine, and the link between two: what a cluster is made of."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from partita.layers.checks import check_flag, check_number, check_whole
from partita.partitioner.cluster.kernel_times import KernelTimes
from partita.partitioner.cluster.products import Products


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name:
        raise ValueError(f"{name!r} cannot name a machine; write for example Machine('a')")


def _check_device(device: object, machine: str) -> None:
    if not isinstance(device, str) or not re.fullmatch(r"cpu|cuda:(0|[1-9]\d*)", device):
        raise ValueError(
            f"machine '{machine}': the device is {device!r}; write 'cpu', or for example 'cuda:0'"
        )


def _check_number(value: object, what: str, *, zero: bool = False) -> None:
    rule = f"; write a finite number of {'at least' if zero else 'more than'} zero"
    check_number(value, what, zero=zero, rule=rule)


@dataclass(frozen=True)
class Machine:
    """One machine of a replica: a process with kernel threads, and one thread for its messages.

    Args:
        name: as plans print it.
        threads: kernel threads, at work on one computation at a time.
        flops_per_s: rate of a thread's matrix products, where its kernels were not measured. The default is a
            guess for a server's core of the 2020s.
        bytes_per_s: rate at which arithmetic on whole arrays reads and writes memory, likewise.
        memory_bytes: what a part may take; None for no limit.
        device: where its kernels run: "cpu", or a GPU as "cuda:0".
        host: where it runs: machines of one host share its memory and its way to other hosts. "": a host of
            its own.
        kind: a name for machines that are alike; links may be given between kinds.
        speed: of its kernels, relative to what was measured of them.
        instruction_s: to hand an instruction to a kernel thread and hear that it is done. The default is a
            guess for Python.
        step_s: to be told to begin a step, and to tell that it is over. A guess too.
        cold_s: by which an instruction takes longer where kernels leave nothing of the runtime in the caches;
            a message takes that three times, once where it is sent and twice where it is received.
        cores: that it has to itself. With no more of them than kernel threads (None: as many), sending and
            receiving holds the kernels up.
        times: what was measured of its kernels; None where nothing was.
        products: which library computes which of its matrix products, where a calibration says so. None: the
            plan's fixed rule says so, see `Plan.products`.

    Raises:
        ValueError: one of them is not such a number, or not more than zero, or there is no such device.
    """

    name: str
    threads: int = 1
    flops_per_s: float = 80e9
    bytes_per_s: float = 10e9
    memory_bytes: int | None = None
    device: str = "cpu"
    host: str = ""
    kind: str = ""
    speed: float = 1.0
    instruction_s: float = 40e-6
    step_s: float = 60e-6
    cold_s: float = 0.0
    cores: int | None = None
    times: KernelTimes | None = field(default=None, compare=False, repr=False)
    products: Products | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        _check_name(self.name)
        found = f"machine '{self.name}': the number of"
        object.__setattr__(self, "threads", check_whole(self.threads, f"{found} threads is"))
        _check_number(self.flops_per_s, f"{found} flop/s is")
        _check_number(self.bytes_per_s, f"{found} bytes/s is")
        if self.cores is not None:
            object.__setattr__(self, "cores", check_whole(self.cores, f"{found} cores is"))
        told = f"machine '{self.name}': the memory"
        if self.memory_bytes is not None:
            object.__setattr__(self, "memory_bytes", check_whole(self.memory_bytes, f"{told} in bytes is"))
        _check_device(self.device, self.name)
        for what in ("host", "kind"):
            if not isinstance(getattr(self, what), str):
                raise ValueError(
                    f"machine '{self.name}': the {what} is {getattr(self, what)!r}; write a name, or ''"
                )
        _check_number(self.speed, f"machine '{self.name}': the speed is")
        for what in ("instruction_s", "step_s", "cold_s"):
            told = f"machine '{self.name}': the {what} is"
            _check_number(getattr(self, what), told, zero=True)
        if not isinstance(self.times, KernelTimes | None):
            raise ValueError(
                f"machine '{self.name}': the times are {self.times!r}; give what a calibration measured"
            )
        if not isinstance(self.products, Products | None):
            raise ValueError(
                f"machine '{self.name}': the products are {self.products!r}; give what a calibration measured"
            )

    @property
    def place(self) -> str:
        """The name, and the device where that is no CPU: `a (cuda:0)`."""
        return self.name if self.device == "cpu" else f"{self.name} ({self.device})"

    @property
    def site(self) -> str:
        """The host; of a machine that names none, its own."""
        return self.host or self.name


@dataclass(frozen=True)
class Link:
    """The way of a message from one machine to another. The defaults are guesses.

    Args:
        latency_s: that nobody is busy.
        bytes_per_s: each way.
        both_ways: whether messages may go at this rate both ways at once; else both share it.
        send_s, receive_s: for which a message, however small, keeps the messenger of its machine busy.
        send_bytes_per_s, receive_bytes_per_s: at which the messenger copies what is in it.

    Raises:
        ValueError: a time is less than zero, or a rate not more.
    """

    latency_s: float = 100e-6
    bytes_per_s: float = 2e9
    both_ways: bool = True
    send_s: float = 30e-6
    receive_s: float = 30e-6
    send_bytes_per_s: float = 5e9
    receive_bytes_per_s: float = 5e9

    def __post_init__(self) -> None:
        _check_number(self.latency_s, "the latency of a link is", zero=True)
        _check_number(self.bytes_per_s, "the bytes/s of a link are")
        check_flag(self.both_ways, "both_ways of a link is")
        for what in ("send", "receive"):
            _check_number(getattr(self, f"{what}_s"), f"the {what}_s of a link is", zero=True)
            _check_number(getattr(self, f"{what}_bytes_per_s"), f"the {what}_bytes_per_s of a link are")


SHARED_MEMORY = Link(latency_s=50e-6, bytes_per_s=4e9)
"""A guess of how processes of one host reach one another."""


@dataclass(frozen=True)
class Between:
    """The link between two hosts, by their names, or between machines of two kinds.

    Raises:
        ValueError: these are no two names.
    """

    one: str
    other: str
    link: Link

    def __post_init__(self) -> None:
        names: tuple[object, ...] = (self.one, self.other)
        if not all(isinstance(name, str) and name for name in names):
            raise ValueError(f"a link is between {self.one!r} and {self.other!r}; name two hosts or kinds")
        check_link(self.link)


def check_link(link: object) -> None:
    """Raises ValueError where it is none."""
    if not isinstance(link, Link):
        raise ValueError(f"the link of a cluster is {link!r}; write for example Link(latency_s=1e-4)")
