"""Rounds of clients in the simulator: each is done once and whole, whoever dies in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from partita.engine import FedAvg
from partita.engine.parameters.compression import OneBit
from partita.engine.protocol import actions as a
from partita.engine.protocol.joined_work import JoinedWork
from partita.engine.protocol.views import Member
from partita.engine.testing import Fault, play

DRIVERS = {
    "plain": FedAvg(clients=4, fraction=0.75, local_epochs=2, spread=0.5),
    "momentum": FedAvg(clients=3, fraction=1.0, server_momentum=0.5, proximal=0.25, dropout=0.3),
    "compressed": FedAvg(clients=4, fraction=0.75, compress=OneBit(feedback=False)),
    "whole": FedAvg(clients=5, fraction=0.6, whole_batch=True),
}


@pytest.mark.parametrize("kind", DRIVERS)
@pytest.mark.parametrize("replicas", [1, 3])
def test_all_replicas_have_the_same_parameters_under_any_faults(kind: str, replicas: int) -> None:
    check(kind, replicas, range(3))


@pytest.mark.slow
@pytest.mark.parametrize("kind", DRIVERS)
@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_all_replicas_have_the_same_parameters_under_many_faults(kind: str, replicas: int) -> None:
    check(kind, replicas, range(3, 300))


def check(kind: str, replicas: int, seeds: range) -> None:
    for seed in seeds:
        outcome = play(replace(DRIVERS[kind], replicas=replicas), seed)
        assert outcome.violation is None, (seed, outcome)


@dataclass(frozen=True)
class Hasty(FedAvg):
    """Its second replica leaves one client out of each mean."""

    def replica(self, me: Member) -> a.Program:
        counted = 0
        for action in super().replica(me):
            is_sum = isinstance(action, a.Combine) and "client" in action.terms
            counted += is_sum
            if not (is_sum and me.rank == 1 and counted % 4 == 3):
                yield action


def stays(method: object, work: JoinedWork) -> Iterator[object]:
    """Does not set the parameters back where a view changes in mid-round."""
    work._kept = work._changed = False
    return iter(())


def test_parameters_that_stay_a_clients_are_caught() -> None:
    driver, fault = replace(DRIVERS["plain"], replicas=2), Fault(JoinedWork, "_set_back", stays)
    assert any(play(driver, seed, faults=[fault]).violation for seed in range(4, 12))


def test_a_replica_that_leaves_out_a_client_is_caught() -> None:
    driver = Hasty(clients=4, fraction=1.0, replicas=2)
    assert any(play(driver, seed).violation for seed in range(4))
