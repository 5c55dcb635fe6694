"""Updates of a shard's vectors behind its protocol: what pushes do to them is what a naive sum does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.engine import LARS, SGD, Adagrad, Adam, InverseTime, Optimizer
from partita.engine.parameters import ShardSnapshot, Updater, Vector, VectorStore
from partita.engine.parameters.snapshot import NotFinite
from partita.engine.protocol import ApplyOnArrival, Shard, ShardRanges
from partita.engine.protocol.apply_on_arrival import RestoredState, Watermark
from partita.engine.protocol.checkpoint_messages import Save
from partita.engine.protocol.events import Persist, Received, Send, Span
from partita.engine.protocol.membership import HeartbeatPolicy
from partita.engine.protocol.messages import Heartbeat, Push
from partita.engine.protocol.shard_effects import ApplyGradient
from tests.draws import examples


class Payload(NamedTuple):
    """A payload whose size the protocol sees, and whose numbers only the interpreter reads."""

    numbers: Vector

    @property
    def n_bytes(self) -> int:
        return self.numbers.nbytes


SPAN = Span("x", 2, 5)
RANGES = {0: (0, 3), 1: (3, 8)}


class Held:
    """A store, and its updates by an optimizer."""

    def __init__(self, optimizer: Optimizer, values: Vector, state: dict[str, Vector] | None = None) -> None:
        self.store = VectorStore(values, state)
        self.updater = Updater(optimizer, self.store, fresh=state is None)

    def apply(self, span: Span, gradient: Vector, updates: int) -> None:
        self.updater.apply(span, [gradient], updates)

    def snapshot(self) -> ShardSnapshot:
        return self.store.snapshot()

    def read(self, span: Span) -> Vector:
        return self.store.read(span)


def storage(optimizer: Optimizer | None = None, n: int = 8, dtype: type = np.float64) -> Held:
    return Held(optimizer or SGD(0.5), np.zeros(n, dtype))


def test_a_span_is_updated_and_nothing_else() -> None:
    held = storage(Adagrad(0.5))
    held.apply(SPAN, np.array([1.0, -2.0, 0.0]), 0)
    assert held.read(Span("x", 0, 8)) == pytest.approx([0, 0, -0.5, 0.5, 0, 0, 0, 0])
    assert held.snapshot().state["sum"].tolist() == [0, 0, 1, 4, 0, 0, 0, 0]


def test_what_is_kept_is_not_changed_by_later_updates_and_no_longer_than_needed() -> None:
    held = storage(Adagrad(0.5))
    before, kept = held.store.vector("x"), held.snapshot()
    assert kept.values is before, "nothing was copied"
    held.apply(SPAN, np.ones(3), 0)
    assert not kept.values.any()
    assert not kept.state["sum"].any()
    copied = held.store.vector("x")
    held.apply(SPAN, np.ones(3), 1)
    assert held.store.vector("x") is copied is not before
    released = held.snapshot()
    held.store.release(released)
    held.apply(SPAN, np.ones(3), 2)
    assert held.store.vector("x") is copied


@dataclass
class Read:
    """Somebody who reads."""

    is_over: bool = False


def test_what_is_read_is_not_changed_by_updates_of_its_range() -> None:
    size, given = 1 << 15, list[np.ndarray]()

    def memory(n_bytes: int) -> np.ndarray:
        given.append(np.zeros(n_bytes, np.uint8))
        return given[-1]

    store = VectorStore(np.zeros(size), memory=memory)
    updater = Updater(SGD(1.0), store)
    left, right = Span("x", 0, size // 2), Span("x", size // 2, size)
    gradient = [np.ones(size // 2)]
    assert np.shares_memory(store.vector("x"), given[0])

    updater.apply(left, gradient, 0)  # nobody reads
    reader, seen = Read(), store.read(left)
    store.readings(left).append(reader)
    updater.apply(right, gradient, 1)  # nobody reads these numbers
    assert len(given) == 1
    assert np.shares_memory(store.vector("x"), given[0])

    updater.apply(left, gradient, 2)
    assert np.shares_memory(store.vector("x"), given[1]), "others can read it, too"
    assert set(seen) == {-1.0}
    assert (store.read(left)[0], store.read(right)[0]) == (-2.0, -1.0)
    updater.apply(left, gradient, 3)
    assert len(given) == 2, "the new version is read by nobody"

    second = Read()
    store.readings(left).append(second)
    reader.is_over = True
    updater.apply(left, gradient, 4)
    assert np.shares_memory(store.vector("x"), given[0]), "memory is used again"
    assert store.read(left)[0] == -4.0
    assert set(given[1].view(np.float64)[: size // 2]) == {-3.0}, "the second reader's"


@given(st.lists(st.tuples(st.sampled_from("fpcsr"), st.integers(0, 5)), max_size=25))
@settings(max_examples=examples(40))
def test_readers_and_snapshots_see_their_version_in_any_order(acts: list[tuple[str, int]]) -> None:
    size = 1 << 14
    store = VectorStore(np.zeros(size), memory=lambda n_bytes: np.zeros(n_bytes, np.uint8))
    updater, version = Updater(SGD(1.0), store), 0
    readers: list[tuple[Read, np.ndarray, int]] = []
    kept: list[tuple[ShardSnapshot, int]] = []
    for act, n in acts:
        span = Span("x", n % 2 * size // 2, size)
        if act == "f":
            reader = Read()
            readers.append((reader, store.read(span), version))
            store.readings(span).append(reader)
        elif act == "p":
            updater.apply(Span("x", 0, size), [np.ones(size)], version)
            version += 1
        elif act == "c" and readers:
            readers.pop(n % len(readers))[0].is_over = True
        elif act == "s":
            kept.append((store.snapshot(), version))
        elif kept:
            store.release(kept.pop(n % len(kept))[0])
        for _, seen, of in readers:
            assert seen[0] == seen[-1] == -of
        for snapshot, of in kept:
            assert snapshot.values[0] == snapshot.values[-1] == -of
        assert store.read(Span("x", 0, size))[-1] == -version


@given(st.lists(st.integers(1, 7), max_size=4))
def test_pieces_of_a_gradient_give_the_same_bits(cuts: list[int]) -> None:
    gradient, optimizer = np.random.default_rng(1).standard_normal(8), Adam(InverseTime(0.5, 3))
    whole, pieces = storage(optimizer), storage(optimizer)
    for updates in (0, 1):
        whole.apply(Span("x", 0, 8), gradient, updates)
        pieces.updater.apply(Span("x", 0, 8), np.split(gradient, sorted(cuts)), updates)
    assert whole.read(Span("x", 0, 8)).tobytes() == pieces.read(Span("x", 0, 8)).tobytes()


def test_a_snapshot_restores_it() -> None:
    first = storage(Adagrad(0.5))
    first.apply(SPAN, np.ones(3), 0)
    kept = first.snapshot()
    second = Held(Adagrad(0.5), kept.values, dict(kept.state))
    for held in (first, second):
        held.apply(SPAN, np.ones(3), 0)
    assert np.array_equal(first.snapshot().values, second.snapshot().values)


@pytest.mark.parametrize(
    ("span", "gradient", "says"),
    [
        (SPAN, np.ones(4), "must be float64"),
        (SPAN, np.ones(3, np.float32), "must be float64"),
        (SPAN, np.ones((3, 1)), "must be float64"),
        (SPAN, np.ones(2), r"the gradient of \[2:5\] ends at 4"),
        (Span("x", 6, 9), np.ones(3), "no range of a shard's 8 values"),
        (Span("x", -1, 2), np.ones(3), "no range"),
        (Span("staged", 2, 5), np.ones(3), "no range"),
    ],
)
def test_what_does_not_fit_is_refused(span: Span, gradient: Vector, says: str) -> None:
    held = storage()
    with pytest.raises(ValueError, match=says):
        held.apply(span, gradient, 0)
    assert not held.snapshot().values[5:].any()


@pytest.mark.parametrize("state", [{}, {"sum": np.zeros(8), "more": np.zeros(8)}])
def test_the_state_of_another_optimizer_is_refused(state: dict[str, Vector]) -> None:
    with pytest.raises(ValueError, match="continue with the optimizer"):
        Held(Adagrad(0.5), np.zeros(8), state)


def test_only_float_vectors_are_values() -> None:
    with pytest.raises(ValueError, match="use a float32 or float64 vector"):
        Held(SGD(0.5), np.zeros(3, np.float16))


def test_the_rate_is_that_of_the_updates_before() -> None:
    held = storage(SGD(InverseTime(1.0, 1)))
    for updates in (0, 1, 3):
        held.apply(SPAN, np.ones(3), updates)
    assert held.read(SPAN) == pytest.approx([-1 - 1 / 2 - 1 / 4] * 3)


@pytest.mark.parametrize("optimizer", [SGD(0.5, clip_norm=1e-3), LARS(0.5)])
def test_a_shard_does_not_clip_again(optimizer: Optimizer) -> None:
    held = storage(optimizer)
    held.apply(SPAN, np.full(3, 8.0), 0)
    assert held.read(SPAN) == pytest.approx([-4.0] * 3)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("optimizer", [SGD(0.5), Adagrad(0.5), Adam(0.5)], ids=str)
def test_a_nonfinite_push_is_reported_and_never_stored(optimizer: Optimizer, bad: float) -> None:
    held = storage(optimizer)
    held.snapshot().check_finite()
    with pytest.raises(NotFinite, match=r"a push to its values \[2:5\] is not finite; lower the"):
        held.apply(SPAN, np.array([1.0, bad, 1.0]), 0)
    with pytest.raises(NotFinite, match="its parameters are not finite; lower the learning rate"):
        held.snapshot().check_finite()


def test_a_nonfinite_state_is_not_stored() -> None:
    held = storage(Adagrad(0.5), dtype=np.float32)
    held.apply(SPAN, np.full(3, 1e30, np.float32), 0)
    with pytest.raises(NotFinite, match="its 'sum' of the optimizer are not finite"):
        held.snapshot().check_finite()


def machine_of(incarnation: int, version: int, seen: dict[str, Watermark], updates: int = 0) -> Shard:
    own = ShardRanges("shard 0", incarnation, RANGES, item_bytes=8)
    policy = ApplyOnArrival(own, restored=RestoredState(version, updates, seen))
    machine = Shard(own, policy, heartbeats=HeartbeatPolicy(1.0, 2.0, 2e9))
    machine.receive(Received("coordinator", 0, Heartbeat(incarnation, clock=0.0)), 0.0)
    return machine


class History:
    """A shard's machine and storage, and a list of the gradients that count."""

    optimizer = Adagrad(InverseTime(0.5, 3))
    parts = ("part 0.0", "part 0.1", "part 1.1")

    def __init__(self) -> None:
        self.storage = storage(self.optimizer)
        self.machine, self.incarnation = machine_of(0, 0, {}), 0
        self.updates = dict.fromkeys(RANGES, 0)  # of each machine's range
        self.counted: list[tuple[Span, Vector, int]] = []
        self.saved: tuple[ShardSnapshot, int, dict[str, Watermark], int, int] = (
            self.storage.snapshot(),
            0,
            {},
            0,
            0,
        )

    def push(self, part: str, sequence: int) -> None:
        owner = int(part[-1])
        start, stop = RANGES[owner]
        gradient = np.random.default_rng([sequence, self.parts.index(part)]).standard_normal(stop - start)
        assert isinstance(self.machine.policy, ApplyOnArrival)
        is_new = sequence > self.machine.policy.seen.get(part, (0, -1))[1]
        push = Push(0, sequence, self.incarnation, 0)
        effects = self.machine.receive(Received(part, 0, push, Payload(gradient)), 0.0)
        for effect in effects:
            if isinstance(effect, ApplyGradient):
                assert isinstance(effect.payload, Payload)
                self.storage.apply(effect.span, effect.payload.numbers, effect.updates)
        assert any(isinstance(effect, Send) for effect in effects)
        if is_new:
            self.counted.append((Span("x", start, stop), gradient, self.updates[owner]))
            self.updates[owner] += 1

    def save(self) -> None:
        n = len(self.counted)
        (persist,) = self.machine.receive(Received("coordinator", 0, Save(n)), 0.0) or [None]
        if isinstance(persist, Persist):
            assert persist.updates == max(self.updates.values())
            snapshot = self.storage.snapshot()
            self.saved = (snapshot, persist.version, dict(persist.seen), persist.updates, n)

    def restart(self) -> None:
        self.incarnation += 1
        snapshot, version, seen, updates, n_counted = self.saved
        self.machine = machine_of(self.incarnation, version, seen, updates)
        self.updates = dict.fromkeys(RANGES, updates)
        self.storage = Held(self.optimizer, snapshot.values, dict(snapshot.state))
        del self.counted[n_counted:]


@given(st.data())
def test_any_history_of_pushes_is_the_sum_of_what_was_applied_in_order(data: st.DataObject) -> None:
    """Repeats, reorderings and restarts from a checkpoint, against a list of the gradients that count."""
    history = History()
    for _ in range(data.draw(st.integers(0, 30))):
        match data.draw(st.sampled_from(["push", "push", "push", "save", "restart"])):
            case "push":
                history.push(data.draw(st.sampled_from(history.parts)), data.draw(st.integers(0, 8)))
            case "save":
                history.save()
            case _:
                history.restart()
        history.machine.validate()
    naive = storage(history.optimizer)
    for span, gradient, updates in history.counted:
        naive.apply(span, gradient, updates)
    found, expected = history.storage.snapshot(), naive.snapshot()
    assert history.machine.version == len(history.counted)
    assert np.array_equal(found.values, expected.values)
    assert np.array_equal(found.state["sum"], expected.state["sum"])
