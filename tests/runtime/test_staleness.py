"""A shard's corrections of stale gradients, against the same arithmetic over a history that is kept whole."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from partita.engine import SGD, Bounded, Compensated, Damped, Downpour
from partita.engine.parameters import Layout, Slot, Vector, save_parameters
from partita.engine.protocol.events import Span
from partita.engine.protocol.messages import Fetch, Heartbeat, Parameters, Push
from partita.engine.protocol.names import COORDINATOR
from partita.engine.protocol.staleness import AS_IT_IS, Staleness
from partita.engine.runtime.shard import ShardTask
from partita.engine.runtime.shard_policies import ApplyPolicy
from tests.runtime.shard_alone import ShardAlone

SIZE, RATE, PARTS = 5, 0.1, ("part 0.0", "part 1.0", "part 2.0")


@dataclass
class Reference:
    """The updates of a shard in float64, and whose each was."""

    staleness: Staleness
    start: Vector
    updates: list[tuple[str, Vector]] = field(default_factory=list)
    square: Vector = field(default_factory=lambda: np.zeros(SIZE))

    @property
    def w(self) -> Vector:
        return self.start + sum((change for _, change in self.updates), np.zeros(SIZE))

    def push(self, part: str, base: int, gradient: Vector) -> None:
        """Applies the gradient of a part that lacks what others have changed since a version."""
        lacks = [change for who, change in self.updates[base:] if who != part]
        rate = RATE
        if isinstance(self.staleness, Damped):
            rate /= len(lacks) + 1
        if isinstance(self.staleness, Compensated):
            strength: Vector | float = self.staleness.strength
            if self.staleness.adaptive:
                decay, n = self.staleness.decay, len(self.updates) + 1
                self.square = decay * self.square + (1 - decay) * gradient**2
                strength = strength / np.sqrt(self.square / (1 - decay**n) + 1e-7)
            gradient = gradient + strength * gradient * gradient * sum(lacks, np.zeros(SIZE))
        self.updates.append((part, -rate * gradient))


def shard_of(folder: Path, staleness: Staleness) -> ShardAlone:
    save_parameters(folder / "initial", {"weight": np.linspace(-1, 1, SIZE)})
    task = ShardTask(
        shard=0,
        layout=Layout(((Slot("weight", 0, SIZE),),), {"weight": (SIZE,)}, shards=1),
        run="run",
        folder=folder,
        checkpoint=None,
        initial=folder / "initial",
        precision="float64",
        policy=ApplyPolicy(optimizer=SGD(RATE), staleness=staleness),
    )
    shard = ShardAlone(task)
    shard.receive(COORDINATOR, Heartbeat(0, clock=0.0))
    return shard


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "staleness", [AS_IT_IS, Damped(), Compensated(0.5), Compensated(2.0, adaptive=True)], ids=str
)
def test_pushes_in_any_order_are_corrected_by_what_others_have_changed(
    tmp_path: Path, staleness: Staleness, seed: int
) -> None:
    """As parts do: each fetches now and then, also while a push is under way, and pushes in its order."""
    draw, shard = np.random.default_rng(seed), shard_of(tmp_path, staleness)
    reference = Reference(staleness, np.linspace(-1, 1, SIZE))
    requests, sequences, fetched = (dict.fromkeys(PARTS, 0) for _ in range(3))
    for _ in range(60):
        part = PARTS[draw.integers(len(PARTS))]
        if requests[part] == 0 or draw.random() < 0.5:
            (answer,) = shard.receive(part, Fetch(requests[part], sequences[part]))
            assert isinstance(answer, Parameters)
            np.testing.assert_allclose(shard.sent[-1][2], reference.w, rtol=1e-12, atol=1e-14)
            requests[part], fetched[part] = requests[part] + 1, answer.version
            continue
        gradient = draw.normal(size=SIZE)
        push = Push(0, sequences[part], 0, fetched[part], sequences[part] + 1)
        shard.receive(part, push, gradient)
        shard.receive(part, push, gradient)  # once more, and applied once
        reference.push(part, fetched[part], gradient)
        sequences[part] += 1
    assert shard.machine.version == len(reference.updates) > 20
    np.testing.assert_allclose(
        shard.body._store.read(Span("x", 0, SIZE)), reference.w, rtol=1e-12, atol=1e-14
    )
    shard.body.close()


def test_a_gradient_of_another_process_of_the_shard_is_applied_as_it_is(tmp_path: Path) -> None:
    """Its parameters may be lost, and so is what others have changed since."""
    shard = shard_of(tmp_path, Compensated(0.5))
    shard.receive("part 0.0", Fetch(0))
    shard.receive("part 1.0", Fetch(0))
    shard.receive("part 1.0", Push(0, 0, 0, 0, 1), np.ones(SIZE))
    shard.receive("part 0.0", Push(0, 0, -1, 0, 1), np.ones(SIZE))
    shard.receive("part 0.0", Fetch(1))
    np.testing.assert_allclose(shard.sent[-1][2], np.linspace(-1, 1, SIZE) - 2 * RATE)
    shard.body.close()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Compensated(-1.0), "Compensated's strength is -1.0"),
        (lambda: Compensated(decay=1.0), "Compensated's decay is 1.0"),
        (lambda: Bounded(-1), "Bounded's steps are -1"),
        (lambda: Downpour(staleness=0.5), r"give Damped\(\), Compensated\(\) or Bounded\(steps\)"),
        (lambda: Downpour(staleness=Compensated(), push_every=2), "gradients of several points"),
    ],
)
def test_mistakes(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]
