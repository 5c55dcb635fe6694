"""The ranks of a job, by the environment variables of whatever started them: Slurm, MPI, torchrun,
Kubernetes.

`STARTERS` is the only place with names of variables. A row that is more specific comes before those whose
variables the same process may have too: torchrun inside a Slurm job, for example, or `mpirun` there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from partita.engine.launch.symmetric.node_list import nodes_of, tasks_per_node

Environ: TypeAlias = Mapping[str, str]

RANKS: Final = "WORLD_SIZE"
ADDRESS: Final = "MASTER_ADDR"
PORT: Final = "MASTER_PORT"
JOB: Final = "PARTITA_JOB_ID"

_INDEXED: Final = re.compile(r"(?P<job>[^.]+)-(?P<index>\d+)(?P<domain>\..+)?")


class Starter(NamedTuple):
    """A program that starts ranks, with the variables that it sets. Of several names the first one set is
    taken.

    `marks`: all are set if it started this process. `rank` and `size`: of this rank, and the number of ranks.
    `local_size`: number of ranks on this node. `cpus`: cores of each rank. `job`: all of
    those that are set tell the job from others. `host_of`: finds the host name of a rank, "" where it is not
    known. `takes_port`: it listens at `MASTER_PORT` itself. `source`: where the names are documented.
    """

    name: str
    source: str
    marks: tuple[str, ...]
    rank: tuple[str, ...]
    size: tuple[str, ...]
    local_size: tuple[str, ...] = ()
    cpus: tuple[str, ...] = ()
    job: tuple[str, ...] = ()
    host_of: Callable[[Environ, str, int], str] = lambda environ, host, rank: ""
    takes_port: bool = False


def _node(environ: Environ, host: str, rank: int) -> str:
    """Slurm places rank 0 on the first node of a step; the others are known where there is one on each."""
    listed = _first(environ, ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"))
    found = nodes_of(listed) if listed else ("",)
    if rank == 0 or len(found) == 1:
        return found[0]
    return found[rank] if str(len(found)) == _first(environ, _SLURM.size) else ""


def _pod(environ: Environ, host: str, rank: int) -> str:
    """A pod's host name is `JOB-INDEX`, and in a headless service `JOB-INDEX.SERVICE.NAMESPACE.svc...`."""
    match = _INDEXED.fullmatch(host)
    return "" if match is None else f"{match['job']}-{rank}{match['domain'] or ''}"


_TORCHRUN: Final = Starter(
    "torchrun",
    "https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables",
    marks=("TORCHELASTIC_RUN_ID", "RANK"),
    rank=("RANK",),
    size=(RANKS,),
    local_size=("LOCAL_WORLD_SIZE",),
    job=("TORCHELASTIC_RUN_ID", ADDRESS, PORT),
    takes_port=True,
)
_OPEN_MPI: Final = Starter(
    "Open MPI",
    "https://docs.open-mpi.org/en/v5.0.x/tuning-apps/environment-var.html",
    marks=("OMPI_COMM_WORLD_RANK",),
    rank=("OMPI_COMM_WORLD_RANK",),
    size=("OMPI_COMM_WORLD_SIZE",),
    local_size=("OMPI_COMM_WORLD_LOCAL_SIZE",),
    job=("PMIX_NAMESPACE",),
)
_SLURM: Final = Starter(
    "Slurm",
    "https://slurm.schedmd.com/srun.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES",
    marks=("SLURM_PROCID", "SLURM_STEP_ID"),
    rank=("SLURM_PROCID",),
    size=("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"),
    local_size=("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"),
    cpus=("SLURM_CPUS_PER_TASK",),
    job=("SLURM_JOB_ID", "SLURM_STEP_ID"),
    host_of=_node,
)
_PMI: Final = Starter(
    "PMI (MPICH, Intel MPI)",
    "https://github.com/pmodels/mpich/blob/main/doc/wiki/how_to/Using_the_Hydra_Process_Manager.md",
    marks=("PMI_RANK", "PMI_SIZE"),
    rank=("PMI_RANK",),
    size=("PMI_SIZE",),
    local_size=("MPI_LOCALNRANKS",),
)
_PMIX: Final = Starter(
    "PMIx",
    "https://github.com/pmix/pmix-standard (chapter on clients: PMIX_RANK, PMIX_NAMESPACE)",
    marks=("PMIX_RANK", "PMIX_NAMESPACE"),
    rank=("PMIX_RANK",),
    size=("PMI_SIZE",),
    job=("PMIX_NAMESPACE",),
)
_KUBERNETES: Final = Starter(
    "Kubernetes",
    "https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode",
    marks=("JOB_COMPLETION_INDEX",),
    rank=("JOB_COMPLETION_INDEX",),
    size=(),
    host_of=_pod,
)
_BY_HAND: Final = Starter(
    "RANK and WORLD_SIZE",
    "https://docs.pytorch.org/docs/stable/distributed.html#environment-variable-initialization",
    marks=("RANK", RANKS),
    rank=("RANK",),
    size=(RANKS,),
    local_size=("LOCAL_WORLD_SIZE",),
    job=(ADDRESS, PORT),
)

