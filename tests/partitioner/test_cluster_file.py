"""Clusters as TOML files: what is written reads back, and a mistake gets one sentence."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.layers import Dense, Network
from partita.partitioner import (
    Between,
    Cluster,
    KernelTimes,
    Link,
    Machine,
    MessageTimes,
    Products,
    RowSplit,
    partition,
)
from partita.partitioner.cluster.kernel_times import Timed
from partita.partitioner.cluster.measured_files import TIMES_VERSION as VERSION
from partita.partitioner.cluster.products import RULES
from partita.partitioner.text import BYTES, BYTES_PER_S, SECONDS, parse_quantity, quantity
from tests.plans import tables as link_tables

positive = st.floats(1e-12, 1e15)
words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)
links = st.one_of(
    st.builds(Link, positive, positive, st.booleans(), positive, positive, positive, positive),
    st.builds(lambda latency_s, table: Link(latency_s, table=table), positive, link_tables()),
)
tables = st.sampled_from(
    [None, KernelTimes({"up Dense 1 <- 1; | 3 by 4": Timed(1e-3, 2e-3)}), KernelTimes({})]
)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Machines of a few kinds on a few hosts, with any numbers."""
    kinds = draw(st.lists(words, min_size=1, max_size=3, unique=True))
    hosts = ["", *draw(st.lists(words, max_size=2))]
    machines: list[Machine] = []
    for base in draw(st.lists(words, min_size=1, max_size=3, unique=True)):
        one = Machine(
            base,
            threads=draw(st.integers(1, 64)),
            memory_bytes=draw(st.none() | st.integers(1, 1 << 40)),
            device=draw(st.sampled_from(["cpu", "cuda:1"])),
            host=draw(st.sampled_from(hosts)),
            kind=draw(st.sampled_from(kinds)),
            speed=draw(positive),
            instruction_s=draw(positive),
            times=draw(tables),
        )
        machines += [Machine(**{**vars(one), "name": f"{base}{n}"}) for n in range(draw(st.integers(1, 3)))]
    machines = list({machine.name: machine for machine in machines}.values())
    sites = sorted({machine.site for machine in machines})
    between = [Between(a, b, draw(links), one_way=draw(st.booleans())) for a, b in pairwise(sites)]
    return Cluster(tuple(machines), draw(links), tuple(between), draw(links))


@given(clusters())
def test_what_is_written_reads_back(tmp_path_factory: pytest.TempPathFactory, cluster: Cluster) -> None:
    path = tmp_path_factory.mktemp("cluster") / "cluster.toml"
    found = Cluster.read(cluster.write(path))
    assert found == cluster
    for one, other in zip(found.machines, cluster.machines, strict=True):
        assert (one.times is None) == (other.times is None)
        assert one.times is None or other.times is None or one.times.table == other.times.table


@given(st.floats(0, 1e18), st.sampled_from([SECONDS, BYTES, BYTES_PER_S]))
def test_quantities_read_back(number: float, units: dict[str, float]) -> None:
    assert parse_quantity(quantity(number, units), units) == number


def test_quantities_are_readable() -> None:
    assert quantity(64 << 30, BYTES) == "64 GiB"
    assert quantity(1.25e9, BYTES_PER_S) == "10 Gbit/s"
    assert quantity(5e-5, SECONDS) == "50 us"
    assert [quantity(2.6718e-4, SECONDS, digits=3), quantity(0, SECONDS, digits=3)] == ["267 us", "0 s"]


GOOD = """
[[machine]]
name = "fast"
cores = 8
memory = "64 GiB"
kind = "new"

[[machine]]
name = "slow"
count = 3
threads = 2
memory = "unlimited"
speed = 0.5
host = "attic"

[link]
latency = "50 us"
bandwidth = "10 Gbit/s"

[[between]]
hosts = ["new", "attic"]
latency = "1 ms"
bandwidth = "100 Mbit/s"
both_ways = false

[shared_memory]
latency = "20 us"
bandwidth = "8 GB/s"
"""


def read(tmp_path: Path, text: str) -> Cluster:
    path = tmp_path / "cluster.toml"
    path.write_text(text, encoding="utf-8")
    return Cluster.read(path)


