"""A validation among replicas that come and go, and in one part: each minibatch counts once."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from partita.engine.protocol.actions import Validate
from partita.engine.protocol.coordinator_effects import Timeouts, Validated
from partita.engine.protocol.events import Received, Send
from partita.engine.protocol.host_registry import HostRegistry
from partita.engine.protocol.messages import Tensor
from partita.engine.protocol.names import COORDINATOR, Topology
from partita.engine.protocol.part_validation import (
    VALIDATION_STEPS,
    PartValidation,
    RestartValidation,
    RunValidation,
    ValidationDone,
)
from partita.engine.protocol.program_effects import Deliver
from partita.engine.protocol.validation import Validation
from partita.engine.protocol.validation_messages import ValidationResult, ValidationWork
from tests.draws import examples


@dataclass
class Run:
    """As much of a coordinator as a validation needs."""

    registry: HostRegistry = field(
        default_factory=lambda: HostRegistry.of(Topology(3, 2, 0), stall_s=60.0, incarnations={})
    )
    timeouts: Timeouts = field(default_factory=Timeouts)
    restarted: list[int] = field(default_factory=list)

    class checkpoints:  # noqa: N801
        next = 5

    def restart_stalled(self, replica: Any, what: str, now: float) -> list[Any]:
        self.restarted.append(replica.index)
        return []


def results_of(work: ValidationWork) -> list[ValidationResult]:
    units = [unit for start, stop in work.units for unit in range(start, stop)]
    return [ValidationResult(work.round, unit, 10.0 * unit, unit) for unit in units]


@settings(max_examples=examples(25))
@given(st.integers(0, 1 << 32))
def test_each_minibatch_counts_once_whoever_dies(seed: int) -> None:
    """Answers come in any order, late, twice or never; replicas die and join, and parameters change."""
    draw, run = random.Random(seed), Run()
    validation, action = Validation(run), Validate(at=7, minibatches=draw.randint(1, 9))  # type: ignore[arg-type]
    members, basis = {0: (0, 0), 1: (0, 0)}, 0
    waiting, ended = list[tuple[str, ValidationResult]](), list[Validated]()
    for turn in range(100):
        now = 1.1 * turn
        effects = validation.go_on(action, members, basis=basis, evaluation=0, steps=(3, 3), now=now)
        effects += validation.watch(now)
        validation.validate()
        ended += [effect for effect in effects if isinstance(effect, Validated)]
        if ended:
            break
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.message, ValidationWork):
                waiting += [(effect.to, result) for result in results_of(effect.message)]
        for _ in range(len(waiting) if turn > 60 else draw.randint(0, 6)):
            if waiting:
                name, result = waiting.pop(draw.randrange(len(waiting)))
                if turn > 60 or draw.random() < 0.8:
                    validation.receive(run.registry.hosts[name], result, now)
        happens = draw.choice(["nothing", "die", "join", "change"]) if turn < 60 else "nothing"
        if happens == "die":
            replica = draw.choice(sorted(members))
            members = {**members, replica: (members[replica][0] + 1, 0)}
        members = {**members, 2: (0, 0)} if happens == "join" else members
        basis += happens == "change"
    (end,) = ended
    assert end.sums == tuple(((10.0 * n, float(n)),) * 2 for n in range(action.minibatches))
    assert end.next_checkpoint == 5 and validation.awaits_decision and not run.restarted
    assert validation.go_on(action, members, basis=basis, evaluation=0, steps=(), now=now) == []
    validation.end()
    validation.validate()


def test_a_replica_that_answers_nothing_is_restarted() -> None:
    run: Any = Run()
    validation = Validation(run)
    validation.go_on(Validate(1, 4), {0: (0, 0), 1: (0, 0)}, basis=0, evaluation=0, steps=(), now=0.0)
    for unit in (0, 1):
        for machine in (0, 1):
            host = run.registry.hosts[f"part 0.{machine}"]
            assert not validation.receive(host, ValidationResult(1, unit, 0.0, 0), 1.0)
    assert validation.watch(59.0) and run.restarted == []
    validation.watch(61.0)
    assert run.restarted == [1]


class Links:
    """Shards whose parameters are here when it is said."""

    is_here = False

    def renew(self, evaluation: int, now: float) -> list[str]:
        return [f"renew {evaluation}"]

    def not_renewed(self, evaluation: int) -> tuple[str, ...]:
        return () if self.is_here else ("shard 0",)

    def take(self) -> list[str]:
        return ["take"]


def ordered(round_: int, *units: tuple[int, int]) -> Received:
    return Received(COORDINATOR, 0, ValidationWork(round_, units, 4), None)


def test_a_part_fetches_evaluates_in_order_and_answers_repeats() -> None:
    links = Links()
    part, first = PartValidation(links), VALIDATION_STEPS + (1 << 24)
    assert [*part.receive(ordered(1, (2, 3), (5, 6)), 0.0)] == [RestartValidation(first), "renew 4"]
    assert [*part.advance()] == [] and [host for host, _ in part.waits()] == ["shard 0"]
    links.is_here = True
    assert [*part.advance()] == ["take", RunValidation(first, 2)] and [*part.waits()] == []
    assert [*part.advance()] == []
    (sent,) = part.receive(ValidationDone(first, 1.5, 3), 0.0)
    assert sent.message == ValidationResult(1, 2, 1.5, 3)
    assert [*part.advance()] == [RunValidation(first + 1, 5)]
    assert [*part.receive(ordered(1, (2, 3), (5, 6)), 0.0)] == [sent]
    assert [*part.receive(ValidationDone(first, 9.0, 9), 0.0)] == []  # of a step that is over
    part.validate()
    # Another round drops the minibatch under way; an older one has no effect.
    later = first + (1 << 24)
    assert [*part.receive(ordered(2, (5, 6)), 0.0)] == [RestartValidation(later), "renew 4"]
    assert [*part.receive(ordered(1, (2, 3)), 0.0)] == []
    assert [*part.receive(ValidationDone(first + 1, 9.0, 9), 0.0)] == []
    assert [*part.advance()] == ["take", RunValidation(later, 5)]


def test_messages_of_a_round_to_come_wait_for_its_order() -> None:
    part, first = PartValidation(), VALIDATION_STEPS + (1 << 24)
    early, late = (
        Received("part 0.1", 0, Tensor(step, "h", ()), None) for step in (first, first + (1 << 24))
    )
    assert [*part.deliver(early)] == [*part.deliver(late)] == []
    assert [*part.receive(ordered(1, (0, 2)), 0.0)] == [RestartValidation(first), Deliver(early)]
    assert [*part.receive(ordered(2, (0, 2)), 0.0)] == [RestartValidation(first + (1 << 24)), Deliver(late)]
    assert [*part.deliver(early)] == []  # of a round that is over
    assert [*part.deliver(late)] == [Deliver(late)]
