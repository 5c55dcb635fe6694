"""Positions of joined batches, and what a view goes on from."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from partita.engine.protocol.names import part_name
from partita.engine.protocol.replica_messages import Paused, StateCopy
from partita.engine.protocol.view_change import Agreement, ViewChange
from partita.engine.protocol.views import JoinedBatches

SMALL = st.integers(1, 40)


@given(examples=SMALL, batch=SMALL, replicas=st.integers(1, 5), first=st.integers(0, 90), steps=SMALL)
def test_positions_are_those_of_steps_one_after_another(
    examples: int, batch: int, replicas: int, first: int, steps: int
) -> None:
    batches = JoinedBatches(examples, batch)
    position, seen = first, 0
    for done in range(1, steps + 1):
        after = batches.after(position, replicas)
        assert position < after <= (position // examples + 1) * examples, (
            "no step goes over the end of an epoch"
        )
        assert after - position <= batch * replicas
        position, seen = after, seen + after - position
        assert batches.position(first, done, replicas) == position == first + seen
        assert batches.steps(first, position, replicas) == done


def agreed(*replicas: tuple[int | str | None, ...], alone: bool = False) -> Agreement | None:
    """The agreement after these answers of each part; "3+": the part can end the step after three."""
    change = ViewChange(7, tuple(range(len(replicas))), len(replicas[0]), 0.0)
    answers = [
        (part_name(replica, machine), step)
        for replica, steps in enumerate(replicas)
        for machine, step in enumerate(steps)
    ]
    assert not change.take("part 0.0", Paused(6, 0)), "an answer about an older view"
    for n, (name, step) in enumerate(answers):
        completes = isinstance(step, str)
        done = int(str(step)[:-1]) if completes else step
        answer = Paused(7, done, completes, alone)  # type: ignore[arg-type]
        assert list(change.missing) == [name for name, _ in answers[n:]]
        assert change.take(name, answer) == (n == len(answers) - 1)
        assert not change.take(name, answer), "a repeat"
    return change.agree()


def test_equal_states_need_no_copies() -> None:
    assert agreed((4,), (4,), (4,)) == Agreement(4, ())


def test_those_behind_get_the_state_of_one_that_is_not_in_turns() -> None:
    copies = (StateCopy(0, 1, 0), StateCopy(0, 3, 2), StateCopy(0, 1, 4))
    assert agreed((0,), (5,), (4,), (5,), (None,)) == Agreement(5, copies)


def test_parts_of_a_replica_end_the_step_that_one_of_them_has_ended() -> None:
    assert agreed((5, "4+"), (4, "4+")) == Agreement(5, (StateCopy(0, 0, 1), StateCopy(1, 0, 1)))


def test_what_one_part_could_end_counts_only_where_another_one_has_ended_it() -> None:
    assert agreed(("4+", "4+"), (4, 4)) == Agreement(4, ())


def test_a_replica_with_half_a_copy_gets_the_rest_or_another_one() -> None:
    assert agreed((5, None), (5, 5)) == Agreement(5, (StateCopy(1, 1, 0),))
    # The one that had step 5 has gone: machine 1 has it nowhere, so part 0.0 goes back.
    assert agreed((5, 3), (4, 4)) == Agreement(4, (StateCopy(0, 1, 0), StateCopy(1, 1, 0)))


def test_parts_of_several_replicas_are_a_state_if_no_replica_is_further() -> None:
    assert agreed((5, None), (None, 5)) == Agreement(5, (StateCopy(0, 0, 1), StateCopy(1, 1, 0)))
    copies = StateCopy(0, 0, 1), StateCopy(0, 0, 2), StateCopy(1, 1, 0), StateCopy(1, 1, 2)
    assert agreed((5, 0), (0, 5), (0, 0)) == Agreement(5, copies), "a replica began anew"
    assert agreed((5, 0), (0, "4+"), (4, 4)) == Agreement(
        5, (StateCopy(0, 0, 1), StateCopy(0, 0, 2), StateCopy(1, 1, 0), StateCopy(1, 1, 2))
    )
    assert agreed((5, None), (5, 5), (None, 5)) == Agreement(5, (StateCopy(1, 1, 0), StateCopy(0, 1, 2)))


def test_states_that_replicas_have_made_alone_do_not_go_together() -> None:
    assert agreed((5, 0), (0, 5), alone=True) is None
    assert agreed((5, 5), (0, 5), alone=True) == Agreement(5, (StateCopy(0, 0, 1), StateCopy(1, 0, 1)))


def test_without_a_whole_state_there_is_no_agreement() -> None:
    assert agreed((5, None), (None, 4)) is None
    assert agreed((5, None), (5, None)) is None
