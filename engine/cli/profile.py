"""`partita profile`."""

from __future__ import annotations

from rich.console import Console

from partita.engine.cli import options
from partita.engine.cli.loading import UserFile
from partita.engine.cli.planning import parse_cut
from partita.engine.cli.sentences import one_sentence_each
from partita.engine.parameters.files import check_target
from partita.engine.profile import profile_network


def profile(
    file: options.File,
    machines: options.MachineCounts = "1,2,4,8",
    threads: options.Threads = 1,
    batch: options.Batch = 32,
    cut: options.CutsByHand = [],  # noqa: B006 - typer reads the default once
    precision: options.Precision = options.Precisions.FLOAT32,
    steps: options.Steps = 20,
    trace: options.TraceFile = None,
    page: options.PageFile = None,
    json: options.JsonFile = None,
) -> None:
    """What more machines gain: measured where this machine can play them, simulated elsewhere."""
    with one_sentence_each():
        users = UserFile.load(file)
        counts = parse_counts(machines)
        for target in (trace, page, json):
            if target is not None:
                check_target(target)
        with Console(stderr=True).status("planning") as status:
            found = profile_network(
                users.network(),
                counts,
                threads=threads,
                batch=batch,
                precision=precision.value,
                cuts=dict(map(parse_cut, cut)),
                data=users.data()[0] if users.has_data else None,
                steps=steps,
                tell=status.update,
            )
        print(found)
        written = [(page, found.write_page), (trace, found.write_trace), (json, found.write_json)]
        for target, write in written:
            if target is not None:
                print(f"written: {write(target)}")


def parse_counts(written: str) -> tuple[int, ...]:
    """`1,2,4`.

    Raises:
        ValueError: something between the commas is no number.
    """
    counts = [count.strip() for count in written.split(",")]
    if not all(count.isdecimal() for count in counts):
        raise ValueError(f"'{written}' are no numbers of machines; write for example 1,2,4")
    return tuple(map(int, counts))
