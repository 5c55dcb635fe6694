"""The role of a shard of vectors: the same bits in any order, files for any number of shards, errors."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.engine.parameters import (
    Checkpoint,
    CheckpointError,
    Checkpoints,
    Layout,
    Manifest,
    Slot,
    Vector,
    VectorStore,
    save_parameters,
)
from partita.engine.protocol import Message, SumThenContinue
from partita.engine.protocol.batch_messages import (
    Command,
    CommandResult,
    Contribution,
    ContributionAck,
    FetchPoint,
    MissingUnits,
    Point,
)
from partita.engine.protocol.checkpoint_messages import Save, Saved
from partita.engine.protocol.commands import (
    Combine,
    Dots,
    Evaluate,
    Largest,
    Operation,
    Restore,
    Segment,
    Snapshot,
    axpy,
    copy,
    dot,
    scale,
    zero,
)
from partita.engine.protocol.coordinator_effects import ShardFile
from partita.engine.protocol.messages import Heartbeat
from partita.engine.protocol.names import COORDINATOR
from partita.engine.runtime import shard_body
from partita.engine.runtime.shard import ShardTask
from partita.engine.runtime.shard_body import CannotBeDone
from partita.engine.runtime.shard_policies import SumPolicy
from tests.runtime.shard_alone import ShardAlone

SHAPES = {"weight": (10,)}
TWO = ((Slot("weight", 0, 6),), (Slot("weight", 6, 10),))  # on two machines
ONE = ((Slot("weight", 0, 10),),)
START = np.arange(10) / 8
UNIT_SIZE = 2


class Shard(ShardAlone):
    """A shard that executes commands."""

    def __init__(
        self,
        folder: Path,
        *,
        layout: Layout | None = None,
        shard: int = 0,
        checkpoint: int | None = None,
        precision: str = "float32",
        run: str = "run",
        leased: bool = True,
    ) -> None:
        initial = folder / "initial"
        save_parameters(initial, {"weight": START})
        task = ShardTask(
            shard=shard,
            layout=layout or Layout(ONE, SHAPES, shards=1),
            run=run,
            folder=folder,
            checkpoint=checkpoint,
            initial=initial,
            precision=precision,
            policy=SumPolicy(unit_size=UNIT_SIZE),
        )
        super().__init__(task)
        if leased:
            self.receive(COORDINATOR, Heartbeat(0, clock=0.0))

    def command(self, number: int, *operations: Operation) -> list[Message]:
        """Sends a command and waits for operations in the background too."""
        sent = len(self.sent)
        self.receive(COORDINATOR, Command(number, operations))
        self.settle()
        return [message for _, message, _ in self.sent[sent:] if not isinstance(message, Saved)]

    def settle(self) -> None:
        """Waits for all operations in the background."""
        policy = self.machine.policy
        assert isinstance(policy, SumThenContinue)
        while policy.busy:
            self.body._operations.close()
            self.poll()

    @property
    def number(self) -> int:
        """Of its last command."""
        policy = self.machine.policy
        assert isinstance(policy, SumThenContinue)
        return policy.number

    def vector(self, name: str) -> list[float]:
        return self.body._store.vector(name).tolist()  # type: ignore[no-any-return]

    def save(self) -> ShardFile:
        """Waits for the file of the last snapshot."""
        self.body._files.close()
        self.poll()
        n = max(n for n, (_, message, _) in enumerate(self.sent) if isinstance(message, Saved))
        saved = self.sent.pop(n)[1]  # others may have been sent since
        assert isinstance(saved, Saved)
        return ShardFile(self.name, 0, saved.version, saved.file, saved.sha256)


def commit(folder: Path, number: int, entries: list[ShardFile], *, dtype: str = "float32") -> None:
    manifest = Manifest(
        checkpoint=number,
        run="run",
        shapes=SHAPES,
        dtype=dtype,
        optimizer="",
        steps=(1,),
        units_per_epoch=1,
        entries=tuple(entries),
    )
    Checkpoints(folder, run="run").commit(manifest)


def evaluate(portions: int) -> Evaluate:
    return Evaluate((Segment("g", 0, portions),))


def in_a_tree(gradients: list[Vector]) -> Vector:
    """Added recursively, in the stored precision."""
    if len(gradients) == 1:
        return gradients[0]
    half = 1 << (len(gradients) - 1).bit_length() - 1
    return in_a_tree(gradients[:half]) + in_a_tree(gradients[half:])


@given(st.integers(1, 9).flatmap(lambda n: st.permutations([(s, m) for s in range(n) for m in (0, 1)])))
def test_the_bits_of_a_gradient_follow_from_the_work_units_alone(
    tmp_path_factory: pytest.TempPathFactory, order: list[tuple[int, int]]
) -> None:
    """The order of arrival and the sender change no bit, also when the same arrays are used again."""
    units = len(order) // 2
    random = np.random.default_rng(units)
    gradients = [(random.normal(size=10) * 1e3**n).astype(np.float32) for n in range(units)]
    shard = Shard(tmp_path_factory.mktemp("shard"), layout=Layout(TWO, SHAPES, shards=1))
    for number in (1, 2):
        shard.command(number, evaluate(units * UNIT_SIZE))
        for unit, machine in order:
            slices = (gradients[unit][:6], gradients[unit][6:])
            said = shard.receive(f"part {unit % 3}.{machine}", Contribution(number, unit), slices[machine])
            assert said[-1] == ContributionAck(number, unit)
        assert said[:-1] == [CommandResult(number, ())]
        assert shard.body._store.vector("g").tobytes() == in_a_tree(gradients).tobytes()
    assert len(shard.body._gradients) == 0


def test_a_step_of_a_method_over_two_machines_and_two_shards(tmp_path: Path) -> None:
    """x <- x - 0.5 g, with g summed from work units; points go out as they are then."""
    layout = Layout(TWO, SHAPES, shards=2)  # machine 0 on both, machine 1 on shard 1
    shards = [Shard(tmp_path, layout=layout, shard=n, precision="float64") for n in (0, 1)]
    gradient = np.linspace(-1, 1, 10)
    slices = {(0, 0): slice(0, 5), (1, 0): slice(5, 6), (1, 1): slice(6, 10)}
    answers: list[Message] = []
    for n, shard in enumerate(shards):
        for _, machine in (key for key in slices if key[0] == n):
            shard.receive(f"part 0.{machine}", FetchPoint(0))
        shard.command(1, scale("x", 2.0), evaluate(3), Dots(("g",), ("g", "x")), axpy("x", -0.5, "g"))
        for to, message, numbers in list(shard.sent):
            machine = int(to[-1])
            assert message == Point(1)
            assert isinstance(numbers, np.ndarray)
            assert numbers.tolist() == (2 * START)[slices[n, machine]].tolist()
            for unit in (1, 0):
                answers += shard.receive(to, Contribution(1, unit), gradient[slices[n, machine]])
    done = [answer.scalars for answer in answers if isinstance(answer, CommandResult)]
    summed = np.array(done).sum(axis=0)
    assert summed == pytest.approx([4 * gradient @ gradient, 4 * gradient @ START], rel=1e-14)
    found = [*shards[0].vector("x"), *shards[1].vector("x")]
    assert found == pytest.approx((2 * START - gradient).tolist(), rel=1e-14)


def test_a_checkpoint_holds_every_vector_for_any_number_of_shards(tmp_path: Path) -> None:
    layout = Layout(TWO, SHAPES, shards=3)
    shards = [Shard(tmp_path, layout=layout, shard=n) for n in range(3)]
    entries = []
    for shard in shards:
        shard.command(
            4,
            Combine("s_0", ((2.0, "x"),)),
            copy("never_finite", "x"),
            scale("never_finite", 1e300),
            scale("x", 3.0),
        )
        answer = shard.command(5, Snapshot(1), Combine("x"), copy("later", "x"))
        assert answer == [CommandResult(5, ())]
        entries.append(shard.save())
        assert shard.receive(COORDINATOR, Save(1)) == [Saved(1, 0, 1, entries[-1].file, entries[-1].sha256)]
        assert entries[-1].version == 1, "the command after it is executed again"
    commit(tmp_path, 1, entries)

    whole = Shard(tmp_path, checkpoint=1, precision="float64", run="another")
    assert (whole.machine.version, whole.number) == (0, 0), "its commands are not those of the run before"
    assert whole.vector("x") == (3 * START).tolist()
    assert whole.vector("s_0") == (2 * START).tolist()
    assert np.isinf(whole.vector("never_finite")[1:]).all(), "a method may be at a point that is too far"

    again = Shard(tmp_path, layout=layout, shard=1, checkpoint=1)
    assert (again.machine.version, again.number) == (1, 4)
    assert again.command(4, Combine("x")) == []
    assert again.vector("x") == (3 * START)[3:6].tolist()
    assert shards[1].command(6, Restore(1), Largest("x")) == [CommandResult(6, (3 * START[5],))]
    assert shards[1].vector("s_0") == again.vector("s_0")
    with pytest.raises(CannotBeDone, match=r"^a Combine cannot be done: there is no vector 'later' to read"):
        shards[1].command(7, copy("x", "later"))
    assert shards[0].command(6, Restore(None), dot("x", "x")) == [CommandResult(6, (START[:3] @ START[:3],))]
    assert shards[0].body._store.names() == ("x",)


def test_files_are_written_one_after_the_other_while_commands_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard, go = Shard(tmp_path, precision="float64"), threading.Event()
    write_shard, order = Checkpoints.write_shard, []

    def slow(self: Checkpoints, checkpoint: int, *rest: object, **how: object) -> tuple[str, str]:
        assert go.wait(60)
        order.append(checkpoint)
        return write_shard(self, checkpoint, *rest, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(Checkpoints, "write_shard", slow)
    for number in (1, 2, 3):
        assert shard.command(number, Snapshot(number), scale("x", 2.0)) == [CommandResult(number, ())]
    shard.sent.clear()
    go.set()
    shard.body.close()
    shard.poll()
    assert order == [1, 2, 3]
    saved = [message for _, message, _ in shard.sent]
    assert [(s.checkpoint, s.version) for s in saved if isinstance(s, Saved)] == [(1, 0), (2, 1), (3, 2)]
    last = saved[-1]
    assert isinstance(last, Saved)
    commit(tmp_path, 3, [ShardFile("shard 0", 0, 2, last.file, last.sha256)], dtype="float64")
    assert Shard(tmp_path, checkpoint=3).vector("x") == (4 * START).tolist(), (
        "as it was between the operations"
    )


def test_a_long_operation_and_a_long_way_back_leave_the_host_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leases come in, a newer command waits; a file that is written keeps its numbers."""
    shard, go = Shard(tmp_path, precision="float64"), threading.Event()
    do, gathered, written = VectorStore.execute, Checkpoint.gather, Checkpoints.write_shard
    monkeypatch.setattr(shard_body, "SHORT_OPERATION", 0)
    monkeypatch.setattr(VectorStore, "execute", lambda *call: go.wait(60) and do(*call))
    monkeypatch.setattr(Checkpoint, "gather", lambda *call, **how: go.wait(60) and gathered(*call, **how))
    monkeypatch.setattr(
        Checkpoints, "write_shard", lambda *call, **how: go.wait(60) and written(*call, **how)
    )

    assert shard.receive(COORDINATOR, Command(1, (Snapshot(1), scale("x", 2.0), dot("x", "x")))) == []
    shard.tick(1.0)
    shard.receive(COORDINATOR, Heartbeat(0, clock=1.0))
    waits = MissingUnits(2, ())  # it has the command, and lacks nothing for it
    assert shard.receive(COORDINATOR, Command(2, (scale("x", 3.0),))) == [waits]
    go.set()
    shard.settle()
    entry = shard.save()
    assert [message for _, message, _ in shard.sent] == [waits, CommandResult(2, ())]
    assert shard.vector("x") == (6 * START).tolist()

    commit(tmp_path, 1, [entry], dtype="float64")
    go.clear()
    shard.sent.clear()
    assert shard.receive(COORDINATOR, Command(3, (Restore(1), Largest("x")))) == []
    shard.tick(2.0)
    go.set()
    shard.settle()
    assert [message for _, message, _ in shard.sent] == [CommandResult(3, (START[-1],))]
    assert shard.vector("x") == START.tolist()
    shard.body.close()


