"""Decide: who owns which nodes, and what that costs. This room runs no tensor.

`partition` makes a `Plan` for a `Cluster`; a plan knows its messages, its programs (one for each machine) and
its predicted step, prints itself as a table and draws itself as SVG.
"""

from partita.partitioner.cluster import Cluster, Link, Machine
from partita.partitioner.cuts import ByInputs, Pieces, Repeated, Whole
from partita.partitioner.messages import Message
from partita.partitioner.ownership import Ownership, Piece
from partita.partitioner.partition import partition
from partita.partitioner.plan import Plan
from partita.partitioner.program import Instruction, Op, Program, parse_program
from partita.partitioner.simulate import Deadlock, Playback
from partita.partitioner.step_kind import StepKind

__all__ = [
    "ByInputs",
    "Cluster",
    "Deadlock",
    "Instruction",
    "Link",
    "Machine",
    "Message",
    "Op",
    "Ownership",
    "Piece",
    "Pieces",
    "Plan",
    "Playback",
    "Program",
    "Repeated",
    "StepKind",
    "Whole",
    "parse_program",
    "partition",
]
