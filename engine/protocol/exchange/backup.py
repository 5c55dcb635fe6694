"""Exchange through a root that sums a step without its last contributions: backup workers.

Source: Chen, Monga, Bengio and Jozefowicz (2016), see `server`, section 3: N + b workers, the gradients of
the first N are applied, and those that come later are dropped.
"""

from __future__ import annotations

from typing_extensions import override

from partita.engine.protocol.events import Received, Send
from partita.engine.protocol.exchange.exchange import Exchange, ExchangeEffect, Use
from partita.engine.protocol.exchange.group import Group, Numbers
from partita.engine.protocol.exchange.server import Server
from partita.engine.protocol.replica_messages import ExchangeAck, FinalChunk, PartialChunk

_ROOT = 0


class BackupExchange(Exchange):
    """An exchange by `Server(backup_workers=b)`. What others have beyond `Exchange`:

    - The root adds nothing before `N - b` members (itself among them, and at least one other) have sent a
      first piece, and all have acknowledged the use before; in the first use of a view, all have sent
      something. Then the others are dropped: what they have sent or send is forgotten. A sum is extrapolated
      to N contributions: divided by their share of N.
    - A member acknowledges a use when it has the result, and again when a piece of the result is repeated.
    """

    def __init__(
        self,
        algorithm: Server,
        group: Group,
        numbers: Numbers,
        *,
        first: int = 0,
        mean: bool = False,
        retry_s: float = 1.0,
    ) -> None:
        """Creates an exchange that is not under way, see `create_exchange`."""
        super().__init__(algorithm, group, numbers, first=first, mean=mean, retry_s=retry_s)
        self._wanted = max(1, len(group.members) - algorithm.backup_workers - 1)  # beside the root
        self._arrived: list[int] = []  # ranks in the use under way, in the order of their first pieces
        # Members that have not acknowledged the last use. Before the first one, all: some may not be there.
        self._unacked = set(range(1, len(group.members))) if group.rank == _ROOT else set()

    @property
    def decided(self) -> bool:
        """Returns whether results of the next use have arrived: the contribution of this member would be
        dropped.
        """
        return any(kind is FinalChunk for _, kind, _ in self._early)

    @override
    def _begun(self, use: Use, effects: list[ExchangeEffect]) -> None:
        self._choose(use, effects)

    @override
    def _add(self, use: Use, piece: int, rank: int, payload: object, effects: list[ExchangeEffect]) -> None:
        self._unacked.discard(rank)  # it has ended the use before
        if rank not in self._arrived:
            self._arrived.append(rank)
        if use.adds is not None:
            super()._add(use, piece, rank, payload, effects)
        else:
            use.held.setdefault((piece, rank), payload)
            self._choose(use, effects)

    def _choose(self, use: Use, effects: list[ExchangeEffect]) -> None:
        """Decides whose contributions count, when it can."""
        is_root = self.group.rank == _ROOT
        if not is_root or use.adds is not None or self._unacked or len(self._arrived) < self._wanted:
            return
        use.adds = tuple(sorted(self._arrived[: self._wanted]))
        use.dropped = tuple(rank for rank in range(1, len(self.group.members)) if rank not in use.adds)
        for piece, rank in [key for key in use.held if key[1] in use.dropped]:
            del use.held[piece, rank]
        for piece in range(len(self._pieces)):
            self._add_held(use, piece, effects)

    @override
    def _copy(self, use: Use, message: FinalChunk, event: Received, effects: list[ExchangeEffect]) -> None:
        super()._copy(use, message, event, effects)
        if self.group.rank in message.dropped:
            use.starts.clear()  # nobody adds what this member has not sent yet

    @override
    def _done(self, use: Use, effects: list[ExchangeEffect]) -> None:
        self._arrived.clear()
        if self.group.rank == _ROOT:
            self._unacked = set(range(1, len(self.group.members))) if self._pieces else set()
        elif self._pieces:
            self._send_ack(use.number, effects)

    @override
    def _repeated(self, rank: int, message: PartialChunk | FinalChunk, effects: list[ExchangeEffect]) -> None:
        if isinstance(message, FinalChunk):
            self._send_ack(message.number, effects)

    def _send_ack(self, number: int, effects: list[ExchangeEffect]) -> None:
        message = ExchangeAck(self.group.view, self.group.exchange, number)
        effects.append(Send(self.group.members[_ROOT].name, message))

    @override
    def _acknowledged(self, rank: int, number: int, effects: list[ExchangeEffect]) -> None:
        if self.group.rank != _ROOT:
            super()._acknowledged(rank, number, effects)
        elif self._last is not None and number == self._last.number:
            self._unacked.discard(rank)
            if self._use is not None:
                self._choose(self._use, effects)

    @override
    def _ask(self, use: Use, effects: list[ExchangeEffect]) -> None:
        """The root repeats a piece of the last result to those that have not acknowledged it."""
        super()._ask(use, effects)
        for rank in sorted(self._unacked):
            if self._last is not None:
                effects.append(self._final(self._last, 0, rank))
