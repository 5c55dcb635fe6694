"""The command `partita calibrate`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from partita.engine.cli.fields import command
from partita.engine.cli.loading import UserFile
from partita.engine.cli.output import terminal_width
from partita.engine.cli.planning import Forget, Machines, Step, open_store
from partita.engine.profile.bench import Bench
from partita.engine.profile.calibration import calibrate as calibrate_machine
from partita.engine.profile.tables import calibration_text
from partita.engine.run.phases import Phases
from partita.layers.text import counted

Measured = Annotated[
    Path | None, Argument(help="Python file with network(), whose kernels are measured too.")
]
ClusterOut = Annotated[
    Path | None, Option(help="Write this machine as a cluster of so many machines, as TOML.")
]


@command()
def calibrate(
    file: Measured = None,
    machines: Machines = 2,
    *,
    step: Step,
    cluster_out: ClusterOut = None,
    forget: Forget = False,
) -> None:
    """Measures this machine: a network's kernels and products, the runtime, links; only what is not known."""
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
    print(f"products: {found.record.choices()}")
    print(f"{counted(found.measured, 'kernel')} measured now; kept in {store.path}")
    if cluster_out is not None:
        print(f"written: {found.cluster(machines, threads=step.threads).write(cluster_out)}")
