"""Exchanges of numbers among hosts as pure state machines: all-reduce, its two halves, and copies to a peer.

- `group`: the members of an exchange and the pieces of its numbers; `algorithm`: trees of sums and copies,
  with formulas of bytes, messages and seconds. The closed set: `ring`, `tree`, `hierarchical`, `server`; and
  `broadcast`, for an all-gather of one member's numbers. `fastest` predicts which takes the least
  time, and `Fastest` is that one.
- `exchange` runs any of them; `backup` also sums without the last members. `create` makes the right one.
- `copy`: a member gets named vectors from another one.
"""

from partita.engine.protocol.exchange.algorithm import Algorithm, Link, bytes_sent, messages_sent
from partita.engine.protocol.exchange.broadcast import Broadcast
from partita.engine.protocol.exchange.copy import CopySource, CopyTarget
from partita.engine.protocol.exchange.create import create_exchange
from partita.engine.protocol.exchange.exchange import AddChunk, CopyChunk, Exchange, ExchangeDone
from partita.engine.protocol.exchange.fastest import Fastest, fastest
from partita.engine.protocol.exchange.group import Group, Member, Numbers
from partita.engine.protocol.exchange.hierarchical import Hierarchical
from partita.engine.protocol.exchange.ring import Ring
from partita.engine.protocol.exchange.server import Server
from partita.engine.protocol.exchange.tree import Tree, crossover_bytes

__all__ = [
    "AddChunk",
    "Algorithm",
    "Broadcast",
    "CopyChunk",
    "CopySource",
    "CopyTarget",
    "Exchange",
    "ExchangeDone",
    "Fastest",
    "Group",
    "Hierarchical",
    "Link",
    "Member",
    "Numbers",
    "Ring",
    "Server",
    "Tree",
    "bytes_sent",
    "create_exchange",
    "crossover_bytes",
    "fastest",
    "messages_sent",
]
