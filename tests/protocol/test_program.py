"""A driver's program on the machines of parts and coordinator: steps, views, deaths, joins, checkpoints."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.engine.protocol import replica_messages as rm
from partita.engine.protocol.actions import (
    AllGather,
    AllReduce,
    Apply,
    Checkpoint,
    Compute,
    Plan,
    Program,
    ReduceScatter,
    SafePoint,
    Work,
)
from partita.engine.protocol.coordinator_effects import AbortRun, EndRun, Timeouts
from partita.engine.protocol.exchange import Ring, Server, Tree
from partita.engine.protocol.views import Member, Outline
from tests.draws import examples
from tests.protocol.fleet import Fleet, parts, reference, work_of

TIMEOUTS = Timeouts(checkpoint_every_s=1.0, deaths=50, wave_s=3.0)
SHAPES = st.sampled_from([(1, 1), (2, 1), (3, 1), (4, 1), (2, 2), (3, 2)])
SEEDS = st.integers(0, 1 << 32)


def all_reduce(me: Member) -> Program:
    for step in me.steps():
        yield Compute(step)
        yield AllReduce(by=Ring())
        yield Apply("optimizer")
        yield SafePoint()


def sharded(me: Member) -> Program:
    for step in me.steps():
        yield Compute(step)
        yield ReduceScatter(by=Ring())
        yield Apply("optimizer", own=True)
        yield AllGather(by=Ring())
        yield SafePoint()


def check(fleet: Fleet, replicas: int, machines: int) -> None:
    """One process on the same joined batches has the same numbers, and no example was left out."""
    assert isinstance(fleet.end, EndRun) and fleet.end.complete, (fleet.end, fleet.warnings)
    steps = fleet.steps()
    assert [example for step in steps for example in step] == list(range(fleet.total))
    found = fleet.parameters()
    assert set(found) <= set(parts(replicas, machines))
    assert found == dict.fromkeys(found, reference(steps)), steps


def kill_some(fleet: Fleet, times: int, seed: int, *, for_good: float = 0.0) -> None:
    """Kills parts at random times, some of which never start again, and plays on to the end."""
    draw = random.Random(seed)
    victims = list(fleet.processes)
    for _ in range(times):
        left = draw.randrange(50, 800)

        def passed(_: Fleet) -> bool:
            nonlocal left
            left -= 1
            return left < 0

        if fleet.run(until=passed).end is not None:
            return
        victim = draw.choice(victims)
        if draw.random() < for_good:
            fleet.broken.add(victim)
        fleet.kill(victim)
    fleet.run()


# Steps.


@pytest.mark.parametrize("by", [Ring(), Tree(), Server()], ids=repr)
def test_replicas_do_what_one_process_does_on_joined_batches(by: object) -> None:
    def program(me: Member) -> Program:
        for step in me.steps():
            yield Compute(step)
            yield AllReduce(by=by)
            yield Apply("optimizer")
            yield SafePoint()

    check(Fleet(program, replicas=3, machines=2).run(), 3, 2)


def test_a_part_knows_which_others_of_its_machine_share_memory() -> None:
    fleet = Fleet(all_reduce, replicas=3, machines=2)
    places = {
        "part 0.0": "a",
        "part 1.0": "b",
        "part 2.0": "a",
        "part 0.1": "",
        "part 1.1": "",
        "part 2.1": "c",
    }
    fleet.places = places
    fleet.run(until=lambda fleet: len(fleet.views) == 6)
    assert {view.places for view in fleet.views} == {(0, 1, 0), ()}


def test_a_sharded_update_is_the_same_and_the_sums_are_halved() -> None:
    check(Fleet(sharded, replicas=3, sharded=True).run(), 3, 1)


def test_ranges_that_several_machines_hold_are_summed_over_all_of_them() -> None:
    fleet = Fleet(all_reduce, replicas=2, machines=2, shared=True).run()
    assert isinstance(fleet.end, EndRun) and fleet.end.complete, fleet.warnings
    assert len({tuple(values[:2]) for values in fleet.parameters().values()}) == 1


def test_a_mean_is_divided_once() -> None:
    def program(me: Member) -> Program:
        for step in me.steps():
            yield Compute(step)
            yield AllReduce(by=Ring())
            yield Apply("optimizer")
            yield AllReduce("parameters", by=Tree(), mean=True)
            yield SafePoint()

    check(Fleet(program, replicas=2).run(), 2, 1)


def test_a_schedule_of_several_works_makes_a_checkpoint_in_between() -> None:
    def schedule(run: Outline) -> Plan:
        yield Work(epochs=1)
        number = yield Checkpoint()
        assert number == 1
        yield Work(examples=7)
        yield Work(epochs=run.epochs - 1, examples=-7)

    fleet = Fleet(all_reduce, schedule=schedule).run()
    check(fleet, 2, 1)
    (version, values), (first, *_) = fleet.files["part 0.0", 1], fleet.commits
    assert values == reference(fleet.steps()[:version]) and first.steps == (4, 4)
    assert sum(len(step) for step in fleet.steps()[:version]) == 20


# Deaths, lost messages, joins.


@settings(max_examples=examples(60), deadline=None)
@given(shape=SHAPES, kills=st.integers(0, 3), loss=st.sampled_from([0.0, 0.02, 0.1]), seed=SEEDS)
def test_deaths_and_lost_messages_change_no_number(
    shape: tuple[int, int], kills: int, loss: float, seed: int
) -> None:
    """Also without a checkpoint: a replica that starts again gets the state of another one."""
    replicas, machines = shape
    fleet = Fleet(all_reduce, replicas=replicas, machines=machines, seed=seed, loss=loss, timeouts=TIMEOUTS)
    kill_some(fleet, kills, seed)
    check(fleet, replicas, machines)
    assert loss or not fleet.refused, fleet.refused[:3]


@settings(max_examples=examples(60), deadline=None)
@given(
    shape=st.sampled_from([(2, 1), (3, 1), (4, 1), (3, 2)]),
    kills=st.integers(0, 3),
    loss=st.sampled_from([0.0, 0.05]),
    seed=SEEDS,
)
def test_replicas_join_and_leave_and_no_example_is_done_twice(
    shape: tuple[int, int], kills: int, loss: float, seed: int
) -> None:
    replicas, machines = shape
    timeouts = Timeouts(checkpoint_every_s=1.0, deaths=2, wave_s=3.0)
    fleet = Fleet(
        all_reduce,
        replicas=replicas,
        machines=machines,
        epochs=3,
        seed=seed,
        loss=loss,
        least=1,
        timeouts=timeouts,
    )
    kill_some(fleet, kills, seed, for_good=0.4)
    if isinstance(fleet.end, AbortRun):  # none of the replicas can start any more
        assert len({name[:6] for name in fleet.broken}) == replicas, (fleet.end, fleet.broken)
    else:
        check(fleet, replicas, machines)


def test_a_replica_that_joins_late_is_in_the_next_view_and_has_the_state_of_others() -> None:
    fleet = Fleet(all_reduce, replicas=3, epochs=6, least=2, timeouts=Timeouts(checkpoint_every_s=None))
    late = fleet.processes.pop("part 2.0")
    fleet.run(until=lambda fleet: len(fleet.computed) > 6)
    assert {view.members for view in fleet.views} == {(0, 1)}
    fleet.processes["part 2.0"] = late
    check(fleet.run(), 3, 1)
    last = fleet.views[-1]
    assert last.members == (0, 1, 2) and last.step > 0
    assert 2 in [copy.target for copy in last.copies]


def test_when_nobody_is_left_the_run_goes_on_from_the_last_checkpoint() -> None:
    fleet = Fleet(all_reduce, replicas=2, epochs=20, timeouts=Timeouts(checkpoint_every_s=0.3))
    fleet.run(until=lambda fleet: len(fleet.commits) > 0)
    for name in parts(2, 1):
        fleet.kill(name)
    check(fleet.run(), 2, 1)
    version, _ = fleet.files["part 0.0", fleet.commits[0].checkpoint]
    assert version > 0 and {view.step for view in fleet.views} == {0, version}, fleet.views


def test_a_death_under_a_sharded_optimizer_leads_all_back_to_the_checkpoint() -> None:
    fleet = Fleet(sharded, replicas=3, epochs=4, sharded=True, timeouts=TIMEOUTS)
    fleet.run(until=lambda fleet: len(fleet.computed) > 4)
    fleet.kill("part 1.0")
    check(fleet.run(), 3, 1)
    assert {process.host.incarnation for process in fleet.ends.values()} == {1}


def test_a_step_does_not_wait_for_a_backup_worker() -> None:
    """The others are a step ahead of it, and all have the same numbers in the end."""

    def program(me: Member) -> Program:
        for step in me.steps():
            yield Compute(step)
            yield AllReduce(by=Server(backup_workers=1))
            yield Apply("optimizer")
            yield SafePoint()

    fleet = Fleet(program, replicas=3, epochs=4)
    fleet.run(until=lambda fleet: len(fleet.computed) > 3)
    fleet.slow["part 2.0"] = []
    fleet.run(until=lambda fleet: bool(fleet.slow["part 2.0"]))
    behind = work_of(fleet.slow["part 2.0"][0][0])
    assert behind is not None and behind.step is not None
    ahead = behind.step + 1

    def others(fleet: Fleet) -> list[int | None]:
        works = [work_of(fleet.processes[name]) for name in ("part 0.0", "part 1.0")]
        return [work.step for work in works if work is not None]

    fleet.run(until=lambda fleet: others(fleet) == [ahead, ahead] and ahead in fleet.computed)
    for process, done in fleet.slow.pop("part 2.0"):
        fleet.later(process, done)
    fleet.run()
    assert isinstance(fleet.end, EndRun) and fleet.end.complete, fleet.warnings
    assert len({tuple(values) for values in fleet.parameters().values()}) == 1


# Checkpoints, and the end.


def test_checkpoints_are_of_the_step_that_they_say() -> None:
    fleet = Fleet(all_reduce, replicas=2, machines=2, epochs=8, timeouts=Timeouts(checkpoint_every_s=0.3))
    check(fleet.run(), 2, 2)
    assert len(fleet.commits) > 2
    for commit in fleet.commits:
        assert [entry.shard for entry in commit.entries] == ["part 0.0", "part 0.1"]
        for entry in commit.entries:
            version, values = fleet.files[entry.shard, commit.checkpoint]
            assert commit.steps == (version, version)
            assert values == reference(fleet.steps()[:version])


def test_ctrl_c_ends_the_run_with_a_checkpoint() -> None:
    fleet = Fleet(all_reduce, replicas=2, epochs=50)
    fleet.run(until=lambda fleet: len(fleet.computed) > 5).stop()
    before = len(fleet.computed)
    fleet.run()
    assert isinstance(fleet.end, EndRun) and not fleet.end.complete
    assert fleet.end.checkpoint == 1 and fleet.end.steps == fleet.commits[0].steps >= (4, 4)
    assert len(fleet.computed) <= before + 1, "it ends at once"
    version, values = fleet.files["part 0.0", 1]
    assert values == reference([fleet.computed[step] for step in range(version)])


@settings(max_examples=examples(40), deadline=None)
@given(
    seed=SEEDS,
    kills=st.integers(0, 2),
    shape=st.sampled_from([(1, 1), (2, 1), (3, 2)]),
    loss=st.sampled_from([0.0, 0.05]),
    stop=st.integers(0, 900),
)
def test_ctrl_c_at_any_time(seed: int, kills: int, shape: tuple[int, int], loss: float, stop: int) -> None:
    """Also while replicas are dead: what one of them holds becomes the checkpoint, if there is one."""
    replicas, machines = shape
    fleet = Fleet(all_reduce, replicas=replicas, machines=machines, epochs=50, seed=seed, loss=loss)
    draw = random.Random(seed)
    for n in range(stop):
        if n in (stop // 2, stop - 1)[:kills]:
            fleet.kill(draw.choice(parts(replicas, machines)))
        fleet.step()
    fleet.stop()
    fleet.run()
    assert isinstance(fleet.end, EndRun), fleet.warnings
    assert fleet.end.complete <= (sum(map(len, fleet.computed.values())) == fleet.total), "the work was done"
    for commit in fleet.commits:
        for entry in commit.entries:
            version, values = fleet.files[entry.shard, commit.checkpoint]
            assert commit.steps == (version,) * replicas
            assert values == reference([fleet.computed[step] for step in range(version)])
    if not kills and not loss and len(fleet.computed) > 1:
        assert fleet.commits, fleet.warnings


def test_a_run_goes_on_after_a_checkpoint() -> None:
    first = Fleet(all_reduce, replicas=2, epochs=1).run()
    second = Fleet(all_reduce, replicas=2, epochs=2, resumed=first).run()
    assert isinstance(second.end, EndRun) and second.end.complete
    assert second.end.steps == (8, 8)
    assert [example for step in second.steps() for example in step] == list(range(20, 40))
    assert second.parameters() == dict.fromkeys(parts(2, 1), reference(first.steps() + second.steps()))


def test_a_run_goes_on_with_another_number_of_replicas() -> None:
    """No example is left out or comes twice, although joined batches have another size from there on."""

    def a_part_of_an_epoch(run: Outline) -> Plan:
        yield Work(examples=9)

    first = Fleet(all_reduce, replicas=3, epochs=1, schedule=a_part_of_an_epoch).run()
    assert first.commits[-1].done == ((0, 9),)
    for replicas in (1, 2, 4):
        second = Fleet(all_reduce, replicas=replicas, epochs=2, resumed=first).run()
        assert [example for step in second.steps() for example in step] == list(range(9, 40))
        expected = reference(first.steps() + second.steps())
        assert second.parameters() == dict.fromkeys(parts(replicas, 1), expected)


def test_a_part_that_does_not_answer_is_started_again() -> None:
    fleet = Fleet(all_reduce, replicas=2, epochs=4, timeouts=Timeouts(checkpoint_every_s=None))
    fleet.run(until=lambda fleet: len(fleet.computed) > 3)
    del fleet.processes["part 1.0"]  # its process hangs: nobody is told of an end
    check(fleet.run(), 2, 1)
    assert any("silent" in text for text in fleet.warnings), fleet.warnings


# One part.


def test_nothing_of_an_old_view_is_accepted() -> None:
    fleet = Fleet(all_reduce, replicas=2)
    fleet.run(until=lambda fleet: len(fleet.computed) > 1)
    process = fleet.processes["part 0.0"]
    role = process.host.role
    work = work_of(process)
    assert role is not None and work is not None
    number = work.me.view
    before = {name: list(vector) for name, vector in process.vectors.items()}
    fleet.pending.clear()
    for old in (rm.PartialChunk(number - 1, 0, 0, 0), rm.FinalChunk(number - 1, 0, 0, 0)):
        assert role.receive(fleet.received("part 1.0", old, (9,) * 3), fleet.now) == []
    assert role.receive(fleet.received("part 1.0", rm.Reduced(number - 1, 1)), fleet.now) == []
    assert role.receive(fleet.received("coordinator", rm.Pause(number)), fleet.now) == []
    assert {name: list(vector) for name, vector in process.vectors.items()} == before


@pytest.mark.parametrize(
    ("program", "what"),
    [
        (lambda me: iter([Compute(3)]), "computes step 3, and 0 is under way"),
        (lambda me: (Compute(step + 1) for step in me.steps()), "computes step 1, and 0 is under way"),
    ],
)
def test_a_program_that_computes_another_step_is_told_so(program: object, what: str) -> None:
    with pytest.raises(RuntimeError, match=what):
        Fleet(program).run()  # type: ignore[arg-type]


def local_steps(me: Member) -> Program:
    for step in me.steps():
        yield Compute(step, alone=True)
        yield Apply("optimizer")
        yield SafePoint()
        if step % 3 == 2 or me.is_last:
            yield AllReduce("parameters", by=Ring(), mean=True)
            yield SafePoint()


@settings(max_examples=examples(40), deadline=None)
@given(
    shape=st.sampled_from([(2, 1), (3, 1), (2, 2)]),
    kills=st.integers(0, 3),
    loss=st.sampled_from([0.0, 0.05]),
    seed=SEEDS,
)
def test_local_steps_end_with_equal_replicas_and_leave_out_no_example(
    shape: tuple[int, int], kills: int, loss: float, seed: int
) -> None:
    """Replicas differ between two means, and may be some steps apart when a view changes."""
    replicas, machines = shape
    fleet = Fleet(local_steps, replicas=replicas, machines=machines, seed=seed, loss=loss, timeouts=TIMEOUTS)
    kill_some(fleet, kills, seed)
    assert isinstance(fleet.end, EndRun) and fleet.end.complete, (fleet.end, fleet.warnings)
    steps = fleet.steps()
    assert [example for step in steps for example in step] == list(range(fleet.total))
    if not kills:
        assert len({tuple(values) for values in fleet.parameters().values()}) == 1
