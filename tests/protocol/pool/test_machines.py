"""Registry, workers and clients on a network that loses, delays and doubles: drawn by Hypothesis.

Processes start and end at once or late, workers die and come, the registry is started again, runs begin and
end. Whatever happens, no incarnation of a host runs twice, no worker runs more than it has, and when the
network is whole again every run has all of its hosts. A run is refused only if the workers of the last
seconds could not take it. Planted faults show that these checks find what they are for.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from partita.engine.protocol.pool import client_events as c
from partita.engine.protocol.pool import messages as m
from partita.engine.protocol.pool import registry_events as r
from partita.engine.protocol.pool import worker_events as w
from partita.engine.protocol.pool.members import Members
from partita.engine.protocol.pool.registry import RegistryMachine
from partita.engine.protocol.pool.resources import Resources
from partita.engine.protocol.pool.worker import CLIENT_DEAD_S
from tests.protocol.pool.world import KINDS, VERSIONS, Deaf, World, drawn, play

EVENTS = st.sampled_from(KINDS)


@given(
    seed=st.integers(0, 2**32),
    faults=st.sampled_from((0.0, 0.1, 0.4)),
    script=st.lists(st.tuples(st.floats(0.1, 8.0), EVENTS), max_size=12),
)
@example(0, 0.4, [(0.75, "begin"), (0.25, "restart registry"), (1.0, "kill worker")])
@example(47100, 0.4, [(4.7, "add worker"), (6.4, "begin"), (6.3, "kill worker"), (4.5, "kill worker")])
def test_when_the_network_is_whole_again_every_run_has_its_hosts(
    seed: int, faults: float, script: list[tuple[float, str]]
) -> None:
    play(World(seed, faults), script)


def unreported_workers_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry that was started again does not wait until workers have named their runs."""
    whole = Members.reserved

    def reserved(self: Members, session: str, *, of: str = "") -> str:
        why = whole(self, session, of=of)
        return "" if why.startswith("has not reported") else why

    monkeypatch.setattr(Members, "reserved", reserved)


def held_workers_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts of a run that ends, or has not claimed its places yet, do not count."""
    monkeypatch.setattr(Members, "reserved", lambda self, session, *, of="": "")


def claims_are_entered_blindly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A place that an earlier registry gave is entered although another run has got it since."""
    monkeypatch.setattr(Members, "_may_claim", lambda self, run, session, need: True)


@pytest.mark.parametrize(
    ("plant", "seed", "found"),
    [
        (unreported_workers_are_free, 99, "more runs at a worker than it has"),
        (held_workers_are_free, 99, "more runs at a worker than it has"),
        (claims_are_entered_blindly, 9, "machine"),
    ],
)
def test_planted_faults_are_found(
    monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None], seed: int, found: str
) -> None:
    play(*drawn(seed))
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=found):
        play(*drawn(seed))


def test_an_answer_from_before_a_loss_gives_no_place_at_the_lost_worker() -> None:
    """The registry still knows a worker of a killed machine when its client has given it up."""
    world = World(0)
    world.add_worker("x", 2)
    world.add_worker("y", 2)
    world.begin("run", 2)
    world.run_for(3.0)
    [lost] = {session for session, *_ in world.processes}
    world.kill_worker(lost)
    world.run_for(4.0)
    for name in list(world.wanted["run"]):  # its coordinator misses them
        world.want("run", name, 1)
    world.run_for(3.0)
    world.assert_all_run("run")
    assert {session for session, *_ in world.processes} == {"x", "y"} - {lost}
    assert all(incarnation == 2 for incarnation in world.wanted["run"].values()), "they were lost once"


