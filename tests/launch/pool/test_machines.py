"""Faults across machines: four machines with addresses and files of their own train the digits.

Links are cut for 2, 10 and 60 s, machines are killed, frozen and slow, and the machines of coordinator and
registry fail too. Every test prints what it measured.
"""

from __future__ import annotations

import itertools
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from partita.engine.launch.pool import ask_pool
from partita.engine.protocol.pool.messages import Inspect
from partita.engine.transport import Keyring
from tests.launch.pool import faulty_run
from tests.launch.pool.helpers import Program, new_keys
from tests.machines import Machine, machines

pytestmark = [pytest.mark.netns, pytest.mark.slow, pytest.mark.timeout(900)]

DRIVERS = ("downpour", "all-reduce", "sandblaster")
SAME_BITS = ("all-reduce", "sandblaster")
PORT = 7077
FOLDER = "/tmp/run"
RUN_S = 300.0
"""Limit of a run, on a machine that does much else."""


@dataclass
class Site:
    """Four machines, the pool that the first serves, and a worker on each."""

    machines: list[Machine]
    serve: Program
    keys: Path
    cpu: int
    workers: list[Program] = field(default_factory=list)

    @property
    def address(self) -> str:
        """The pool's."""
        return f"tcp://{self.machines[0].address}:{PORT}"

    def start_workers(self, *those: Machine) -> None:
        """Starts workers, and waits until they have joined."""
        started = []
        for machine in those:
            arguments = (
                "--keys",
                "/tmp/keys",
                "--name",
                f"m{machine.number}",
                "--resources",
                f"cpu={self.cpu}",
            )
            started.append(machine.start("worker", self.address, *arguments))
        self.workers += started
        for one in started:
            one.wait_for("joined the pool as")

    def start_run(self, driver: str, folder: str, *more: str, workers: int = 4) -> Program:
        """Starts a training on the first machine."""
        arguments = (self.address, driver, f"{FOLDER}/{folder}", str(workers), *more)
        return self.machines[0].start_file(Path(faulty_run.__file__), *arguments)

    def machine_of(self, host: str) -> Machine:
        """The machine on which a host runs."""
        return next(one for one in self.machines if host in one.hosts())


@pytest.fixture
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    keys = new_keys(tmp_path / "keys")
    with machines(4) as made:
        for machine in made:
            machine.copy(keys, "/tmp/keys")
        serve = serving(made[0])
        made[0].run("mkdir", FOLDER)
        found = Site(made, serve, keys, getattr(request, "param", 2))
        try:
            found.start_workers(*made)
            yield found
        finally:
            for machine in made:
                machine.kill()
            for program in (found.serve, *found.workers):
                program.__exit__(None, None, None)


def serving(machine: Machine) -> Program:
    serve = machine.start("pool", "serve", f"tcp://{machine.address}:{PORT}", "--keys", "/tmp/keys")
    serve.wait_for("serves a pool at")
    return serve


@dataclass(frozen=True)
class Seen:
    """A record of a run: when, of which replica (-1: of all), and its step."""

    at: float
    replica: int
    step: int


def records(run: Program) -> list[Seen]:
    """The records that a run has printed."""
    found = [line.split() for line in run.said if line.startswith("record ")]
    return [Seen(float(at), -1 if who == "None" else int(who), int(step)) for _, at, who, step in found]


def read_for(run: Program, seconds: float) -> None:
    """Reads a run's lines for so long."""
    until = time.monotonic() + seconds
    while (left_s := until - time.monotonic()) > 0 and run.read(left_s):
        pass


def finished(run: Program) -> dict[str, str]:
    """Waits for a run's end; returns its last facts."""
    until = time.monotonic() + RUN_S
    while run.read(until - time.monotonic()):
        assert time.monotonic() < until, texts(run)
    assert run.end() == 0, texts(run)
    return {line.split()[0]: line.split()[1] for line in run.said if line.startswith(("bits ", "accuracy "))}


def texts(run: Program) -> str:
    """A run's lines but the records."""
    return "\n".join(line for line in run.said if not line.startswith("record "))


def longest_gap(found: list[Seen], replica: int | None, since: float) -> float:
    """The longest time without a record, of one replica or of all, that ends after a moment."""
    times = [one.at for one in found if replica is None or one.replica in (replica, -1)]
    return max((b - a for a, b in itertools.pairwise(times) if b > since), default=0.0)


