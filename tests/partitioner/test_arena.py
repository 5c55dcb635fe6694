"""Windows that share memory: nothing is written over before everybody has read it, whatever runs when."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from partita.layers import AveragePool2D, Dense, HalfSquaredError, LocallyConnected2D, Network
from partita.partitioner import Cluster, Op, Plan, StepKind, partition
from partita.partitioner.ir.buffer import activations, parse_buffer
from partita.partitioner.lower.arena import ALIGNMENT, arena_bytes
from tests.draws import examples
from tests.partitioner.interpreter import Interpreter
from tests.partitioner.orders import ORDERS, chooser
from tests.partitioner.symbolic_host import beside_each_other
from tests.plans import kinds, plans


@settings(max_examples=examples(40))
@given(
    plan=plans(shared=True),
    kind=kinds,
    order=st.sampled_from(ORDERS),
    seed=st.integers(0, 2**32),
    data=st.data(),
)
def test_any_order_gives_the_same_sums_where_windows_share_memory(
    plan: Plan, kind: StepKind, order: str, seed: int, data: st.DataObject
) -> None:
    programs = plan.programs_for(kind)
    buffers = sorted({name for program in programs for name in plan.windows(program)}, key=str)
    keep = data.draw(st.sets(st.sampled_from(buffers), max_size=2))
    Interpreter(plan, programs, keep=keep).run(steps=2, choose=chooser(order, seed))


@given(plans(shared=True), kinds)
def test_windows_begin_on_lines_and_take_no_more_than_one_after_the_other(plan: Plan, kind: StepKind) -> None:
    for program in plan.programs_for(kind):
        shared, apart = plan.windows(program, keep=()), plan.windows(program)
        assert list(shared) == list(apart)
        assert all(window.offset % ALIGNMENT == 0 for window in (*shared.values(), *apart.values()))
        one_by_one = sum(-(-window.n_bytes // ALIGNMENT) * ALIGNMENT for window in apart.values())
        assert arena_bytes(apart) == one_by_one
        largest = max((window.n_bytes for window in shared.values()), default=0)
        assert largest <= arena_bytes(shared) <= one_by_one


@given(plans(shared=True), kinds)
def test_what_is_fed_may_be_played_again(plan: Plan, kind: StepKind) -> None:
    for program in plan.programs_for(kind):
        windows = plan.windows(program, keep=())
        for name in {i.target.buffer for i in program.instructions if i.op is Op.FEED}:
            fed = windows[name]
            for other, window in windows.items():
                apart = (
                    window.offset + window.n_bytes <= fed.offset or fed.offset + fed.n_bytes <= window.offset
                )
                assert other == name or apart or not window.n_bytes or not fed.n_bytes


def stack(layers: int) -> Plan:
    """Layers that do not learn, of 4096 nodes each but the last."""
    net = Network("stack")
    states = net.input("x", shape=(64, 64, 1))
    for n in range(layers):
        states = AveragePool2D(1, name=f"pool{n}")(states)
    Dense(1, name="scores")(states)
    return partition(net, Cluster.local(1), batch=1)


def test_a_prediction_holds_two_layers_at_a_time() -> None:
    row = 4 * 4096
    for layers in (2, 3, 9):
        plan = stack(layers)
        (program,) = plan.programs
        assert (
            arena_bytes(plan.windows(program, keep=(activations("scores"),))) == 3 * row + ALIGNMENT
        )  # and the input
        assert arena_bytes(plan.windows(program)) == (layers + 1) * row + ALIGNMENT


def test_errors_of_a_machine_alone_take_the_place_of_one_another() -> None:
    net = Network("deep")
    states = net.input("x", shape=(32, 32, 1))
    for n in range(8):
        states = LocallyConnected2D(1, 1, name=f"local{n}")(states)
    net.loss = HalfSquaredError(name="loss")(states, net.target("y"))
    plan = partition(net, Cluster.local(1), batch=1)
    (program,) = plan.programs
    layer = 4 * 1024
    # the input, the target, eight layers of states, two of errors, the loss
    assert arena_bytes(plan.windows(program, keep=())) <= (2 + 8 + 2) * layer + ALIGNMENT
    assert arena_bytes(plan.windows(program)) == (2 + 8 + 8) * layer + ALIGNMENT


def test_errors_that_nobody_sends_stay_zero() -> None:
    """The last of 13 rows feeds no pool of two, so nothing ever writes its error."""
    net = Network("odd")
    states = net.input("x", shape=(15, 15, 1))
    for n in range(3):
        states = LocallyConnected2D(1, 3, padding="same" if n else "valid", name=f"local{n}")(states)
        states = AveragePool2D(1 if n else 2, name=f"pool{n}")(states)
    net.loss = HalfSquaredError(name="loss")(states, net.target("y"))
    plan = partition(net, Cluster.local(1), batch=8)
    windows = plan.windows(plan.programs[0], keep=())
    assert arena_bytes(windows) < arena_bytes(plan.windows(plan.programs[0]))
    assert not beside_each_other(windows)[parse_buffer("local0<pool0")]
    assert beside_each_other(windows)[parse_buffer("pool0<local1")]
    Interpreter(plan, plan.programs, keep=()).run(steps=2, choose=min)
