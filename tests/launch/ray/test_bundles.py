"""What hosts need in Ray's words, and whether nodes have it: without Ray."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from partita.engine import Downpour, Ray, RunFailed, train
from partita.engine.launch.on import OnOptions, on_of
from partita.engine.launch.pool.needs import needs_of
from partita.engine.launch.ray.bundles import Bundle, Strategy, bundles_of, can_hold, explained, offered
from partita.engine.launch.ray.connection import connected
from partita.engine.protocol.names import Topology
from partita.engine.protocol.pool.messages import Need
from partita.engine.protocol.pool.placement import Offer, place
from partita.engine.protocol.pool.resources import Resources
from partita.partitioner import Cluster, partition
from tests.faults import toy

GIB = float(1 << 30)


@st.composite
def drawn_needs(draw: st.DrawFn) -> list[Need]:
    """The needs of replicas with parts on several hosts, and of shards."""
    hosts = draw(st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=3), min_size=1, max_size=3))
    replicas, shards = draw(st.integers(1, 3)), draw(st.integers(0, 4))
    found = []
    for replica in range(replicas):
        cores = [(number, cpu) for number, host in enumerate(hosts) for cpu in host]
        for part, (number, cpu) in enumerate(cores):
            resources = Resources(cpu=cpu, gpu=int(cpu == 0), memory=1 << 20)
            found.append(
                Need(host=f"part {replica}.{part}", resources=resources, group=f"{replica} {number}")
            )
    held = Resources(memory=1 << 10)
    return found + [
        Need(host=f"shard {n}", resources=held, group="shards", spread=True) for n in range(shards)
    ]


@given(drawn_needs(), st.booleans())
def test_a_worker_in_each_bundle_has_places_for_all_hosts(needs: list[Need], one_machine: bool) -> None:
    bundles = bundles_of(needs)
    assert len(bundles) == len({need.group for need in needs if not need.spread})
    machine = Resources(cpu=64, gpu=8, memory=1 << 30)
    offers = [
        Offer(str(n), f"bundle {n}", "" if one_machine else str(n), has := offered(one, machine), has)
        for n, one in enumerate(bundles)
    ]
    assert not place(needs, {}, offers).missing
    reserved = sum(one.get("memory", 0.0) for one in bundles)
    assert reserved == sum(need.resources.memory for need in needs)


def test_a_plan_on_two_hosts_has_two_bundles_for_each_replica() -> None:
    plan = partition(toy.network(), Cluster.local(machines=2, threads=3), batch=8, strategy="balanced")
    bundles = bundles_of(needs_of(plan, Topology(2, 2, 1)))
    assert [one["CPU"] for one in bundles] == [6.0] * 2  # both machines of the plan are on one host
    assert bundles[0]["memory"] > bundles[1]["memory"] > 0  # the shard's is in the first


def test_a_fraction_of_a_device_is_offered_as_one() -> None:
    found = offered({"CPU": 0.5, "GPU": 0.25, "odd": 1.0}, Resources(memory=7))
    assert found == Resources(cpu=1, gpu=1, memory=7)


def by_trying(nodes: Sequence[Bundle], bundles: Sequence[Bundle], strategy: Strategy) -> bool:
    """What `can_hold` has to find, by trying every placement."""
    for placed in product(range(len(nodes)), repeat=len(bundles)):
        used = len(set(placed))
        if (strategy == "STRICT_PACK" and used > 1) or (strategy == "STRICT_SPREAD" and used < len(placed)):
            continue
        if all(
            sum(one.get(name, 0.0) for one, at in zip(bundles, placed, strict=True) if at == number)
            <= node.get(name, 0.0)
            for number, node in enumerate(nodes)
            for name in ("CPU", "odd")
        ):
            return True
    return False


amounts = st.fixed_dictionaries({"CPU": st.integers(0, 4).map(float)}, optional={"odd": st.just(1.0)})


@example([{"CPU": 0.0}], [{"CPU": 0.0}, {"CPU": 0.0}], "STRICT_SPREAD")
@given(
    st.lists(amounts, max_size=3),
    st.lists(amounts, min_size=1, max_size=4),
    st.sampled_from(["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"]),
)
def test_what_nodes_can_hold_is_found_as_by_trying(
    nodes: list[Bundle], bundles: list[Bundle], strategy: Strategy
) -> None:
    assert can_hold(nodes, bundles, strategy) == by_trying(nodes, bundles, strategy)


def test_a_search_that_would_take_long_says_that_nodes_may_hold_all() -> None:
    nodes = [{"CPU": 100.0 + n / 8} for n in range(12)]
    bundles = [{"CPU": 51.0 + n / 16} for n in range(13)]  # no two fit into one node
    assert can_hold(nodes, bundles, "PACK")
    assert not can_hold(nodes[:2], bundles[:3], "PACK")


def test_need_and_have_are_worded_for_each_node() -> None:
    nodes = {
        "10.0.0.2": {"CPU": 2.0, "memory": 3 * GIB, "object_store_memory": GIB},
        "10.0.0.3": {"CPU": 8.0},
    }
    assert explained(nodes, [{"CPU": 4.0, "memory": GIB}] * 2 + [{"odd": 1.0}]) == (
        "needs 2 x (CPU 4, memory 1 GiB), 1 x (odd 1); 10.0.0.2 has CPU 2, memory 3 GiB, odd 0; "
        "10.0.0.3 has CPU 8, memory 0, odd 0"
    )
    assert explained({}, [{"CPU": 1.0}]) == "needs 1 x (CPU 1); there is no node"


def test_a_text_may_name_the_strategy() -> None:
    assert on_of("ray") == Ray() == on_of("ray", OnOptions())
    assert on_of("ray:STRICT_SPREAD") == Ray(strategy="STRICT_SPREAD")
    with pytest.raises(ValueError, match="Ray's strategy is 'SCATTER'; give one of 'PACK'"):
        on_of("ray:SCATTER")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"spare": -1}, "Ray's spare is -1; write a whole number of at least 0"),
        ({"wait_s": 0}, "Ray's wait_s is 0; give seconds above 0"),
        ({"bundles": []}, "Ray's bundles are empty"),
        ({"bundles": [{"CPU": 0}]}, r"{'CPU': 0} is no bundle; give amounts in Ray's words"),
        ({"bundles": [{"CPU": "2"}]}, r"{'CPU': '2'} is no bundle"),
        ({"bundles": [2]}, "2 is no bundle"),
    ],
)
def test_settings_that_mean_nothing_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Ray(**arguments)  # type: ignore[arg-type]


def test_without_ray_the_command_that_installs_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    plan = partition(toy.network(), Cluster.local(machines=1), batch=8)
    with pytest.raises(ImportError, match=r"ray.* need it; run: pip install 'partita\[ray\]'"):
        train(plan, toy.data(), driver=Downpour(), epochs=1, on="ray", show="nothing")


class NotConnected:
    """Stands where Ray's module is, up to a connection that is refused."""

    is_initialized = shutdown = staticmethod(lambda: False)

    @staticmethod
    def init(**_: object) -> None:
        cause = RuntimeError("ray.exceptions.AuthenticationError: RPC error: InvalidAuthToken")
        raise ConnectionError("Failed to connect") from cause


def test_a_cluster_that_wants_its_token_is_named_with_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", NotConnected)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    wanted = (
        "the Ray cluster at this machine wants its token: set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH"
    )
    with pytest.raises(RunFailed, match=wanted), connected(None, print):
        pass


def test_an_address_where_nothing_listens_is_named_with_the_next_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ray", NotConnected)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    said = "there is no Ray cluster at 127.0.0.1:1: nothing listens at this port; .* RAY_ADDRESS is right"
    with pytest.raises(RunFailed, match=said), connected(None, print):
        pass
    with pytest.raises(RunFailed, match=r"the address is right"), connected("ray://127.0.0.1:1", print):
        pass