def test_a_worker_that_is_silent_for_a_while_keeps_its_hosts() -> None:
    """Its hosts run on, so it is given up later than one whose host is missed; both sides name it."""
    world = World(0)
    world.add_worker("x", 2)
    world.begin("run", 2)
    world.run_for(3.0)
    stopped = world.workers.pop("x")
    world.run_for(6.0)
    assert any("worker 'machine' is silent for" in line for line in world.log), world.log
    world.workers["x"] = stopped
    world.run_for(3.0)
    world.assert_all_run("run")
    assert all(incarnation == 0 for incarnation in world.wanted["run"].values())
    assert any("worker 'machine' answers again, after" in line for line in world.log), world.log


@pytest.mark.parametrize("is_cut", [True, False])
def test_a_worker_at_whose_address_nothing_answers_is_given_up_sooner(is_cut: bool) -> None:
    """Its hosts run, as it has said; they have ended with it."""
    world = World(0)
    world.add_worker("x", 2)
    world.begin("run", 2)
    world.run_for(3.0)
    world.kill_worker("x")
    world.add_worker("y", 2)
    if is_cut:
        world.to_client("run", c.Cut("x"))
    world.run_for(5.5)
    assert {session for session, *_ in world.processes} == ({"y"} if is_cut else set())


@pytest.mark.parametrize("seconds", [1.5, 6.0, 30.0])
def test_whoever_was_stopped_itself_gives_up_nobody(seconds: float) -> None:
    """Client and registry are on a machine that was frozen: workers did not fall silent meanwhile."""
    world = World(0)
    world.add_worker("x", 2)
    world.begin("run", 2)
    world.run_for(3.0)
    client = world.clients.pop("run")
    registry, world.registry = world.registry, Deaf(VERSIONS, identity="frozen")
    stays = seconds < CLIENT_DEAD_S
    world.run_for(seconds)
    world.clients["run"], world.registry = client, registry
    world.run_for(0.15)
    assert world.registry.workers == ("machine",) and set(client.workers) == {"x"}
    world.run_for(5.0)
    assert (world.wanted["run"] == {"part 0.0": 0, "part 0.1": 0}) == stays, "20 s are long for a worker"
    world.assert_all_run("run")


def test_workers_and_runs_name_a_registry_that_was_started_again_and_one_that_is_away() -> None:
    world = World(0)
    world.add_worker("x", 2)
    world.begin("run", 2)
    world.run_for(3.0)
    world.restart_registry()
    world.run_for(10.0)
    again = [line for line in world.log if "the registry of the pool was started again" in line]
    assert sorted(line.split(":")[0] for line in again) == ["run", "x"], world.log
    world.registry = Deaf(VERSIONS, identity="deaf")
    world.run_for(6.0)
    away = [line for line in world.log if "the pool does not answer since" in line]
    assert sorted(line.split(":")[0] for line in away) == ["run", "x"], world.log


def test_a_worker_outlives_a_run_and_serves_the_next() -> None:
    world = World(0)
    world.add_worker("x", 2)
    for run in ("first", "second"):
        world.begin(run, 2)
        world.run_for(3.0)
        world.assert_all_run(run)
        world.end_run(run)
        world.run_for(1.0)
        assert not world.processes and "x" in world.workers


def test_runs_wait_for_one_another() -> None:
    world = World(0)
    world.add_worker("x", 2)
    world.begin("first", 2)
    world.run_for(3.0)
    world.begin("second", 2)
    world.run_for(3.0)
    assert not world.clients["second"].is_placed and not world.failed
    world.end_run("first")
    world.run_for(3.0)
    world.assert_all_run("second")


@pytest.mark.parametrize("registry", ["lives", "is started again"])
@pytest.mark.parametrize("hosts", [2, 1])
def test_a_process_that_goes_on_with_a_run_has_its_places_at_once(registry: str, hosts: int) -> None:
    """Another run waits for them meanwhile, and does not get them; the hosts of the dead process end."""
    world = World(0)
    world.add_worker("x", 2)
    world.begin("first", 2)
    world.run_for(3.0)
    world.begin("second", 2)
    world.run_for(2.0)
    world.go_on("first", "again", hosts=hosts)
    if registry != "lives":
        world.restart_registry()
    world.run_for(2.5)
    world.assert_all_run("again")
    assert {run for _, run, _, _ in world.processes} == {"again"}
    assert any(line.endswith("is over: a new process goes on with it") for line in world.log), world.log


