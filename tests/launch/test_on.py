"""The ways to start hosts beyond this machine: what values mean, and the answer where they mean nothing."""

from pathlib import Path

import pytest

from partita.engine import Pool, Session, train
from partita.engine.drivers.downpour import Downpour
from partita.engine.launch.on import ON, OnOptions, on_of
from partita.partitioner import Cluster, partition
from tests.faults import toy


def test_a_text_and_the_options_beside_it_are_settings() -> None:
    found = on_of("tcp://10.0.0.1:7077", OnOptions(keys=Path("mine"), pool_workers=3))
    assert found == Pool("tcp://10.0.0.1:7077", keys=Path("mine"), workers=3)
    assert on_of(found) is found


@pytest.mark.parametrize("value", ["", "slurm", "10.0.0.1:7077", 7077, None, ["tcp://10.0.0.1:7077"]])
def test_an_unknown_value_is_answered_with_all_that_there_is(value: object) -> None:
    with pytest.raises(ValueError, match="on is") as refused:
        on_of(value)
    for way in ON:
        assert f"'{way.written}'" in str(refused.value)
        assert f"{way.kind.__name__}(...)" in str(refused.value)


def test_sessions_and_train_take_the_same_values() -> None:
    plan = partition(toy.network(), Cluster.local(machines=1), batch=8)
    with pytest.raises(ValueError, match=r"hosts is 'slurm'; give one of 'inline', 'threads', .*tcp://HOST"):
        Session(plan, 0, hosts="slurm")
    with pytest.raises(ValueError, match=r"on is 'slurm'; give one of 'tcp://HOST:PORT'"):
        train(plan, toy.data(), driver=Downpour(), epochs=1, on="slurm")