def printed(text: str) -> None:
    print(f"\n{text}", file=sys.stderr)


_bits: dict[str, str] = {}  # by driver


def reference_bits(site: Site, driver: str) -> str:
    """The digest of the parameters of a run without faults."""
    if driver not in _bits:
        with site.start_run(driver, f"calm-{driver}") as run:
            _bits[driver] = finished(run)["bits"]
    return _bits[driver]


def down_for(seconds: float) -> Callable[[Site, Machine, Program], None]:
    def fault(site: Site, machine: Machine, run: Program) -> None:
        machine.link_down()
        read_for(run, seconds)
        machine.link_up()

    return fault


def killed(site: Site, machine: Machine, run: Program) -> None:
    machine.kill()
    read_for(run, 8.0)
    site.start_workers(machine)


def frozen_for(seconds: float) -> Callable[[Site, Machine, Program], None]:
    def fault(site: Site, machine: Machine, run: Program) -> None:
        machine.freeze()
        read_for(run, seconds)
        machine.thaw()

    return fault


FAULTS = {
    "link down for 2 s": down_for(2.0),
    "link down for 10 s": down_for(10.0),
    "link down for 60 s": down_for(60.0),
    "machine killed": killed,
    "machine frozen for 5 s": frozen_for(5.0),
}


@pytest.mark.parametrize("what", FAULTS)
@pytest.mark.parametrize("driver", DRIVERS)
def test_a_run_goes_on(site: Site, driver: str, what: str) -> None:
    """A fault of the machine of a replica, which neither coordinates nor serves the pool."""
    bits = reference_bits(site, driver) if driver in SAME_BITS else ""
    with site.start_run(driver, f"{driver}-{what}".replace(" ", "-")) as run:
        run.wait_for("record ", within_s=120.0)
        read_for(run, 2.0)
        victim = next(site.machine_of(f"part {r}.0") for r in (1, 0) if site.machine_of(f"part {r}.0").number)
        replica = next(r for r in (1, 0) if f"part {r}.0" in victim.hosts())
        began = time.monotonic()
        FAULTS[what](site, victim, run)
        over = time.monotonic()
        found = finished(run)
        seen = records(run)
        gaps = longest_gap(seen, replica, began), longest_gap(seen, None, began)
        after = next((one.at - over for one in seen if one.at > over), float("nan"))
        printed(
            f"{driver}, {what} ({over - began:.1f} s): longest gap of the replica {gaps[0]:.1f} s, of all "
            f"{gaps[1]:.1f} s; first record {after:.1f} s after the fault was over\n{texts(run)}"
        )
        assert seen[-1].at > began, "the run was over before the fault came"
    assert float(found["accuracy"]) > 0.9
    assert found["bits"] == bits or driver not in SAME_BITS


@pytest.mark.parametrize("driver", ["downpour", "sandblaster"])
def test_a_machine_with_a_shard_is_killed(site: Site, driver: str) -> None:
    """Its shard begins again elsewhere from the newest checkpoint, which is not on that machine."""
    bits = reference_bits(site, driver) if driver in SAME_BITS else ""
    with site.start_run(driver, "run") as run:
        run.wait_for("record ", within_s=120.0)
        read_for(run, 5.0)
        victim = next(one for n in (0, 1) if (one := site.machine_of(f"shard {n}")).number)
        lost, began = victim.hosts(), time.monotonic()
        victim.kill()
        found = finished(run)
        gap = longest_gap(records(run), None, began)
        printed(f"{driver}, machine of {', '.join(lost)} killed: gap {gap:.1f} s\n{texts(run)}")
    assert records(run)[-1].at > began, "the run was over before"
    assert float(found["accuracy"]) > 0.9
    assert found["bits"] == bits or driver not in SAME_BITS


