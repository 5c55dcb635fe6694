"""Decide: who owns which nodes, and what that costs. This room runs no tensor.

`partition` makes a `Plan` for a `Cluster`; a plan knows its messages, its programs (one for each machine) and
its predicted step, prints itself as a table and draws itself as SVG.
"""

from partita.partitioner.cluster import SHARED_MEMORY, Between, Cluster, Link, Machine
from partita.partitioner.cost import Costs, MessageCost
from partita.partitioner.cuts import ByInputs, Pieces, Repeated, Tiles, Whole
from partita.partitioner.kernel_times import KernelTimes
from partita.partitioner.messages import Message
from partita.partitioner.ownership import Ownership
from partita.partitioner.partition import partition
from partita.partitioner.piece import Piece
from partita.partitioner.plan import Plan
from partita.partitioner.playback import Bar, Flight, Playback, Times
from partita.partitioner.products import Choice, Products, ProductShape
from partita.partitioner.program import Instruction, Op, Program, parse_program
from partita.partitioner.simulate import Deadlock
from partita.partitioner.step_kind import StepKind

__all__ = [
    "SHARED_MEMORY",
    "Bar",
    "Between",
    "ByInputs",
    "Choice",
    "Cluster",
    "Costs",
    "Deadlock",
    "Flight",
    "Instruction",
    "KernelTimes",
    "Link",
    "Machine",
    "Message",
    "MessageCost",
    "Op",
    "Ownership",
    "Piece",
    "Pieces",
    "Plan",
    "Playback",
    "ProductShape",
    "Products",
    "Program",
    "Repeated",
    "StepKind",
    "Tiles",
    "Times",
    "Whole",
    "parse_program",
    "partition",
]
