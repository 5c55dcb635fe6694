"""The command `partita kernels`."""

from __future__ import annotations

from partita.engine.cli.fields import command
from partita.engine.cli.output import terminal_width
from partita.engine.cli.planning import Forget, open_store
from partita.engine.profile.tables import products_text, tiles_text


@command()
def kernels(forget: Forget = False) -> None:
    """Prints which library computes which matrix product, the least work of each of several threads,
    and the forms of tiles: the fixed rule, and the choices of `partita calibrate`.
    """
    if (store := open_store(forget=forget)) is None:
        return
    record = store.read()
    print(f"products: {record.choices()}")
    for threads, shares in record.threads.items():
        print(f"threads, of {threads}: {shares}")
    print(f"tiles: {record.choices().forms}")
    if record.products:
        print(products_text(record.products, width=terminal_width()))
    if record.tiles:
        print(tiles_text(record.tiles, width=terminal_width()))
