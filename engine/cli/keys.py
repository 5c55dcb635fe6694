"""The commands `partita keys`: pairs of this machine, and public keys that are trusted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from partita.engine.cli.fields import Command
from partita.engine.launch.pool.join_file import default_keys
from partita.engine.transport.keyring import ROLES, Keyring, Role

app = typer.Typer(
    help="Makes, shows and authorises keys of pools, workers and clients.", no_args_is_help=True
)

Keys = Annotated[
    Path | None,
    Option("--keys", help="Folder of keys; the user's own if not given."),
]


def keyring_of(folder: Path | None) -> Keyring:
    """Returns the folder of keys that was given, or the user's own."""
    return Keyring(folder if folder is not None else default_keys())


@app.command(cls=Command)
def new(
    names: Annotated[
        list[str] | None, Argument(help="pool, worker or client; all three if none is given.")
    ] = None,
    keys: Keys = None,
    trust: Annotated[
        bool, Option(help="Let the keys of this folder trust one another: for a folder that is copied whole.")
    ] = True,
    job: Annotated[
        bool, Option("--job", help="Make a job's secret instead, from which ranks without a folder get keys.")
    ] = False,
) -> None:
    """Makes pairs of keys, in private files."""
    keyring = keyring_of(keys)
    if job:
        # A worker imports this module too, and derives no keys.
        from partita.engine.launch.symmetric.job_keys import SECRET_FILE, JobSecret, write_secret

        path = write_secret(keyring.folder, JobSecret.generate())
        print(f"a job's secret is in {path}; give it to all ranks: export {SECRET_FILE}={path}")
        return
    chosen = [_role(name) for name in names or ROLES]
    for name in chosen:
        pair = keyring.new(name)
        print(f"{name} {pair.public} in {keyring.public_file(name)}")
        if trust:
            keyring.authorise(name, pair.public, name)


def _role(name: str) -> Role:
    for role in ROLES:
        if role == name:
            return role
    raise ValueError(f"'{name}' is no role of a key; give {', '.join(ROLES)}")


@app.command(cls=Command)
def show(keys: Keys = None) -> None:
    """Prints the public halves of this folder's pairs, and the keys that it trusts. No secret is printed."""
    keyring = keyring_of(keys)
    names = keyring.names()
    if not names:
        print(f"no keys in {keyring.folder}; make them with `partita keys new --keys {keyring.folder}`")
    for name in names:
        print(f"own    {name:8} {keyring.pair(name).public}")
    for one in keyring.authorised():
        print(f"trusts {one.role:8} {one.public_key} {one.name}")


@app.command(cls=Command)
def authorise(
    key: Annotated[str, Argument(help="A .pub file, or 40 characters in quotes.")],
    role: Annotated[Role, Option("--as", help="What its owner may be.")],
    name: Annotated[str | None, Option(help="Name for messages; the file's if not given.")] = None,
    keys: Keys = None,
) -> None:
    """Trusts a public key as that of a pool, a worker or a client. A client may run code on every worker."""
    path = Path(key)
    is_file = len(key) != 40 or path.is_file()
    text = path.read_text(encoding="ascii", errors="replace").strip() if is_file else key
    keyring = keyring_of(keys)
    called = name or (path.stem if is_file else role)
    keyring.authorise(role, text, called)
    print(f"{keyring.folder} trusts {text} as a {role}, called {called}")
