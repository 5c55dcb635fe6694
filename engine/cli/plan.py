"""The command `partita plan`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from partita.engine.cli.fields import command
from partita.engine.cli.loading import UserFile
from partita.engine.cli.output import terminal_width
from partita.engine.cli.planning import File, Machines, Planning
from partita.engine.cli.torch_options import FromTorch
from partita.engine.profile.report import remark_text
from partita.engine.run.data import slow_nodes
from partita.partitioner.pictures import view
from partita.partitioner.table import plan_table


@dataclass(frozen=True)
class Shown:
    """Outputs of a plan besides its table.

    Args:
        draw: write the plan as an SVG picture.
        timeline: write the timeline of the predicted step as an SVG picture.
        page: write everything as a page of HTML.
        programs: print each machine's program.
        summary: first print the layers with their parameters, bytes and operations.
    """

    draw: Path | None = None
    timeline: Path | None = None
    page: Path | None = None
    programs: bool = False
    summary: bool = False


@command()
def plan(
    file: File, machines: Machines = 2, *, planning: Planning, from_torch: FromTorch, shown: Shown
) -> None:
    """Prints who owns what, which messages follow, and the predicted step."""
    if shown.timeline or shown.page:
        view("pages")  # a library that is missing is named before any work
    given = from_torch.networks(UserFile.load(file), planning)
    found = given.planning.plan(given.network, machines)
    if shown.summary:
        print(found.summary().text(terminal_width()), end="\n\n")
    print(plan_table(found, width=terminal_width()))
    for remark in (*given.remarks, *slow_nodes(found.graph)):
        print(f"\n{remark_text(remark)}")
    if shown.programs:
        for machine, program in zip(found.cluster.machines, found.programs, strict=True):
            print(f"\nprogram of {machine.name}:\n{program}")
    if shown.draw is not None:
        print(f"\ndrawn: {found.draw(shown.draw)}")
    if shown.timeline is not None:
        print(f"\ntimeline: {found.draw_timeline(shown.timeline)}")
    if shown.page is not None:
        print(f"\npage: {found.write_page(shown.page)}")
