"""A host of a real run that misbehaves is named, cut off and replaced, and the run goes on."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from partita.engine import Downpour, Interrupted, train
from partita.partitioner import Cluster, partition
from tests.faults import toy
from tests.faults.helpers import Witness
from tests.faults.rogue import Rogue

pytestmark = pytest.mark.slow

CASES = {
    "part 0.1: forbidden": "a PushAck, which 'part 0.1' may not send",
    "part 0.1: malformed": "are not an envelope",
    "part 0.1: flood": "a flood, of which a Heartbeat is message",
    "part 0.0: orders": "a Stop, which 'part 0.0' may not send",
    "part 0.0: sizes": "5000",
    "part 0.1: orders to a shard": "a Save, which 'part 0.1' may not send",
    "part 0.1: requests to a part": "a Fetch, which 'part 0.1' may not send",
    "shard 0: forbidden": "a PushAck, which 'shard 0' may not send",
    "shard 0: malformed": "are not an envelope",
    "shard 0: flood": "a flood, of which a Heartbeat is message",
    "shard 0: requests to a part": "a Fetch, which 'shard 0' may not send",
}


@pytest.mark.parametrize("case", CASES)
def test_a_host_that_misbehaves_is_named_and_replaced(case: str, witness: Witness, tmp_path: Path) -> None:
    role, deed = case.split(": ")
    witness.when_said("cut off by", lambda: None)
    for _ in range(20):  # reports
        witness.when(lambda progress: True, lambda: None)
    witness.when(lambda progress: True, lambda: signal.raise_signal(signal.SIGINT))
    plan = partition(toy.network(), Cluster.local(machines=2), batch=8, strategy="balanced")
    optimizer = Rogue(0.05, role=role, deed=deed, marker=str(tmp_path / "once"))
    with pytest.raises(Interrupted):
        train(plan, toy.data(), driver=Downpour(optimizer=optimizer), epochs=100_000)
    named, *_ = [text for text in witness.texts if f"{role}: cut off by" in text]
    assert CASES[case] in named
    assert not [text for text in witness.texts if "cut off" in text and role not in text]
