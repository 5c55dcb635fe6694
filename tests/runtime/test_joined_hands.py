"""The ranges that replicas exchange, derived from where the parameters of a plan are."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings

from partita.engine.runtime.buffers import layout_of
from partita.engine.runtime.joined_hands import shared_spans
from partita.partitioner import Plan
from tests.draws import examples
from tests.plans import plans


@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(plan=plans(shared=True))
def test_every_number_is_exchanged_once_among_the_parts_that_hold_it(plan: Plan) -> None:
    layout = layout_of(plan, shards=1)
    spans = shared_spans(layout)
    assert len(spans) == len(plan.cluster)
    exchanged = 0
    for machine, found in enumerate(spans):
        assert sum(one.stop - one.start for one in found) == layout.machine_size(machine)
        assert [one.machines for one in found] == [(machine,)] * bool(layout.machine_size(machine))
        assert all(one.index < len(plan.cluster) for one in found)
        exchanged += sum(one.stop - one.start for one in found)
    assert exchanged == plan.graph.n_parameters, "weights that several machines use count once"
    indices = [one.index for found in spans for one in found]
    assert len(set(indices)) == len(indices)
