"""The command `partita`, for files that declare a network and its data.

Each command is a function in a file of its own: `plan`, `train`, `profile`, `calibrate`, `kernels`. What they
share: `options` names the options, `loading` runs the user's file, `planning` makes the plan and `drivers`
the driver that were asked for, and `sentences` ends a command that went wrong with one sentence.
"""

import typer

from partita.engine.cli import calibrate, kernels, plan, profile, train

__all__ = ["app", "main"]

app = typer.Typer(
    help="One network, played in parts: train neural networks cut over several machines.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(plan.plan)
app.command()(train.train)
app.command()(profile.profile)
app.command()(calibrate.calibrate)
app.command()(kernels.kernels)


def main() -> None:
    """Runs the command."""
    app()
