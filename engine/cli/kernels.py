"""The command `partita kernels`."""

from __future__ import annotations

from partita.engine.cli.fields import command
from partita.engine.cli.output import one_sentence_each, terminal_width
from partita.engine.cli.planning import Forget
from partita.engine.profile.signature import signature
from partita.engine.profile.store import Store
from partita.engine.profile.tables import products_text


@command()
def kernels(forget: Forget = False) -> None:
    """Prints which library computes which matrix product: the fixed rule, and the choices of `partita
    calibrate`.
    """
    with one_sentence_each():
        store = Store()
        if forget:
            print("forgotten" if store.forget() else "nothing was remembered")
            return
        if (trouble := store.trouble()) is not None:
            print(trouble)
        print(signature())
        record = store.read()
        print(f"products: {record.choices()}")
        if record.products:
            print(products_text(record.products, width=terminal_width()))