def test_a_step_is_the_same_beside_the_talk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_body, "SHORT_OPERATION", 0)
    shard = Shard(tmp_path)
    shard.command(1, scale("x", 2.0), evaluate(1), axpy("x", -0.5, "g"), dot("x", "g"))
    shard.receive("part 0.0", Contribution(1, 0), np.ones(10))
    shard.settle()
    x = 2 * START - 0.5
    assert shard.vector("x") == x.tolist()
    assert [message for _, message, _ in shard.sent] == [CommandResult(1, (x.sum(),)), ContributionAck(1, 0)]


def test_an_operation_that_fails_in_the_background_is_reported_by_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_body, "SHORT_OPERATION", 0)
    with pytest.raises(CannotBeDone, match="a Largest cannot be done"):
        Shard(tmp_path).command(1, Largest("gone"))
    with pytest.raises(CheckpointError, match="its manifest cannot be read"):
        Shard(tmp_path).command(1, Restore(9))


def test_a_host_that_ends_does_not_wait_for_a_long_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only for the operation that is under way."""
    shard, done = Shard(tmp_path), []
    began, go = threading.Event(), threading.Event()

    def one(self: VectorStore, operation: Operation) -> list[float]:
        began.set()
        assert go.wait(60)
        done.append(operation)
        return []

    monkeypatch.setattr(shard_body, "SHORT_OPERATION", 0)
    monkeypatch.setattr(VectorStore, "execute_quietly", one)
    shard.receive(COORDINATOR, Command(1, (zero("a"), zero("b"))))
    assert began.wait(60)
    closing = threading.Thread(target=shard.body.close)
    closing.start()
    assert shard.body._closing.wait(60)
    go.set()
    closing.join()
    assert done == [zero("a")]


def test_what_comes_before_the_lease_waits_for_it(tmp_path: Path) -> None:
    shard = Shard(tmp_path, leased=False)
    shard.command(1, evaluate(1), dot("g", "x"))
    shard.receive("part 0.0", FetchPoint(0))
    shard.receive("part 0.0", Contribution(1, 0), np.ones(10))
    assert shard.sent == []
    shard.receive(COORDINATOR, Heartbeat(0, clock=0.0))
    assert [message for _, message, _ in shard.sent] == [
        Point(1),
        CommandResult(1, (START.sum(),)),
        ContributionAck(1, 0),
    ]


@pytest.mark.parametrize(
    ("operations", "sentence"),
    [
        ((Largest("gone"),), r"a Largest cannot be done: there is no vector 'gone' to read, only 'x'; write"),
        ((copy("a b", "x"),), r"a Combine cannot be done: 'a b' cannot name a vector; use letters"),
        ((Evaluate((Segment("g!", 0, 1),)),), r"an evaluation cannot be done: 'g!' cannot name a vector"),
    ],
)
def test_what_no_shard_can_do_ends_the_run_with_a_sentence(
    tmp_path: Path, operations: tuple[Operation, ...], sentence: str
) -> None:
    shard = Shard(tmp_path)

    def ask() -> None:
        shard.command(1, *operations)
        shard.receive("part 0.0", Contribution(1, 0), np.ones(10))

    with pytest.raises(CannotBeDone, match=f"^{sentence}"):
        ask()


def test_a_contribution_of_another_size_is_refused_and_the_evaluation_goes_on(tmp_path: Path) -> None:
    shard = Shard(tmp_path)
    shard.command(1, evaluate(4))
    assert shard.receive("part 0.0", Contribution(1, 0), np.ones(9)) == []
    assert shard.refused == ["a contribution of 'part 0.0' to shard 0 has 40 bytes, not 36"]
    for unit in (0, 1):
        shard.receive("part 0.0", Contribution(1, unit), np.full(10, 3e38))
    assert shard.vector("g") == [np.inf] * 10, "a sum that runs away is no error, and no warning"


def test_memory_does_not_grow_with_the_work_units(tmp_path: Path) -> None:
    shard = Shard(tmp_path)
    shard.command(1, evaluate(2 * 300))
    for unit in [*range(1, 300), 0]:
        shard.receive("part 0.0", Contribution(1, unit), np.ones(10))
        assert len(shard.body._gradients) <= 2 * 9
    assert shard.vector("g") == [300.0] * 10
    shard.command(2, evaluate(2 * 300))
    for unit in range(5):
        shard.receive("part 0.0", Contribution(2, unit), np.ones(10))
    assert len(shard.body._gradients) == 2
    shard.command(3, Combine("x"))
    assert len(shard.body._gradients) == 0, "dropped with its evaluation"
