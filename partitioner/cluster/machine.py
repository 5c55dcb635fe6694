"""Machines of a cluster."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import cast

from partita.layers.checks import check_number, check_whole
from partita.partitioner.cluster.kernel_times import KernelTimes
from partita.partitioner.cluster.products import Products


def _check_number(value: object, what: str, *, zero: bool = False) -> None:
    rule = f"; write a finite number of {'at least' if zero else 'more than'} zero"
    check_number(value, what, zero=zero, rule=rule)


@dataclass(frozen=True)
class Machine:
    """One machine of a replica: a process with kernel threads, and one thread for its messages.

    Args:
        name: name that plans print.
        threads: kernel threads; all work on one instruction at a time.
        flops_per_s: rate of one thread's matrix products, if its kernels were not measured. The default is a
            guess for a server's core of the 2020s.
        bytes_per_s: rate at which arithmetic on whole arrays reads and writes memory, if not measured.
        memory_bytes: memory limit of a part; None for no limit.
        device: device of its kernels: "cpu", a GPU as "cuda:0", or "torch": those of a GPU, on the host.
        host: name of its host: machines of one host share its memory and its links. "": a host of its own.
        kind: name of machines that are alike; links may be given between kinds.
        worker: name of the worker of a pool that the machine stands for; a run on this pool puts its part
            there. "": any worker that has what the part needs.
        speed: factor on the measured speed of its kernels.
        instruction_s: overhead of an instruction: scheduling it on a kernel thread, and its completion. The
            default is a guess for Python.
        step_s: overhead of a step: its start and the report of its end. A guess too.
        cold_s: additional time of an instruction if kernels leave nothing of the runtime in the caches; a
            message takes three times as much, once where it is sent and twice where it is received.
        cores: cores that the machine has to itself. Unless there are more of them than kernel threads (None:
            as many), sending and receiving delay the kernels.
        times: measured times of its kernels; None if none were measured.
        products: measured choice of the library for each matrix product. None: by the plan's fixed rule, see
            `Plan.products`.

    Raises:
        ValueError: a number is out of range or no number, or there is no such device.
    """

    name: str
    threads: int = 1
    flops_per_s: float = 80e9
    bytes_per_s: float = 10e9
    memory_bytes: int | None = None
    device: str = "cpu"
    host: str = ""
    kind: str = ""
    worker: str = ""
    speed: float = 1.0
    instruction_s: float = 40e-6
    step_s: float = 60e-6
    cold_s: float = 0.0
    cores: int | None = None
    times: KernelTimes | None = field(default=None, compare=False, repr=False)
    products: Products | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        name, device = cast(object, self.name), cast(object, self.device)
        if not isinstance(name, str) or not name:
            raise ValueError(f"{name!r} cannot name a machine; write for example Machine('a')")
        found = f"machine '{name}': the number of"
        object.__setattr__(self, "threads", check_whole(self.threads, f"{found} threads is"))
        _check_number(self.flops_per_s, f"{found} flop/s is")
        _check_number(self.bytes_per_s, f"{found} bytes/s is")
        if self.cores is not None:
            object.__setattr__(self, "cores", check_whole(self.cores, f"{found} cores is"))
        if self.memory_bytes is not None:
            told = f"machine '{name}': the memory in bytes is"
            object.__setattr__(self, "memory_bytes", check_whole(self.memory_bytes, told))
        if not isinstance(device, str) or not re.fullmatch(r"cpu|torch|cuda:(0|[1-9]\d*)", device):
            raise ValueError(
                f"machine '{name}': the device is {device!r}; write 'cpu', or for example 'cuda:0'"
            )
        for what in ("host", "kind", "worker"):
            if not isinstance(getattr(self, what), str):
                raise ValueError(
                    f"machine '{name}': the {what} is {getattr(self, what)!r}; write a name, or ''"
                )
        _check_number(self.speed, f"machine '{name}': the speed is")
        for what in ("instruction_s", "step_s", "cold_s"):
            _check_number(getattr(self, what), f"machine '{name}': the {what} is", zero=True)
        for what, kind in (("times", KernelTimes), ("products", Products)):
            if not isinstance(getattr(self, what), kind | None):
                raise ValueError(
                    f"machine '{name}': the {what} are {getattr(self, what)!r}; "
                    "give what a calibration measured"
                )

    @property
    def place(self) -> str:
        """The name, with the device unless it is a CPU: `a (cuda:0)`."""
        return self.name if self.device == "cpu" else f"{self.name} ({self.device})"

    @property
    def site(self) -> str:
        """The host, or the machine's own name if it names none."""
        return self.host or self.name
