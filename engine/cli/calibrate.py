"""The command `partita calibrate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from partita.engine.cli.fields import command
from partita.engine.cli.loading import UserFile
from partita.engine.cli.output import terminal_width
from partita.engine.cli.planning import Forget, Machines, Step, open_store
from partita.engine.launch.on import OnOptions, on_of
from partita.engine.launch.pool.pool import Pool
from partita.engine.profile.bench import Bench
from partita.engine.profile.calibration import calibrate as calibrate_machine
from partita.engine.profile.pool_calibration import calibrate_pool
from partita.engine.profile.pool_pairs import MOST_PAIRS
from partita.engine.profile.pool_tables import pool_text
from partita.engine.profile.tables import calibration_text
from partita.engine.run.phases import Phases
from partita.layers.text import counted

Measured = Annotated[
    Path | None, Argument(help="Python file with network(), whose kernels are measured too.")
]
ClusterOut = Annotated[
    Path | None,
    Option(
        help="Write this machine as a cluster of so many machines, as TOML; with --on, the pool's machines: "
        "cluster.toml if not given."
    ),
]
Like = Annotated[
    list[str] | None,
    Option(
        help="With --on: WORKER=WORKER[,WORKER...], the machines of the others are like that of the first, "
        "and only that one is measured; may be given several times."
    ),
]
MostPairs = Annotated[
    int, Option(help="With --on: pairs of machines up to which all links are measured; of more, a sample.")
]


@command()
def calibrate(
    file: Measured = None,
    machines: Machines = 2,
    *,
    step: Step,
    cluster_out: ClusterOut = None,
    forget: Forget = False,
    place: OnOptions,
    like: Like = None,
    most_pairs: MostPairs = MOST_PAIRS,
) -> None:
    """Measures this machine, or with --on those of a pool: a network's kernels and products, the runtime,
    links; only what is not known.
    """
    if place.on is not None:
        groups = parse_like(like or [])
        measure_pool(pool_of(place), file, step, cluster_out or Path("cluster.toml"), groups, most_pairs)
        return
    if (store := open_store(forget=forget)) is None:
        return
    network = None if file is None else UserFile.load(file).network()
    with Phases(after_s=0.0) as on_phase:
        found = calibrate_machine(
            network,
            **asdict(step),
            progress=lambda what, done, total: on_phase(f"measuring {what}: {done} of {total}"),
            bench=Bench(on_phase=lambda phase: on_phase(f"measuring: {phase}")),
            store=store,
        )
    print(calibration_text(found, width=terminal_width()))
    if found.refused is not None:
        print(found.refused)
    choices = found.record.choices(step.threads)
    print(f"products: {choices}")
    if step.threads > 1:
        print(f"threads: {choices.threads}")
    print(f"{counted(found.measured, 'kernel')} measured now; kept in {store.path}")
    if cluster_out is not None:
        print(f"written: {found.cluster(machines, threads=step.threads).write(cluster_out)}")


def pool_of(place: OnOptions) -> Pool:
    """Returns the pool that --on names. Raises ValueError if it names none."""
    found = on_of(place.on, place, what="--on is")
    if not isinstance(found, Pool):
        raise ValueError(
            f"--on is '{place.on}', and a calibration measures the machines of a pool; give "
            "the address of one, tcp://HOST:PORT"
        )
    return found


def parse_like(texts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Reads the values of --like. Raises ValueError if one cannot be read."""
    found: dict[str, tuple[str, ...]] = {}
    for text in texts:
        first, sign, others = text.partition("=")
        names = tuple(name.strip() for name in others.split(",") if name.strip())
        if not (first.strip() and sign and names):
            raise ValueError(f"--like is '{text}'; write for example --like shelf-1=shelf-2,shelf-3")
        found[first.strip()] = (*found.get(first.strip(), ()), *names)
    return found


def measure_pool(
    pool: Pool, file: Path | None, step: Step, out: Path, like: Mapping[str, Sequence[str]], most_pairs: int
) -> None:
    """Measures the machines and links of a pool, prints them, and writes them as a cluster."""
    network = None if file is None else UserFile.load(file).network()
    with Phases(after_s=0.0) as on_phase:
        found = calibrate_pool(
            pool,
            network,
            **asdict(step),
            like=like,
            most_pairs=most_pairs,
            progress=lambda what, done, total: on_phase(f"measuring {what}: {done} of {total}"),
            on_phase=lambda phase: on_phase(f"measuring: {phase}"),
        )
    cluster = found.cluster()
    print(pool_text(found, cluster, width=terminal_width()))
    for name, machine in found.machines.items():
        if machine.refused is not None:
            print(f"{name}: {machine.refused}")
    print(f"written: {cluster.write(out)}")