STARTERS: Final = (_TORCHRUN, _OPEN_MPI, _SLURM, _PMI, _PMIX, _KUBERNETES, _BY_HAND)
"""All that can start ranks, the most specific first."""


@dataclass(frozen=True)
class Job:
    """This rank of a job.

    Args:
        starter: what started it.
        rank: its number.
        size: number of ranks.
        local_size: number of ranks on this node; 0 if that is not known.
        cpus: cores of this rank; 0 if that is not known.
        id: tells the job from others; "" if nothing does.
        address: host name or address of rank 0; "" if that is not known.
        port: at which rank 0 listens; 0 if that is not known.
        hosts: host names of the ranks; "" where that is not known.
    """

    starter: str
    rank: int
    size: int
    local_size: int
    cpus: int
    id: str
    address: str
    port: int
    hosts: tuple[str, ...]

    @property
    def is_local(self) -> bool:
        """Returns whether all ranks are known to be on one machine."""
        return self.local_size == self.size or _is_loopback(self.address)

    def named(self, rank: int) -> str:
        """Words a rank with its host name, if that is known."""
        host = self.hosts[rank]
        return f"rank {rank} ({host})" if host else f"rank {rank}"


def job_of(environ: Environ, host: str) -> Job:
    """Returns the rank that an environment describes.

    Args:
        environ: the environment variables.
        host: fully qualified name of this machine.

    Raises:
        ValueError: they describe none, or a variable is missing or no number.
    """
    starter = next((one for one in STARTERS if _has_started(one, environ)), None)
    if starter is None:
        known = "; ".join(f"{one.name}: {', '.join(one.marks)}" for one in STARTERS)
        raise ValueError(
            "nothing in the environment says which rank this process is; start it with srun, mpirun or "
            f"torchrun, in an indexed Kubernetes job, or set RANK and WORLD_SIZE (known are {known})"
        )
    rank, size = _number(environ, starter.rank, starter), _number(environ, (*starter.size, RANKS), starter)
    if not 0 <= rank < size:
        raise ValueError(f"{starter.name} says that this is rank {rank} of {size}; ranks begin at 0")
    hosts = [starter.host_of(environ, host, number) for number in range(size)]
    address = environ.get(ADDRESS) or hosts[0]
    told = ".".join(environ[name] for name in starter.job if environ.get(name))
    own = "" if starter.takes_port else environ.get(PORT, "")
    return Job(
        starter.name,
        rank,
        size,
        local_size=_local_size(starter, environ),
        cpus=_number(environ, starter.cpus, starter, default=0),
        id=environ.get(JOB) or told or address,
        address=address,
        port=_number({PORT: own}, (PORT,), starter, default=0),
        hosts=(address, *hosts[1:]),
    )


def _has_started(starter: Starter, environ: Environ) -> bool:
    if any(name not in environ for name in starter.marks):
        return False
    # Under Slurm, `mpiexec` of MPICH starts one process on each node by srun, and that starts the ranks: then
    # Slurm's variables are those of the first.
    return (
        starter is not _SLURM or environ.get("PMI_RANK", environ["SLURM_PROCID"]) == environ["SLURM_PROCID"]
    )


def _first(environ: Environ, names: Sequence[str]) -> str:
    return next((environ[name] for name in names if environ.get(name)), "")


def _number(environ: Environ, names: Sequence[str], starter: Starter, *, default: int | None = None) -> int:
    text = _first(environ, names)
    if not text and default is not None:
        return default
    if not text:
        raise ValueError(
            f"{starter.name} started this process, but {' and '.join(names)} "
            f"{'is' if len(names) == 1 else 'are'} not set; set {names[-1]} in all ranks to "
            f"{'the number of ranks' if names[-1] == RANKS else 'the number of each'}"
        )
    if not text.isascii() or not text.isdigit():
        name = next(name for name in names if environ.get(name))
        raise ValueError(f"{name} is '{text}', and not a number")
    return int(text)


def _local_size(starter: Starter, environ: Environ) -> int:
    if starter is not _SLURM:
        return _number(environ, starter.local_size, starter, default=0)
    text = _first(environ, starter.local_size)
    counts = tasks_per_node(text) if text else ()
    if len(counts) == 1:
        return counts[0]
    node = environ.get("SLURM_NODEID", "")
    known = node.isascii() and node.isdigit() and int(node) < len(counts)
    return counts[int(node)] if known else 0


def _is_loopback(address: str) -> bool:
    return address == "localhost" or re.fullmatch(r"127(\.\d+){3}|::1", address) is not None