def test_a_process_whose_run_goes_on_in_another_one_is_refused() -> None:
    """It was frozen, and its folder's lock failed."""
    world = World(0)
    world.add_worker("x", 2)
    world.begin("first", 2)
    world.run_for(3.0)
    frozen = world.clients["first"]
    world.go_on("first", "again")
    world.run_for(3.0)
    world.clients["first"] = frozen
    world.run_for(3.0)
    assert world.failed["first"] == "the pool refuses this run: another process goes on with this run"
    world.assert_all_run("again")


@pytest.mark.parametrize("registry", ["lives", "is started again"])
def test_nobody_takes_over_the_places_of_another_owners_run(registry: str) -> None:
    world = World(0)
    world.add_worker("x", 2)
    world.begin("first", 2)
    world.run_for(3.0)
    world.owners["thief"] = "somebody else"
    if registry != "lives":
        world.restart_registry()
    world.begin("thief", 2, earlier=("first",))
    world.run_for(5.0)
    world.assert_all_run("first")
    assert {run for _, run, _, _ in world.processes} == {"first"}


def test_a_run_that_can_never_be_placed_is_refused_within_five_seconds() -> None:
    world = World(0)
    world.add_worker("x", 2)
    world.run_for(1.0)
    world.begin("large", 2, cpu=3)
    world.run_for(5.0)
    assert world.failed["large"] == (
        "the pool cannot place this run: part 0.1 (and 1 more) needs cpu 3; machine has cpu 2 free of cpu 2"
    )


def test_a_run_begins_at_the_workers_of_its_plan_and_goes_on_without_them() -> None:
    world = World(0)
    for session in ("x", "y", "z"):
        world.add_worker(session, 2)
        world.run_for(1.0)
    world.begin("run", 2, named=["machine-3", "machine-2"])
    world.run_for(3.0)
    world.assert_all_run("run")
    assert {name: session for session, _, name, _ in world.processes} == {"part 0.0": "z", "part 0.1": "y"}
    world.kill_worker("y")
    world.run_for(30.0)
    world.assert_all_run("run")
    expected = "part 0.1 is at worker 'machine-3': 'machine-2', of its plan, is gone or has no room"
    assert [line for line in world.log if "of its plan" in line] == [f"run: {expected}"]


def test_a_plan_for_a_worker_that_is_not_there_is_refused_within_five_seconds() -> None:
    world = World(0)
    world.add_worker("x", 2)
    world.run_for(1.0)
    world.begin("run", 1, named=["shelf"])
    world.run_for(5.0)
    assert "at worker 'shelf', for which the plan was made, and which has not joined" in world.failed["run"]


def test_a_run_waits_for_as_many_workers_as_it_says() -> None:
    world = World(0)
    world.add_worker("x", 4)
    world.begin("run", 2, workers=2)
    world.run_for(10.0)
    assert not world.clients["run"].is_placed and not world.failed
    world.add_worker("y", 4)
    world.run_for(3.0)
    world.assert_all_run("run")


def test_another_version_is_refused_by_name_on_both_sides() -> None:
    world = World(0)
    world.add_worker("x", 4, versions=VERSIONS | {"numpy": "1.0.0"})
    world.run_for(2.0)
    said = "its versions do not match the pool's: numpy is 1.0.0 and must be 1.2.3"
    [ours] = [line for line in world.log if line.startswith("worker 'machine'")]
    [theirs] = [line for line in world.log if line.startswith("x: ")]
    assert said in ours and said in theirs
    assert not world.workers, "it has ended"


