"""Serves the page of a stream as a process of its own: `python -m partita.engine.page STREAM ...`.

It prints the address as its first line, and nothing else.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from partita.engine.page.server import PageServer, Serving


def main() -> None:
    """Reads the arguments and serves."""
    parser = argparse.ArgumentParser(prog="partita.engine.page")
    parser.add_argument("stream", type=Path)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--save", type=Path, default=None)
    parser.add_argument("--until-pid", type=int, default=None)
    given = parser.parse_args()

    def ready(address: str) -> None:
        print(address, flush=True)

    PageServer(Serving(**vars(given), ready=ready)).serve()


if __name__ == "__main__":
    main()
