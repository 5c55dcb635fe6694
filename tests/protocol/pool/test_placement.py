"""Placement: nothing is taken twice, places are kept, groups stay together, refusals say need and have."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.engine.protocol.pool.messages import Need
from partita.engine.protocol.pool.placement import Offer, explained, place
from partita.engine.protocol.pool.resources import Resources

GIB = 1 << 30


def offer(name: str, cpu: int, *, machine: str = "", free: int | None = None, gpu: int = 0) -> Offer:
    total = Resources(cpu=cpu, gpu=gpu, memory=8 * GIB)
    left = total if free is None else Resources(cpu=free, gpu=gpu, memory=8 * GIB)
    return Offer(name, name, machine or name, left, total)


def part(replica: int, machine: int, cpu: int = 1, *, gpu: int = 0) -> Need:
    needs = Resources(cpu=cpu, gpu=gpu, memory=GIB)
    return Need(host=f"part {replica}.{machine}", resources=needs, group=f"replica {replica}")


def shard(number: int) -> Need:
    return Need(host=f"shard {number}", resources=Resources(memory=1), group="shards", spread=True)


def test_the_parts_of_a_replica_go_to_one_machine_and_shards_to_all() -> None:
    needs = [part(0, 0), part(0, 1), part(1, 0), part(1, 1), shard(0), shard(1)]
    placed = place(needs, {}, [offer("a", 2), offer("b", 2)])
    assert not placed.missing
    assert placed.seats["part 0.0"] == placed.seats["part 0.1"] != placed.seats["part 1.0"]
    assert {placed.seats["shard 0"], placed.seats["shard 1"]} == {"a", "b"}


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_a_backup_goes_to_another_machine_than_its_shard_also_when_one_is_placed_again(shards: int) -> None:
    backups = [msgspec.structs.replace(shard(n), host=f"backup {n}", group="backups") for n in range(shards)]
    needs = [*map(shard, range(shards)), *backups]
    offers = [offer("a", 64), offer("b", 2, machine="two"), offer("c", 2, machine="two")]
    machine = {one.session: one.machine for one in offers}
    seats = dict(place(needs, {}, offers).seats)
    for lost in ("", "shard 0", "backup 0"):
        kept = {host: session for host, session in seats.items() if host != lost}
        seats = dict(place(needs, kept, offers).seats)
        for n in range(shards):
            assert machine[seats[f"shard {n}"]] != machine[seats[f"backup {n}"]], seats
    alone = place(needs, {}, offers[:1])
    assert not alone.missing, "beside each other where there is no other machine"


def test_workers_of_one_machine_count_as_near() -> None:
    offers = [offer("a", 1, machine="one"), offer("b", 1, machine="two"), offer("c", 1, machine="two")]
    placed = place([part(0, 0), part(0, 1)], {}, offers)
    assert set(placed.seats.values()) == {"b", "c"}


def test_the_smallest_machine_that_fits_is_taken() -> None:
    placed = place([part(0, 0, 2)], {}, [offer("large", 8), offer("small", 2)])
    assert placed.seats == {"part 0.0": "small"}


def test_a_graphics_processor_is_found() -> None:
    placed = place([part(0, 0, 0, gpu=1)], {}, [offer("a", 64), offer("b", 1, gpu=1)])
    assert placed.seats == {"part 0.0": "b"}


def test_a_refusal_says_need_and_have_of_every_worker() -> None:
    offers = [offer("a", 2, free=1), offer("b", 2)]
    text = explained(place([part(0, 0, 4), part(0, 1, 1)], {}, offers), offers)
    assert text == (
        "part 0.0 needs cpu 4, memory 1 GiB; a has cpu 1, memory 8 GiB free of cpu 2, memory 8 GiB; "
        "b has cpu 2, memory 8 GiB free of cpu 2, memory 8 GiB"
    )
    assert "no worker has joined" in explained(place([part(0, 0)], {}, []), [])


def test_places_are_kept_and_lost_ones_are_given_anew() -> None:
    needs = [part(0, 0), part(0, 1)]
    placed = place(needs, {"part 0.0": "gone", "part 0.1": "b"}, [offer("a", 1), offer("b", 1, free=0)])
    assert placed.seats == {"part 0.0": "a", "part 0.1": "b"}


def planned(replica: int, machine: int, *workers: str, cpu: int = 1) -> Need:
    """A part whose machine in the plan stands for a worker."""
    need = part(replica, machine, cpu)
    return msgspec.structs.replace(need, workers=workers, strict=replica == 0)


def test_parts_go_to_the_workers_that_the_plan_names() -> None:
    needs = [part(1, 0), shard(0), planned(0, 0, "c"), planned(0, 1, "a")]
    placed = place(needs, {}, [offer("a", 1), offer("b", 1), offer("c", 1)])
    assert not placed.missing
    assert (placed.seats["part 0.0"], placed.seats["part 0.1"], placed.seats["part 1.0"]) == ("c", "a", "b")


def test_another_replica_goes_to_the_next_worker_that_has_room() -> None:
    needs = [planned(0, 0, "a", "b"), planned(1, 0, "a", "c", "b"), planned(2, 0, "a", "c", "b")]
    placed = place(needs, {}, [offer("a", 1), offer("b", 1), offer("c", 1), offer("d", 9)])
    assert placed.seats == {"part 0.0": "a", "part 1.0": "c", "part 2.0": "b"}


def test_a_named_worker_that_is_not_there_is_refused_at_first_and_replaced_later() -> None:
    offers = [offer("a", 1), offer("c", 4)]
    needs = [planned(0, 0, "a"), planned(0, 1, "b", "c")]
    placed = place(needs, {}, offers)
    assert [need.host for need in placed.missing] == ["part 0.1"]
    assert explained(placed, offers) == (
        "part 0.1 needs cpu 1, memory 1 GiB at worker 'b', for which the plan was made, and which has not "
        "joined; there are a, c; start it with --name, or plan without its name"
    )
    later = place(needs, {"part 0.0": "a"}, offers)
    assert not later.missing and later.seats["part 0.1"] == "c"


def test_a_named_worker_without_room_is_reported_alone() -> None:
    offers = [offer("a", 2, free=1), offer("c", 4)]
    text = explained(place([planned(0, 0, "a", cpu=2)], {}, offers), offers)
    assert text == (
        "part 0.0 needs cpu 2, memory 1 GiB at worker 'a', for which the plan was made; "
        "a has cpu 1, memory 8 GiB free of cpu 2, memory 8 GiB"
    )


@given(
    cpus=st.lists(st.integers(0, 4), max_size=6),
    machines=st.lists(st.sampled_from("xyz"), min_size=6, max_size=6),
    parts=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=8),
    shards=st.integers(0, 4),
    named=st.sampled_from([(), ("w0",), ("w3", "w0", "w9")]),
)
def test_nothing_is_taken_twice(
    cpus: list[int], machines: list[str], parts: list[tuple[int, int]], shards: int, named: tuple[str, ...]
) -> None:
    offers = [offer(f"w{n}", cpu, machine=machines[n]) for n, cpu in enumerate(cpus)]
    needs = [part(r, n, cpu) for n, (r, cpu) in enumerate(parts)] + [shard(n) for n in range(shards)]
    needs = [msgspec.structs.replace(need, workers=named) for need in needs]
    placed = place(needs, {}, offers)
    assert placed == place(needs, {}, list(reversed(offers))), "the order of the workers decides nothing"
    by_host = {need.host: need for need in needs}
    assert placed.seats.keys() | {need.host for need in placed.missing} == by_host.keys()
    taken: Counter[str] = Counter()
    for host, session in placed.seats.items():
        taken[session] += by_host[host].resources.cpu
    assert all(taken[one.session] <= one.total.cpu for one in offers)
    for need in placed.missing:  # whatever is left over does not fit
        assert all(one.total.cpu - taken[one.session] < need.resources.cpu for one in offers)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("cpu=8,gpu=1,memory=32GiB", Resources(cpu=8, gpu=1, memory=32 * GIB)),
        (" memory=1.5GiB , cpu=2", Resources(cpu=2, memory=3 * GIB // 2)),
        ("memory=2GB", Resources(cpu=3, memory=2 * 10**9)),
        ("", Resources(cpu=3, memory=5)),
    ],
)
def test_resources_are_read(text: str, found: Resources) -> None:
    default = Resources(cpu=3, memory=5)
    assert Resources.parse(text, default) == Resources(
        cpu=found.cpu or 3, gpu=found.gpu, memory=found.memory or 5
    )


@pytest.mark.parametrize("text", ["cpu", "cpu=", "cpu=-1", "cpu=1.5", "disk=3", "cpu=2GiB", "memory=3 bytes"])
def test_what_is_no_resource_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a resource|is not an amount"):
        Resources.parse(text)
