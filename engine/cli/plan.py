"""`partita plan`."""

from __future__ import annotations

from partita.engine.cli import options
from partita.engine.cli.loading import UserFile
from partita.engine.cli.planning import cluster_of, make_plan
from partita.engine.cli.sentences import one_sentence_each
from partita.engine.cli.terminal import terminal_width
from partita.partitioner.table import plan_table


def plan(
    file: options.File,
    machines: options.Machines = 2,
    threads: options.Threads = 1,
    batch: options.Batch = 32,
    cluster: options.ClusterFile = None,
    strategy: options.Strategy = "automatic",
    cut: options.CutsByHand = [],  # noqa: B006 - typer reads the default once
    micro_batches: options.MicroBatches = None,
    precision: options.Precision = "float32",
    draw: options.Draw = None,
    timeline: options.Timeline = None,
    page: options.PageFile = None,
    programs: options.Programs = False,
) -> None:
    """Who owns what, which messages follow, and the predicted step."""
    with one_sentence_each():
        users, on = UserFile.load(file), cluster_of(cluster, machines=machines, threads=threads)
        found = make_plan(
            users,
            on,
            batch=batch,
            cuts=cut,
            strategy=strategy,
            micro_batches=micro_batches,
            precision=precision,
        )
        print(plan_table(found, width=terminal_width()))
        if programs:
            for machine, program in zip(found.cluster.machines, found.programs, strict=True):
                print(f"\nprogram of {machine.name}:\n{program}")
        if draw is not None:
            print(f"\ndrawn: {found.draw(draw)}")
        if timeline is not None:
            print(f"\ntimeline: {found.draw_timeline(timeline)}")
        if page is not None:
            print(f"\npage: {found.write_page(page)}")
