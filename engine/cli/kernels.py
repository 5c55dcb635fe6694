"""`partita kernels`."""

from __future__ import annotations

from rich.console import Console

from partita.engine.cli import options
from partita.engine.cli.sentences import one_sentence_each
from partita.engine.kernels.products import calibration, calibration_table


def kernels(forget: options.Forget = False) -> None:
    """What was measured of kernels on this machine, and what is used."""
    with one_sentence_each():
        if forget:
            print("forgotten" if calibration.forget() else "nothing was remembered")
            return
        if (trouble := calibration.trouble()) is not None:
            print(trouble)
        print(calibration.signature())
        Console().print(calibration_table.table(calibration.measured()))
