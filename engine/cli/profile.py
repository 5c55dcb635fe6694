"""`partita profile`."""

from __future__ import annotations

from partita.engine.cli import options
from partita.engine.cli.loading import UserFile
from partita.engine.cli.sentences import one_sentence_each
from partita.engine.cli.terminal import terminal_width
from partita.engine.drivers.phases import Phases
from partita.engine.parameters.files import check_target
from partita.engine.profile import profile_network
from partita.partitioner.assign.cut_text import parse_cut
from partita.partitioner.cluster.cluster import Cluster


def profile(
    file: options.File,
    machines: options.MachineCounts = None,
    threads: options.Threads = 1,
    batch: options.Batch = 32,
    cluster: options.Described = None,
    uncalibrated: options.Uncalibrated = False,
    strategy: options.Strategy = "automatic",
    cut: options.CutsByHand = [],  # noqa: B006 - typer reads the default once
    micro_batches: options.MicroBatches = None,
    precision: options.Precision = "float32",
    steps: options.Steps = 20,
    trace: options.TraceFile = None,
    page: options.PageFile = None,
    json: options.JsonFile = None,
) -> None:
    """What more machines gain: measured where this machine can play them, simulated elsewhere."""
    with one_sentence_each():
        users = UserFile.load(file)
        described = None if cluster is None else Cluster.read(cluster)
        counts = default_counts(described) if machines is None else parse_counts(machines)
        for target in (trace, page, json):
            if target is not None:
                check_target(target)
        with Phases(after_s=0.0) as tell:
            tell("planning")
            found = profile_network(
                users.network(),
                counts,
                threads=threads,
                batch=batch,
                precision=precision,
                cluster=described,
                calibrated=not uncalibrated,
                cuts=dict(map(parse_cut, cut)),
                strategy=strategy,
                micro_batches=micro_batches,
                data=users.data()[0] if users.has_data else None,
                steps=steps,
                tell=tell,
            )
        print(found.report().text(terminal_width()))
        written = [(page, found.write_page), (trace, found.write_trace), (json, found.write_json)]
        for target, write in written:
            if target is not None:
                print(f"written: {write(target)}")


def default_counts(described: Cluster | None) -> tuple[int, ...]:
    """Doublings: up to 8 machines, or to all of a cluster."""
    most = 8 if described is None else len(described)
    return (*(1 << n for n in range(most.bit_length()) if 1 << n < most), most)


def parse_counts(written: str) -> tuple[int, ...]:
    """`1,2,4`.

    Raises:
        ValueError: something between the commas is no number.
    """
    counts = [count.strip() for count in written.split(",")]
    if not all(count.isdecimal() for count in counts):
        raise ValueError(f"'{written}' are no numbers of machines; write for example 1,2,4")
    return tuple(map(int, counts))
