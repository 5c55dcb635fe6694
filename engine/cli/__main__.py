"""The command, as `python -m partita.engine.cli`."""

from partita.engine.cli import main

main()
