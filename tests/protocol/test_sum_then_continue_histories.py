"""A shard of vectors in random histories, against a naive reference."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from partita.engine.protocol.batch_messages import (
    CommandResult,
    Contribution,
    ContributionAck,
    FetchPoint,
    MissingUnits,
)
from partita.engine.protocol.commands import (
    Evaluate,
    Largest,
    Operation,
    Request,
    Restore,
    Segment,
    copy,
    dot,
    scale,
    work_units_of,
)
from partita.engine.protocol.events import Persist
from partita.engine.protocol.messages import Heartbeat
from partita.engine.protocol.shard_effects import LoadCheckpoint
from tests.protocol.textual_shard import HALF, RANGES, UNIT_SIZE, Shard, Text


@dataclass
class Naive:
    """The expected state of a shard: the last command, and the contributions to it."""

    number: int = 0
    request: Request = ()
    come: set[tuple[int, int]] = field(default_factory=set)

    def command(self, number: int, request: Request) -> None:
        if number > self.number:
            self.number, self.request, self.come = number, request, set()

    @property
    def units(self) -> dict[int, str]:
        """The vector of each work unit."""
        evaluate = next((o for o in self.request if isinstance(o, Evaluate)), Evaluate(()))
        cut = work_units_of(evaluate, UNIT_SIZE)
        return {n: evaluate.segments[unit.segment].vector for n, unit in enumerate(cut)}

    @property
    def is_open(self) -> bool:
        return len(self.come) < 2 * len(self.units)

    def sums(self) -> dict[tuple[str, int], str]:
        """The expected vectors, as texts."""
        leaves: dict[str, list[str]] = {}
        for n, vector in self.units.items():
            leaves.setdefault(vector, []).append(str(n))
        return {(vector, m): in_a_tree(texts) for vector, texts in leaves.items() for m in (0, 1)}


def in_a_tree(texts: list[str]) -> str:
    """Adds level by level; a last node without a sibling moves up."""
    while len(texts) > 1:
        pairs = [texts[n : n + 2] for n in range(0, len(texts), 2)]
        texts = [f"({pair[0]}+{pair[1]})" if len(pair) == 2 else pair[0] for pair in pairs]
    return texts[0]


REQUESTS: tuple[Request, ...] = (
    (HALF, dot("g", "g")),
    (scale("x", 2.0), Evaluate((Segment("g", 0, 13), Segment("h", 13, 1)))),
    (copy("x", "g"), Largest("x")),
)
sent = st.one_of(
    st.tuples(st.just("command"), st.integers(1, 5)),
    st.tuples(st.just("fetch"), st.integers(0, 1)),
    st.tuples(
        st.just("contribution"), st.integers(1, 5), st.integers(0, 7), st.integers(0, 1), st.integers(0, 1)
    ),
    st.tuples(st.just("the rest"), st.randoms(use_true_random=False)),
)


@given(st.lists(sent, max_size=60))
def test_any_history_does_each_command_once_and_adds_up_in_one_order(history: list[tuple]) -> None:  # type: ignore[type-arg]
    shard, naive = Shard(), Naive()
    for step in history:
        shard.sent.clear()
        done = len(shard.done)
        match step:
            case "command", number:
                request = REQUESTS[number % 3]
                is_new = number > naive.number
                naive.command(number, request)
                shard.command(number, *request)
                if not is_new:
                    assert len(shard.done) == done
                    kinds = [type(message) for _, message in shard.sent]
                    assert kinds == (
                        [] if number < naive.number else [MissingUnits if naive.is_open else CommandResult]
                    )
            case "fetch", machine:
                shard.receive(f"part 0.{machine}", FetchPoint(naive.number - 1))
                assert len(shard.sent) == bool(naive.units)
            case "contribution", evaluation, unit, machine, replica:
                contribute(shard, naive, evaluation, unit, machine, replica)
            case "the rest", order:
                rest = [(n, m) for n in naive.units for m in (0, 1)]
                order.shuffle(rest)
                for unit, machine in rest:
                    contribute(shard, naive, naive.number, unit, machine, 0)
        assert (shard.policy.evaluation is not None) == naive.is_open
        if naive.number and not naive.is_open:
            assert {key: shard.vectors[key] for key in naive.sums()} == naive.sums()
            assert shard.done[-1] in naive.request


def contribute(shard: Shard, naive: Naive, evaluation: int, unit: int, machine: int, replica: int) -> None:
    """Gives it to both, and checks the acknowledgement."""
    is_current = evaluation == naive.number and naive.is_open
    refused = len(shard.refused)
    found = shard.contribute(evaluation, unit, machine, replica=replica)
    if is_current and unit not in naive.units:
        assert found == [] and len(shard.refused) == refused + 1
        return
    assert found[-1] == ContributionAck(evaluation, unit)
    if is_current:
        naive.come.add((unit, machine))
        assert [type(message) for message in found[:-1]] == ([] if naive.is_open else [CommandResult])


slowly = st.one_of(
    st.tuples(st.just("command"), st.sampled_from([1, 1, 1, 2, 2, 3])),
    st.just(("contributions",)),
    st.tuples(st.just("time"), st.sampled_from([1.0, 4.0])),
    st.just(("lease",)),
    st.just(("work",)),
)


@given(st.lists(slowly, min_size=30, max_size=60))
def test_however_long_it_takes_operations_are_done_once_and_in_order(
    history: list[tuple],  # type: ignore[type-arg]
) -> None:
    """Commands come again, or newer ones come, and leases end, while a shard is at work."""
    shard, now = Shard(slow=True), 0.0
    wanted: dict[int, Request] = {
        n: (scale(f"a{n}", 2.0), Restore(n), HALF, dot("x", "g")) for n in (1, 2, 3)
    }
    done: dict[int, list[Operation | Persist | LoadCheckpoint]] = {}
    answered: set[int] = set()
    for step in history:
        shard.sent.clear()
        number, before = shard.policy.number, len(shard.done)
        match step:
            case "command", asked:
                shard.command(asked, *wanted[asked], now=now)
                assert shard.policy.number in (number, asked)
            case ("contributions",) if shard.policy.evaluation is not None:
                for unit, machine in [(n, m) for n in range(3) for m in (0, 1)]:
                    start, stop = RANGES[machine]
                    text = Text("", 4 * (stop - start))
                    shard.receive(f"part 0.{machine}", Contribution(number, unit), text, now=now)
            case "time", seconds:
                now += seconds
            case ("lease",):
                shard.receive("coordinator", Heartbeat(0, clock=now), now=now)
            case ("work",) if shard.working is not None:
                shard.work(now)
                done.setdefault(number, []).extend(shard.done[before:])
        assert not shard.sent or shard.machine.holds_lease(now)
        answered |= {message.number for _, message in shard.sent if isinstance(message, CommandResult)}
    for number, found in done.items():
        expected = [wanted[number][0], LoadCheckpoint(number), wanted[number][3]]
        assert found == expected[: len(found)]
        assert len(found) == 3 or number not in answered
