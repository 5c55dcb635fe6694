"""The setting of encryption reaches all hosts of a run, changes no bits, and is refused where it must be."""

from __future__ import annotations

import numpy as np
import pytest

from partita.engine import Adagrad, Downpour, train
from partita.engine.launch import Placement, ProcessLauncher
from partita.engine.transport import Encryption
from partita.engine.transport.seal import CAN_SEAL
from partita.layers import Dense, Network, SoftmaxCrossEntropy
from partita.partitioner import Cluster, partition

HOSTS = ("part 0.0", "shard 0", "shard 1")


def parameters(capfd: pytest.CaptureFixture[str], **how: object) -> tuple[dict[str, np.ndarray], str]:
    """The parameters after training with one replica, and what the run printed."""
    net = Network("rows")
    scores = Dense(10, name="scores")(net.input("row", shape=(2000,)))
    net.loss = SoftmaxCrossEntropy()(scores, net.target("digit"))
    draw = np.random.default_rng(1)
    data = {"row": draw.standard_normal((64, 2000), np.float32), "digit": draw.integers(0, 10, 64)}
    plan = partition(net, Cluster.local(machines=1, threads=1), batch=16)
    driver = Downpour(shards=2, optimizer=Adagrad(0.05))
    run = train(plan, data, driver=driver, epochs=3, show="lines", **how)  # type: ignore[arg-type]
    return dict(run.parameters), capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(not CAN_SEAL, reason="the package 'cryptography' is not installed")
def test_the_same_bits_in_shared_memory_sealed_and_in_the_clear(capfd: pytest.CaptureFixture[str]) -> None:
    apart = {name: Placement(machine=name) for name in HOSTS}
    near, said = parameters(capfd)
    assert "encrypted" not in said
    sealed, said = parameters(capfd, places=apart)
    assert "encrypted" not in said
    clear, said = parameters(capfd, places=apart, encrypt_payloads=False)
    assert "payloads between machines are not encrypted, on loopback" in said
    for name, numbers in near.items():
        np.testing.assert_array_equal(sealed[name], numbers)
        np.testing.assert_array_equal(clear[name], numbers)


def test_a_launcher_refuses_to_send_payloads_in_the_clear_over_a_network() -> None:
    far = {"shard 0": Placement(command=("true",), address="10.1.2.3")}
    with pytest.raises(ValueError, match="trusted_network=True"):
        ProcessLauncher(places=far, listen="tcp://10.1.2.4:5000", encryption=Encryption(payloads=False))