def test_a_release_that_may_differ_is_reported_and_let_in() -> None:
    world = World(0)
    world.add_worker("x", 4, versions=VERSIONS | {"torch": "1.2.9+cu130"})
    world.run_for(2.0)
    assert world.registry.workers == ("machine",)
    assert any("torch 1.2.9+cu130 beside 1.2.3: last bits may differ" in line for line in world.log)


def test_a_worker_that_the_pool_cannot_reach_is_named_on_both_sides_and_let_in_when_it_can() -> None:
    world = World(0)
    world.unreachable.add("x")
    world.add_worker("x", 4)
    world.run_for(2.0)
    said = f"the pool cannot reach the worker at {world.endpoint('x')} (no answer)"
    assert sum(said in line for line in world.log) == 2, world.log
    assert world.registry.workers == ()
    world.unreachable.clear()
    world.run_for(10.0)
    assert world.registry.workers == ("machine",)


def test_a_drained_worker_finishes_its_run_and_ends() -> None:
    world = World(0)
    world.add_worker("x", 2)
    world.begin("run", 2)
    world.run_for(3.0)
    world.visit("operator", "client", m.Inspect(drain=()))
    world.run_for(3.0)
    world.assert_all_run("run")
    world.end_run("run")
    world.run_for(3.0)
    assert not world.workers


def test_a_worker_without_a_pool_ends_after_its_death_timeout_but_not_during_a_run() -> None:
    world = World(0)
    world.add_worker("x", 2)
    world.begin("run", 2)
    world.run_for(3.0)
    world.faults = 0.0
    world.registry = Deaf(VERSIONS, identity="deaf")
    world.run_for(70.0)
    world.assert_all_run("run")
    world.end_run("run")
    world.run_for(1.0)
    assert not world.workers


@pytest.mark.parametrize(
    ("role", "message"),
    [
        ("client", "Join"),
        ("worker", "Ask"),
        ("worker", "Inspect"),
    ],
)
def test_a_key_has_the_role_that_it_was_authorised_for(role: str, message: str) -> None:
    resources = Resources(cpu=1)
    messages: dict[str, m.PoolMessage] = {
        "Join": m.Join(
            session="s", endpoint="tcp://h:1", name="n", machine="", versions=VERSIONS, resources=resources
        ),
        "Ask": m.Ask(run="r", key="k", title="t", versions=VERSIONS, needs=()),
        "Inspect": m.Inspect(),
    }
    registry = RegistryMachine(VERSIONS, identity="0")
    effects = registry.receive(r.FromVisitor(b"x", "someone", role, messages[message]), 0.0)
    [answer] = [effect for effect in effects if isinstance(effect, r.Answer)]
    assert isinstance(answer.message, m.Rejection) and f"authorised as a {role}" in answer.message.reason


def test_a_stranger_cannot_start_hosts_at_a_worker() -> None:
    world = World(0)
    world.add_worker("x", 2)
    world.begin("run", 1)
    world.run_for(3.0)
    hosts = m.Hosts(
        run="run", number=99, hosts=(m.Wanted(name="part 9.9", incarnation=0, bootstrap=b"code"),)
    )
    world.to_worker("x", w.FromClient(b"other", "another key", hosts))
    world.to_worker(
        "x", w.FromClient(b"other", "key of run", m.Hosts(run="none", number=99, hosts=hosts.hosts))
    )
    world.assert_all_run("run")
    assert "bootstrap" not in repr(hosts) and "code" not in repr(hosts)


def test_a_revoked_worker_is_out() -> None:
    world = World(0)
    world.add_worker("x", 2)
    world.run_for(2.0)
    assert world.registry.workers == ("machine",)
    world.to_registry(r.Revoked(frozenset({"client"})))
    assert world.registry.workers == ()


@given(st.binary(max_size=300))
def test_any_bytes_are_a_message_or_refused(data: bytes) -> None:
    try:
        message = m.decode(data)
    except m.MalformedMessage:
        return
    assert m.decode(m.encode(message)) == message