@pytest.mark.parametrize("site", [1], indirect=True)
@pytest.mark.parametrize("driver", DRIVERS)
def test_a_coordinator_that_is_killed_is_resumed_on_the_same_workers(site: Site, driver: str) -> None:
    """The hosts of the dead process end, and the resumed run has its places at once."""
    bits = reference_bits(site, driver) if driver in SAME_BITS else ""
    with site.start_run(driver, "run") as run:
        run.wait_for("record ", within_s=120.0)
        read_for(run, 3.5)
        before = records(run)[-1].step
        run.signal(signal.SIGKILL)
        run.end()
    killed_at = time.monotonic()
    with site.start_run(driver, "run", "resume") as run:
        run.wait_for("record ", within_s=120.0)
        on_again = time.monotonic() - killed_at
        hosts = [host for machine in site.machines for host in machine.hosts()]
        assert len(hosts) == len(set(hosts)), f"hosts of the dead run live: {hosts}"
        found = finished(run)
        begins = records(run)[0].step
    printed(
        f"{driver}, coordinator killed at step {before}: goes on from {begins} after {on_again:.1f} s\n"
        f"{texts(run)}"
    )
    assert begins > 1, "it began anew"
    assert found["bits"] == bits or driver not in SAME_BITS
    site.serve.wait_for("goes on in a new process", within_s=1.0)


def test_a_registry_that_is_killed_and_started_again_is_not_noticed(site: Site) -> None:
    with site.start_run("downpour", "run") as run:
        run.wait_for("record ", within_s=120.0)
        site.serve.signal(signal.SIGKILL)
        site.serve.end()
        read_for(run, 5.0)
        site.serve = serving(site.machines[0])
        for number in range(4):
            site.serve.wait_for(f"worker 'm{number}' joined")
        site.serve.wait_for("a run of 'digits' by Downpour needs", "by an earlier registry")
        began = time.monotonic()
        finished(run)
        printed(f"longest gap {longest_gap(records(run), None, began - 10.0):.1f} s\n{texts(run)}")
    assert any("the registry of the pool was started again" in line for line in run.said), texts(run)
    assert not any("started again;" in line and "part" in line for line in run.said), texts(run)
    for worker in site.workers:
        worker.wait_for("the registry of the pool was started again", within_s=5.0)
        worker.wait_for("the run of 'digits' by Downpour is over: it has ended")


def test_a_profile_measures_on_all_machines(site: Site) -> None:
    """One, two and four machines, with links of 1 Gbit/s and of 100 Mbit/s."""
    example = str(Path(faulty_run.__file__).parents[3] / "examples" / "digits.py")
    arguments = ["profile", example, "--machines", "1,2,4", "--steps", "5", "--uncalibrated"]
    arguments += [
        "--strategy",
        "balanced",
        "--on",
        site.address,
        "--keys",
        "/tmp/keys",
        "--pool-workers",
        "4",
    ]
    for mbit in (1000, 100):
        for machine in site.machines:
            machine.limit(mbit * 1e6)
        with site.machines[0].start(*arguments) as found:
            assert found.end() == 0, found.output
        printed(f"links of {mbit} Mbit/s:\n{found.output}")
        assert sum("measured" in line for line in found.said) >= 3, found.output


def test_a_run_over_links_of_which_one_is_slow(site: Site) -> None:
    """Resumed on three machines: the fourth is gone meanwhile."""
    site.machines[2].limit(100e6)
    with site.start_run("downpour", "run", "20") as run:
        accuracy = finished(run)["accuracy"]
    printed(f"one link of 100 Mbit/s: accuracy {accuracy}\n{texts(run)}")
    assert float(accuracy) > 0.9
    site.machines[3].kill()
    with site.start_run("downpour", "run", "resume", "30", workers=3) as run:
        found = finished(run)
    printed(f"resumed on three: accuracy {found['accuracy']}\n{texts(run)}")
    assert records(run)[0].step > 1, "it began anew"
    assert float(found["accuracy"]) > 0.9


def test_a_frozen_worker_is_named_by_the_pool(site: Site) -> None:
    """It keeps its place for 10 s, and is a worker like any other when it goes on."""
    machine = site.machines[3]
    machine.freeze()
    site.serve.wait_for("worker 'm3' is silent for", within_s=10.0)
    status = ask_pool(site.address, Keyring(site.keys), Inspect())
    machine.thaw()
    assert [one.note[:10] for one in status.workers if one.name == "m3"] == ["silent for"], status
    site.serve.wait_for("worker 'm3' answers again, after", within_s=10.0)
    machine.freeze()
    seconds = site.serve.wait_for("worker 'm3' is gone: silent for", within_s=20.0)
    printed(f"out {seconds:.1f} s after it froze")
