"""The command `partita profile`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Option

from partita.engine.cli.fields import command
from partita.engine.cli.loading import UserFile
from partita.engine.cli.output import terminal_width
from partita.engine.cli.planning import File, Planning
from partita.engine.cli.torch_options import FromTorch
from partita.engine.launch.on import OnOptions, begin, on_of
from partita.engine.parameters.files import check_target
from partita.engine.profile import profile_network
from partita.engine.run.phases import Phases
from partita.partitioner.cluster.cluster import Cluster
from partita.partitioner.pictures import view

Counts = Annotated[
    str | None, Option(help="Numbers of machines, with commas; 1,2,4,8 if not given, or those of a cluster.")
]


@dataclass(frozen=True)
class Measuring:
    """Settings of a profile, and its outputs.

    Args:
        uncalibrated: predict by guessed rates; measure no kernels and no links before.
        steps: steps to measure of each plan.
        trace: write what each machine did when, for https://ui.perfetto.dev.
        beside_torch: with --from-torch, measure PyTorch's own pipelining and tensor parallelism, too.
        page: write everything as a page of HTML.
        json: write the numbers as JSON.
    """

    uncalibrated: bool = False
    steps: int = 20
    trace: Path | None = None
    beside_torch: bool = False
    page: Path | None = None
    json: Path | None = None


@command()
def profile(
    file: File,
    machines: Counts = None,
    *,
    planning: Planning,
    from_torch: FromTorch,
    measuring: Measuring,
    place: OnOptions,
) -> None:
    """Finds the gain of more machines: measured where this machine can play them, simulated elsewhere.

    With --cluster its first machines are simulated, and nothing is measured. With --on all are measured
    there.
    """
    on = None if place.on is None else on_of(place.on, place, what="--on is")
    if on is not None:
        begin(on)
    check_beside(measuring, planning, from_torch, place)
    users = UserFile.load(file)
    described = None if planning.cluster is None else Cluster.read(planning.cluster)
    counts = parse_counts(machines) if machines else default_counts(described, None if on is None else place)
    for target in (measuring.trace, measuring.page, measuring.json):
        if target is not None:
            check_target(target)
    if measuring.page:
        view("pages")  # a library that is missing is named before any work
    with Phases(after_s=0.0) as on_phase:
        on_phase("planning")
        given = from_torch.networks(users, planning)
        found = profile_network(
            given.network,
            counts,
            threads=planning.threads,
            cluster=described,
            calibrated=not measuring.uncalibrated,
            data=users.data()[0] if users.has_data else None,
            steps=measuring.steps,
            on=on,
            on_phase=on_phase,
            **given.planning.arguments(),
        )
        found = given.remarked(found, beside=measuring.beside_torch, on_phase=on_phase)
    print(found.report().text(terminal_width()))
    written = [
        (measuring.page, found.write_page),
        (measuring.trace, found.write_trace),
        (measuring.json, found.write_json),
    ]
    for target, write in written:
        if target is not None:
            print(f"written: {write(target)}")


def check_beside(measuring: Measuring, planning: Planning, from_torch: FromTorch, place: OnOptions) -> None:
    """Raises ValueError where PyTorch is to be measured, and cannot be."""
    if not measuring.beside_torch:
        return
    if not from_torch.from_torch:
        raise ValueError("--beside-torch trains a module of PyTorch; give --from-torch, too")
    if planning.cluster is not None or place.on is not None:
        raise ValueError("--beside-torch measures on this machine; leave --cluster and --on out")


def default_counts(described: Cluster | None, place: OnOptions | None = None) -> tuple[int, ...]:
    """Returns doublings: up to 8 machines, to all of a cluster, or to the workers that a run waits for."""
    most = 8 if place is None else place.pool_workers
    most = most if described is None else len(described)
    return (*(1 << n for n in range(most.bit_length()) if 1 << n < most), most)


def parse_counts(written: str) -> tuple[int, ...]:
    """Reads numbers of machines: `1,2,4`.

    Raises:
        ValueError: something between the commas is no number.
    """
    counts = [count.strip() for count in written.split(",")]
    if not all(count.isdecimal() for count in counts):
        raise ValueError(f"'{written}' are no numbers of machines; write for example 1,2,4")
    return tuple(map(int, counts))
