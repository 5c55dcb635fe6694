"""`partita calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from partita.engine.cli import options
from partita.engine.cli.loading import UserFile
from partita.engine.cli.sentences import one_sentence_each
from partita.engine.cli.terminal import terminal_width
from partita.engine.drivers.phases import Phases
from partita.engine.profile.bench import HostBench
from partita.engine.profile.calibration import calibrate as calibrate_machine
from partita.engine.profile.calibration_table import calibration_text
from partita.engine.profile.signature import signature
from partita.engine.profile.store import Store
from partita.layers.text import counted


def calibrate(
    file: Annotated[
        Path | None, Argument(help="Python file with network(), whose kernels are measured too.")
    ] = None,
    machines: options.Machines = 2,
    threads: options.Threads = 1,
    batch: options.Batch = 32,
    precision: options.Precision = "float32",
    cluster_out: Annotated[
        Path | None, Option(help="Write this machine as a cluster of so many machines, as TOML.")
    ] = None,
    forget: options.Forget = False,
) -> None:
    """Measures this machine: a network's kernels and products, the runtime, links; only what is not known."""
    with one_sentence_each():
        store = Store()
        if forget:
            print("forgotten" if store.forget() else "nothing was remembered")
            return
        if (trouble := store.trouble()) is not None:
            print(trouble)
        print(signature())
        network = None if file is None else UserFile.load(file).network()
        with Phases(after_s=0.0) as tell:
            found = calibrate_machine(
                network,
                batch=batch,
                precision=precision,
                threads=threads,
                progress=lambda told, done, total: tell(f"measuring {told}: {done} of {total}"),
                bench=HostBench(tell=lambda phase: tell(f"measuring: {phase}")),
                store=store,
            )
        print(calibration_text(found, width=terminal_width()))
        if found.refused is not None:
            print(found.refused)
        print(f"products: {found.record.choices()}")
        print(f"{counted(found.measured, 'kernel')} measured now; kept in {store.path}")
        if cluster_out is not None:
            print(f"written: {found.cluster(machines, threads=threads).write(cluster_out)}")
