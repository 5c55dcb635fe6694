"""Decides which machine owns which nodes, and predicts the cost. This room runs no tensor.

`partition` makes a `Plan` for a `Cluster`; a plan knows its messages, its programs (one for each machine) and
its predicted step, prints itself as a table and draws itself as SVG.
"""

from partita.partitioner.assign.cuts import InputSplit, Replicated, RowSplit, Tiles, Whole
from partita.partitioner.assign.ownership import Ownership
from partita.partitioner.assign.piece import Piece
from partita.partitioner.cluster.cluster import SHARED_MEMORY, Between, Cluster, Link, Machine, MessageTimes
from partita.partitioner.cluster.kernel_times import KernelTimes
from partita.partitioner.cluster.products import Choice, Products, ProductShape
from partita.partitioner.cluster.tile_forms import TiledLoop, TileForm, TileForms
from partita.partitioner.ir.program import Instruction, Op, Program, parse_program
from partita.partitioner.ir.step_kind import StepKind
from partita.partitioner.lower.messages import Message
from partita.partitioner.partition import partition
from partita.partitioner.plan import Plan
from partita.partitioner.predict.cost import Costs, MessageCost
from partita.partitioner.predict.simulate import Deadlock
from partita.partitioner.predict.timeline import Bar, Flight, Timeline, Times, Wait

__all__ = [
    "SHARED_MEMORY",
    "Bar",
    "Between",
    "Choice",
    "Cluster",
    "Costs",
    "Deadlock",
    "Flight",
    "InputSplit",
    "Instruction",
    "KernelTimes",
    "Link",
    "Machine",
    "Message",
    "MessageCost",
    "MessageTimes",
    "Op",
    "Ownership",
    "Piece",
    "Plan",
    "ProductShape",
    "Products",
    "Program",
    "Replicated",
    "RowSplit",
    "StepKind",
    "TileForm",
    "TileForms",
    "TiledLoop",
    "Tiles",
    "Timeline",
    "Times",
    "Wait",
    "Whole",
    "parse_program",
    "partition",
]
