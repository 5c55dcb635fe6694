"""Federated averaging: clients train on data of their own, and a weighted mean of what they found is kept.

Clients are virtual: the replicas play those of a round side by side, one each until all are done. A round is
one step of the run. Every replica adds up what the clients found in the order of the clients, so the bits are
the same with any number of replicas, also where one dies and the round is done anew. The server sees the
parameters of each client: secure aggregation is not part of this driver.

Sources: McMahan and others, "Communication-efficient learning of deep networks from decentralized data",
2017, algorithm 1; Li and others, "Federated optimization in heterogeneous networks", 2020 (the proximal
term); Hsu and others, "Measuring the effects of non-identical data distribution", 2019 (server momentum).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import numpy as np
from typing_extensions import override

from partita.engine.data.clients import Clients
from partita.engine.drivers.compressed import check_compressor
from partita.engine.drivers.driver import Driver, Inline
from partita.engine.parameters.compression import Compressor
from partita.engine.parameters.optimizers import SGD, Optimizer
from partita.engine.protocol import actions as a
from partita.engine.protocol.exchange import Broadcast
from partita.engine.protocol.kept_vector import Kept
from partita.engine.protocol.views import Member
from partita.layers.checks import check_choice, check_fields, check_flag, check_number, check_whole

_ROUND: Final = 6
"""The use of the random numbers of a round; for others see `data.clients`."""


@dataclass(frozen=True)
class FedAvg(Driver):
    """The settings of federated averaging. The plan's batch is a client's (B).

    Args:
        rounds: the number of rounds.
        clients: those among whom the data is divided (K).
        fraction: the part of the clients that take part in a round (C), at least one.
        local_epochs: a client's passes over its data in a round (E).
        whole_batch: a client's step is by the gradient over all of its examples (B = infinity). With
            `local_epochs=1` that is FedSGD.
        optimizer: a client's, without a state: it would be left when a round is over.
        labels: shards of a client, of the data sorted by label; 0: any examples (IID).
        spread: standard deviation of the logarithm of a client's number of examples; 0: equally many.
        weighted: the mean is weighted by examples.
        proximal: factor of a client's distance to the parameters that it began with, in its gradient
            (FedProx).
        server_momentum: remaining part of the server's velocity, from 0 to below 1.
        dropout: probability that a client drops out in a round: its work is left out, and the round goes on.
        compress: a client sends a short message of what it has changed, in the place of its parameters:
            `TopK`, `OneBit` or `Int8`, with feedback=False. A client keeps nothing from one round to the
            next, so what a message lacks is lost. None: whole parameters.
        replicas: copies of the network, which play the clients of a round.
        inline: "all": one replica of one machine computes in the process of the call; "none": in its own.

    Raises:
        ValueError: a setting is out of range.
    """

    _meant: ClassVar[Mapping[str, str | tuple[str, ...]]] = {
        "C": ("fraction",),
        "E": ("local_epochs",),
        "B": "the batch is that of partition(net, cluster, batch=...)",
        "K": ("clients",),
        "mu": ("proximal",),
        "lr": "write optimizer=SGD(0.1)",
        "learning_rate": "write optimizer=SGD(0.1)",
        "epochs": ("rounds", "local_epochs"),
        "shards": "there are none, replicas keep the parameters; shards of sorted data are labels=2",
    }

    ends = "it has rounds"

    rounds: int = 100
    clients: int = 100
    fraction: float = 0.1
    local_epochs: int = 1
    whole_batch: bool = False
    optimizer: Optimizer = field(default=SGD(0.1), metadata={"chosen": "sgd"})
    labels: int = 0
    spread: float = 0.0
    weighted: bool = True
    proximal: float = 0.0
    server_momentum: float = 0.0
    dropout: float = 0.0
    replicas: int = 1
    inline: Inline = "none"
    compress: Compressor | None = field(default=None, metadata={"fixed": {"feedback": False}})

    def __post_init__(self) -> None:
        of = "FedAvg's "
        check_fields(self, check_whole, "rounds", "clients", "local_epochs", "replicas", of=of)
        check_fields(self, check_flag, "whole_batch", "weighted", of=of)
        rule = "; give 0, or a number above"
        check_fields(self, check_number, "proximal", of=of, zero=True, rule=rule)
        rule = "; give a number from 0 to below 1"
        check_fields(self, check_number, "server_momentum", "dropout", of=of, zero=True, below=1, rule=rule)
        rule = "; give the part of the clients that take part in a round, above 0 and at most 1"
        check_fields(self, check_number, "fraction", of=of, below=math.nextafter(1.0, 2.0), rule=rule)
        given: Any = self.optimizer  # whatever a user wrote
        if not isinstance(given, Optimizer) or given.state_names:
            raise ValueError(
                f"FedAvg's optimizer is {self.optimizer!r}; give one without a state, for example SGD(0.1): "
                "a client begins each round anew (the server's momentum is server_momentum)"
            )
        check_choice(self.inline, "FedAvg's inline is", ("none", "all"))
        check_compressor(self.compress, "FedAvg")
        if self.compress is not None and self.compress.state_names:
            raise ValueError(
                f"FedAvg's compress is {self.compress!r}, which keeps {', '.join(self.compress.state_names)} "
                "from one message to the next, and a client keeps nothing until it is chosen again; give "
                "TopK(0.1, feedback=False), OneBit(feedback=False) or Int8(feedback=False)"
            )
        _ = self.division

    @property
    @override
    def division(self) -> Clients:
        return Clients(self.clients, self.labels, self.spread)

    @override
    def stages(self, epochs: int) -> Sequence[tuple[Driver, int]]:
        return ((self, self.rounds),)

    @property
    @override
    def scratch_vectors(self) -> tuple[str, ...]:
        return ("start", "client", "mean", "whole") if self.whole_batch else ("start", "client", "mean")

    @property
    @override
    def kept_vectors(self) -> Mapping[str, Kept]:
        return {"velocity": Kept(start="zeros")} if self.server_momentum else {}

    def in_round(self, number: int, seed: int) -> list[int]:
        """Returns the clients whose work a round counts, ascending: those that take part and do not drop out.

        Args:
            number: of the round, from 0 on.
            seed: of the run.
        """
        random = np.random.default_rng([seed, _ROUND, number])
        count = max(round(self.fraction * self.clients), 1)
        chosen = np.sort(random.choice(self.clients, count, replace=False))
        return [int(one) for one in chosen[random.random(count) >= self.dropout]]

    @override
    def replica(self, me: Member) -> a.Program:
        sizes = self.division.sizes(me.examples, me.seed)
        for number in me.steps():
            clients = self.in_round(number, me.seed)
            weights = sizes[clients] if self.weighted else np.ones(len(clients))
            shares = (weights / weights.sum()).tolist()
            yield a.Keep()
            yield a.Combine("mean", {})
            for first in range(0, len(clients), me.replicas):
                wave = clients[first : first + me.replicas]
                if me.rank < len(wave):
                    yield from self._trained(me, number, wave[me.rank], int(sizes[wave[me.rank]]))
                for rank in range(len(wave)):
                    if rank == me.rank:
                        yield a.Combine("client", self._of_client)
                    yield self._sent(number, rank)
                    yield a.Combine("mean", {"mean": 1.0, "client": shares[first + rank]})
            yield a.Restore()
            if clients:
                yield from self._server()
            yield a.SafePoint()

    @property
    def _of_client(self) -> dict[str, float]:
        """The linear combination that a client sends."""
        return {"parameters": 1.0} if self.compress is None else {"parameters": 1.0, "start": -1.0}

    def _sent(self, number: int, rank: int) -> a.Action:
        """The action after which all replicas have in "client" what one of them has there."""
        if self.compress is None:
            return a.AllGather("client", by=Broadcast(rank))
        return a.ExchangeMessages(number, compress=self.compress, by=Broadcast(rank), vector="client")

    def _trained(self, me: Member, number: int, client: int, examples: int) -> a.Program:
        """Yields a client's work in a round, after which the parameters are its own."""
        yield a.Combine("parameters", {"start": 1.0})
        for visit in range(self.local_epochs):
            if self.whole_batch:
                yield a.Combine("whole", {})
            for start in range(0, examples, me.batch):
                stop = min(start + me.batch, examples)
                yield a.Compute(number, of=a.Portion(client, visit, start, stop))
                if self.whole_batch:
                    yield a.Combine("whole", {"whole": 1.0, "gradient": (stop - start) / examples})
                else:
                    yield from self._step()
            if self.whole_batch:
                yield a.Combine("gradient", {"whole": 1.0})
                yield from self._step()

    def _step(self) -> a.Program:
        if self.proximal:
            towards = {"gradient": 1.0, "parameters": self.proximal, "start": -self.proximal}
            yield a.Combine("gradient", towards, unlearned={"gradient": 1.0})
        yield a.Apply(self.optimizer)

    def _server(self) -> a.Program:
        """Yields the server's update of the parameters that the round began with, by the mean in "mean": of
        parameters, or of what clients have changed.
        """
        before = {} if self.compress is None else {"parameters": 1.0}
        if not self.server_momentum:
            yield a.Combine("parameters", {**before, "mean": 1.0})
            return
        less = {"parameters": -1.0} if self.compress is None else {}
        moved = {"mean": 1.0, **less}
        yield a.Combine("velocity", {"velocity": self.server_momentum, **moved}, unlearned=moved)
        yield a.Combine("parameters", {"parameters": 1.0, "velocity": 1.0})
