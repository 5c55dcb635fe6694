"""The simulated network alone: what a fault rate and a split mean."""

from __future__ import annotations

from random import Random

from partita.engine.transport.simulated import NetworkFaults, SimulatedNetwork


def network(**faults: float) -> SimulatedNetwork:
    return SimulatedNetwork(Random(1), NetworkFaults(**faults))  # type: ignore[arg-type]


def test_without_faults_everything_arrives_once_and_soon() -> None:
    net = network(delay_s=0.01)
    for now in range(200):
        [arrival] = net.arrivals("a", "b", float(now))
        assert now + 0.001 <= arrival <= now + 0.01


def test_rates_are_rates() -> None:
    net = network(drop=0.25, repeat=0.5, slow=0.1, slow_s=5.0)
    arrivals = [net.arrivals("a", "b", 0.0) for _ in range(4000)]
    assert 900 < sum(times == () for times in arrivals) < 1100
    assert 1350 < sum(len(times) == 2 for times in arrivals) < 1650
    assert max(max(times) for times in arrivals if times) > 4.0


def test_a_connection_keeps_its_order_and_two_do_not() -> None:
    net = network(slow=0.5)
    times = [net.arrivals("a", "b", 0.001 * n)[0] for n in range(100)]
    assert times == sorted(times)
    other = [net.arrivals("b", "a", 0.001 * n)[0] for n in range(100)]
    assert min(other) < times[-1]
    loose = network(slow=0.5, in_order=False)
    times = [loose.arrivals("a", "b", 0.001 * n)[0] for n in range(100)]
    assert times != sorted(times)


def test_a_split_cuts_one_direction_until_it_heals() -> None:
    net = network(drop=0.5, repeat=0.5)
    net.cut("a", "b", until=3.0)
    net.cut("a", "b", until=2.0)
    assert not any(net.arrivals("a", "b", 2.5) for _ in range(50))
    assert any(net.arrivals("b", "a", 2.5) for _ in range(50))
    assert any(net.arrivals("a", "b", 3.0) for _ in range(50))
    net.cut("a", "b", until=9.0)
    net.heal()
    assert all(len(net.arrivals("a", "b", 4.0)) == 1 for _ in range(50))
