"""A node that loops for ever: the part is started again, and the second time the run ends and names it."""

from __future__ import annotations

from typing import Any

import pytest

from partita.engine import SGD, Downpour, GradientDescent, RunFailed, Sandblaster, train
from partita.layers import OneToOne, node
from partita.partitioner import Cluster, partition
from tests.faults import toy
from tests.faults.helpers import Witness


@node(OneToOne())
def endless(incoming):  # type: ignore[no-untyped-def]
    total = incoming[0]
    while total > 1e6:  # never in the inputs on which it is compared with plain Python
        total += 0.0
    return total


@endless.downward
def endless_errors(incoming, state, error):  # type: ignore[no-untyped-def]
    return (0 * incoming + error,)


def data() -> dict[str, Any]:
    """Data with an example late in the first epoch that never ends."""
    found = toy.data()
    found["picture"][::100, 3] = 1e9
    return found


@pytest.mark.filterwarnings("ignore::partita.engine.kernels.nodes.errors.SlowNodeWarning")
@pytest.mark.parametrize(
    ("driver", "epochs"),
    [
        pytest.param(Downpour(optimizer=SGD(0.05)), 2, marks=pytest.mark.slow),
        pytest.param(Sandblaster(method=GradientDescent(max_iterations=3)), None, marks=pytest.mark.slow),
    ],
    ids=["downpour", "sandblaster"],
)
def test_it_is_named_with_its_instruction_and_the_stacks(
    witness: Witness, driver: Any, epochs: int | None
) -> None:
    plan = partition(toy.with_node(endless), Cluster.local(machines=1), batch=8, strategy="balanced")
    with pytest.raises(RunFailed, match=r"^part 0\.0 failed 2 times: FORWARD odd\[0:8\]") as failed:
        train(plan, data(), driver=driver, epochs=epochs, instruction_timeout_s=0.5)
    text = str(failed.value)
    assert "a computation of Node endless 'odd', has not ended for " in text
    assert "instruction_timeout_s" in text
    (note,) = failed.value.__notes__
    assert "on_torch.py" in note and "Thread 0x" in note
    assert sum("failed, 1 of 2 times" in warned for warned in witness.texts) == 1
