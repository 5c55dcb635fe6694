"""The task of a part, whatever the driver: its place, its data, its program, and how its work comes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from partita.engine.data.ahead import ReadAhead
from partita.engine.data.dataset import DataError
from partita.engine.data.order import SHUFFLED, Ordering
from partita.engine.data.prepared import HostData, Prepared
from partita.engine.files.host_files import FileDiffers
from partita.engine.numerics import master
from partita.engine.parameters.layout import Layout
from partita.engine.parameters.row_payload import n_bytes
from partita.engine.parameters.slots import clipped
from partita.engine.protocol.actions import Program
from partita.engine.protocol.host import RoleMachine
from partita.engine.protocol.names import part_name, shard_name, stream_name
from partita.engine.runtime.buffers import Vectors, layout_of
from partita.engine.runtime.feed import Examples
from partita.engine.runtime.metric import Metric
from partita.engine.runtime.part_body import PartBody
from partita.engine.runtime.prepared_examples import PreparedExamples
from partita.engine.runtime.task import CannotGoOn, HostContext
from partita.engine.runtime.validation import ValidationData, ValidationRunner
from partita.partitioner.ir.program import Op
from partita.partitioner.ir.program import Program as Instructions
from partita.partitioner.plan import Plan


class Hands(ABC):
    """How the work of a part comes, with the settings of what the actions of its program then need.

    Leased work has links to shards that apply each push (`leased_hands`), assigned work links to shards that
    sum gradients (`assigned_hands`), and joined work exchanges with other replicas (`joined_hands`).
    """

    @abstractmethod
    def build(self, task: PartTask, host: HostContext) -> tuple[RoleMachine, PartBody]:
        """Makes the machine and the body of a part: allocates, compiles, opens files."""


@dataclass(frozen=True, kw_only=True)
class PartTask:
    """One machine's part of one replica.

    Args:
        plan, machine, replica, replicas: identify the part.
        data: a source for each input and target, `[example, *shape]`; or data that is prepared ahead.
        examples: the number of examples in them.
        seed: of the order of the examples.
        shards: the number of shards that hold the parameters; 0: the parts keep them.
        fragments: in which the parameters are exchanged with these.
        instruction_timeout_s: seconds that one computation may take.
        program: the `replica` of the driver.
        hands: carry out the actions of the program.
        metrics: figures that the part reports beside the loss.
        validation: the data that the part evaluates in between; None: none.
    """

    plan: Plan
    machine: int
    replica: int
    replicas: int
    data: HostData
    examples: int
    seed: int
    shards: int
    instruction_timeout_s: float
    program: Callable[[Any], Program]
    hands: Hands
    metrics: tuple[Metric, ...] = ()
    validation: ValidationData | None = None
    fragments: int = 1

    def role(self, host: HostContext) -> tuple[RoleMachine, PartBody]:
        """See the protocol `HostTask`."""
        return self.hands.build(self, host)

    def opened(self, host: HostContext, program: Instructions) -> Examples:
        """Opens the data on a host, as far as a program reads it. Raises OSError, CannotGoOn."""
        return _opened(self.data, host, program)

    def validator(self, host: HostContext, vectors: Vectors) -> ValidationRunner | None:
        """Makes what evaluates the validation data by the part's parameters. Raises OSError, CannotGoOn."""
        given = self.validation
        if given is None:
            return None
        examples = _opened(given.sources, host, given.plan.forward_programs[self.machine])
        place = {"machine": self.machine, "replica": self.replica}
        return ValidationRunner(given, examples, vectors, host, **place)

    @property
    def ordering(self) -> Ordering:
        """The order of the examples in an epoch."""
        return self.data.ordering if isinstance(self.data, Prepared) else SHUFFLED

    @property
    def threads(self) -> int:
        """See the protocol `HostTask`."""
        return self.plan.cluster.machines[self.machine].threads

    @property
    def rank(self) -> tuple[int, int]:
        """See the protocol `HostTask`."""
        return self.replica * len(self.plan.cluster) + self.machine, self.replicas * len(self.plan.cluster)

    @cached_property
    def layout(self) -> Layout:
        """The places of all parameters on machines and shards; without shards, as on one."""
        return layout_of(self.plan, shards=max(self.shards, 1), fragments=self.fragments)

    @property
    def streams(self) -> tuple[tuple[str, int, int], ...]:
        """(stream, start, stop): the ranges of the machine's vector that are exchanged with shards."""
        return tuple(
            (stream_name(shard_name(one.shard), one.fragment), one.machine_start, one.machine_stop)
            for one in self.layout.shards_of(self.machine)
        )

    @property
    def rows_bytes(self) -> dict[str, tuple[int, int]]:
        """The least and the most bytes of a payload with rows alone, for streams with sparse tables."""
        tables, item = self.layout.tables_of(self.machine), master(self.plan.precision).itemsize
        found = {}
        for stream, start, stop in self.streams:
            if some := clipped(tables, start, stop):
                found[stream] = n_bytes(start, stop, some, item)
        return found

    @property
    def other_parts(self) -> list[str]:
        """The names of the replica's other parts."""
        machines = range(len(self.plan.cluster))
        return [part_name(self.replica, machine) for machine in machines if machine != self.machine]


def _opened(data: HostData, host: HostContext, program: Instructions) -> Examples:
    """Opens data on a host, as far as a program reads it. Raises OSError, CannotGoOn."""
    try:
        if isinstance(data, Prepared):
            read = {one.target.buffer.layer for one in program.instructions if one.op is Op.FEED}
            ahead = ReadAhead(data.only(read), host.files, own_process=host.files.has_paths)
            return PreparedExamples(ahead)
        return Examples({name: source.open(host.files) for name, source in data.items()})
    except (FileDiffers, DataError) as error:
        raise CannotGoOn(str(error)) from error