def test_a_file_as_people_write_it(tmp_path: Path) -> None:
    cluster = read(tmp_path, GOOD)
    assert cluster.machines == (
        Machine("fast", threads=8, cores=8, memory_bytes=64 << 30, kind="new"),
        *(Machine(f"slow{n}", threads=2, speed=0.5, host="attic") for n in range(3)),
    )
    assert cluster.link == Link(50e-6, 1.25e9)
    assert cluster.link_between(1, 3) == Link(20e-6, 8e9)
    assert cluster.link_between(0, 2) == cluster.link_between(2, 0) == Link(1e-3, 12.5e6, both_ways=False)


def test_a_link_of_hosts_counts_before_one_of_kinds() -> None:
    machines = tuple(Machine(name, kind="k") for name in "abc")
    slow, fast = Link(1e-2, 1e6), Link(1e-5, 1e9)
    cluster = Cluster(machines, None, (Between("k", "k", slow), Between("a", "b", fast)))
    assert cluster.link_between(1, 0) == fast
    assert cluster.link_between(0, 2) == slow


MESSAGES = """
latency = "40 us"
messages = [                 # size; sender, link, receiver
    ["64 B", "10 us", "0 s", "20 us"],
    ["1 MiB", "110 us", "852 us", "220 us"],
]
"""


def test_a_link_may_be_a_table_of_messages_by_size(tmp_path: Path) -> None:
    text = GOOD.replace('\nlatency = "50 us"\nbandwidth = "10 Gbit/s"\n', MESSAGES, 1)
    table = MessageTimes(64, 10e-6, 0.0, 20e-6), MessageTimes(1 << 20, 110e-6, 852e-6, 220e-6)
    cluster = read(tmp_path, text)
    assert cluster.link == Link(40e-6, table=table)
    written = cluster.write(tmp_path / "again.toml").read_text()
    assert '    ["1 MiB", "110 us", "852 us", "220 us"],\n' in written


def test_a_link_may_lead_one_way(tmp_path: Path) -> None:
    back = '[[between]]\nhosts = ["attic", "new"]\none_way = true\nlatency = "2 ms"\nbandwidth = "1 MB/s"\n'
    cluster = read(tmp_path, GOOD + back)
    assert cluster.link_between(0, 2) == Link(1e-3, 12.5e6, both_ways=False)
    assert cluster.link_between(2, 0) == Link(2e-3, 1e6)


def test_products_of_machines_that_are_otherwise_alike_are_kept_apart(tmp_path: Path) -> None:
    machines = tuple(Machine(f"m{n}", products=Products(rule)) for n, rule in enumerate(RULES))
    found = Cluster.read(Cluster(machines).write(tmp_path / "cluster.toml"))
    assert [m.products and m.products.rule for m in found.machines] == list(RULES)


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ('"fast"', "the link: the messages are 'fast'; write a list of rows like [\"64 KiB\""),
        ('[["64 B", "1 us"]]', "the link: a message is ['64 B', '1 us']; write the size and the times of"),
        ('[["64 B", "1", "1 us", "1 us"]]', "write a number and one of"),
        ('[["64 B", "1 us", "1 us", "1 us"]]', "the table of a link has 1 sizes of messages; give the times"),
        (
            '[["64 B", "1 us", "1 us", "1 us"], ["64 B", "1 us", "1 us", "1 us"]]',
            "the table of a link has 64 bytes after 64; order it by size",
        ),
        (
            '[["64 B", "1 us", "1 us", "1 us"], ["1 KiB", "1 us", "0 s", "1 us"]]',
            "1024 bytes take less time than 64; times must not decrease",
        ),
        ('[]\nsend = "1 us"', "the link has messages and send, which follows from them; leave one out"),
    ],
)
def test_a_mistake_in_a_table_of_messages_gets_one_sentence(tmp_path: Path, rows: str, sentence: str) -> None:
    text = GOOD.replace('bandwidth = "10 Gbit/s"', f"messages = {rows}", 1)
    with pytest.raises(ValueError, match=re.escape(sentence)) as caught:
        read(tmp_path, text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        ("cores", "chores", "machine 'fast' has the unknown key 'chores'; known are name, count, memory"),
        ("[link]", "[lynx]", "the file has the unknown key 'lynx'; known are machine, link"),
        (
            'latency = "1 ms"',
            'delay = "1 ms"',
            "the link between 'new' and 'attic' has the unknown key 'delay'",
        ),
        ('memory = "64 GiB"', "", "machine 'fast' has no memory; write for example memory = \"64 GiB\", or"),
        ('"64 GiB"', '"0 B"', "machine 'fast': the memory in bytes is 0; write a whole number of at least 1"),
        ('"64 GiB"', '"64 Gigs"', "machine 'fast': the memory is '64 Gigs'; write a number and one of B, kB"),
        ('"64 GiB"', "64", "machine 'fast': the memory is 64; write a number and one of B, kB"),
        ("cores = 8", "cores = 0", "machine 'fast': the number of threads is 0; write a whole number"),
        ("count = 3", "count = 0", "machine 'slow': the count is 0; write a whole number of at least 1"),
        ("speed = 0.5", "speed = -1", "machine 'slow': the speed is -1; write a finite number of more than"),
        ('name = "fast"', "", 'a machine has the name None; write for example name = "worker"'),
        ('name = "fast"', 'name = "slow0"', "the machines of a cluster are named slow0, slow0, slow1, slow2"),
        ('latency = "50 us"', "", 'the link has no latency; write for example latency = "50 us"'),
        ('["new", "attic"]', '["new"]', 'a link is between [\'new\']; write for example hosts = ["a", "b"]'),
        ('["new", "attic"]', '["new", "cellar"]', "a link leads to 'cellar', but no machine has this host"),
        ('[[machine]]\nname = "slow"', '[machine]\nname = "slow"', "is not TOML: "),
        (
            "[link]",
            "[[link]]",
            "link is [{'latency': '50 us', 'bandwidth': '10 Gbit/s'}]; write it as a table",
        ),
        (
            "[[between]]",
            "[between]",
            "[between] is one table; write [[between]], because there may be several",
        ),
    ],
)
def test_a_mistake_gets_one_sentence(tmp_path: Path, before: str, after: str, sentence: str) -> None:
    assert before in GOOD
    with pytest.raises(ValueError, match=re.escape(sentence)) as caught:
        read(tmp_path, GOOD.replace(before, after, 1))
    assert str(caught.value).startswith(f"{tmp_path / 'cluster.toml'}") and "\n" not in str(caught.value)


def test_a_link_that_is_missing_is_reported(tmp_path: Path) -> None:
    machines = "".join(f'[[machine]]\nname = "{name}"\nmemory = "1 GiB"\n' for name in "abc")
    between = '[[between]]\nhosts = ["a", "b"]\nlatency = "1 ms"\nbandwidth = "1 Gbit/s"\n'
    with pytest.raises(ValueError, match="there is no link between 'a' and 'c'; give one between these two"):
        read(tmp_path, machines + between)


def test_times_of_another_version_are_reported(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text('{"version": 99, "seconds": {}}')
    machine = '[[machine]]\nname = "a"\nmemory = "1 GiB"\ntimes = "t.json"\n'
    message = (
        f"t.json holds times of kernels in version 99, and this Partita reads version {VERSION}; calibrate"
    )
    with pytest.raises(ValueError, match=message):
        read(tmp_path, machine)
    (tmp_path / "t.json").write_text(f'{{"version": {VERSION}, "seconds": {{"up": [-1, 0]}}}}')
    with pytest.raises(ValueError, match=re.escape("holds no times of kernels ('up' takes [-1, 0] seconds)")):
        read(tmp_path, machine)


def test_more_machines_than_nodes_are_reported(tmp_path: Path) -> None:
    net = Network("two_nodes")
    Dense(2, name="small")(net.input("x", shape=3))
    with pytest.raises(
        ValueError, match="has 2 nodes and cannot be cut into 4 pieces; cut it into at most 2"
    ):
        partition(net, read(tmp_path, GOOD), batch=2, cuts={"small": RowSplit(4)})
    for strategy, used in (("automatic", 1), ("balanced", 2), ("layers", 1)):
        plan = partition(net, read(tmp_path, GOOD), batch=2, strategy=strategy)
        empty = [m.name for n, m in enumerate(plan.cluster.machines) if not plan.ownership.of_machine(n)]
        assert len(empty) == 4 - used
        assert f"left empty (too few nodes, or no shorter step with them): {', '.join(empty)}\n" in str(plan)
