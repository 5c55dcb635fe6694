"""The command `partita export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from partita.engine.cli.fields import command
from partita.engine.cli.loading import UserFile
from partita.engine.drivers.identity import identity
from partita.engine.parameters.checkpoint import Checkpoints
from partita.engine.parameters.files import check_target
from partita.engine.parameters.reader import Checkpoint
from partita.engine.run.state_files import (
    checkpoint_tensors,
    has_modules,
    save_state,
    state_dict_of,
    tensors_of,
)
from partita.layers.graph import Graph
from partita.layers.text import counted

Source = Annotated[
    Path,
    typer.Argument(help="Python file with network(), as for training; or a folder of checkpoints."),
]
To = Annotated[Path, typer.Option(help="The file of safetensors to write.")]
Folder = Annotated[
    Path | None,
    typer.Option(help="Folder of the checkpoints; the file's name with .checkpoints if not given."),
]


@command()
def export(source: Source, *, to: To, checkpoints: Folder = None) -> None:
    """Writes the parameters of a run's newest checkpoint as a file of safetensors.

    Of a network that comes from a module of PyTorch, names are those of the module's state dict; else they
    are the network's own.
    """
    check_target(to)
    if source.is_dir():
        found = _newest(source, None)
        state = checkpoint_tensors(found)
    else:
        graph = UserFile.load(source).network().graph()
        found = _newest(checkpoints or Path(f"{source.stem}.checkpoints"), graph)
        parameters = found.parameters()
        state = state_dict_of(graph, parameters) if has_modules(graph) else tensors_of(parameters)
    save_state(to, state)
    of = f"checkpoint {found.manifest.checkpoint} in {found.path.parent}"
    print(f"written: {to}, {counted(len(state), 'tensor')} of {of}")


def _newest(folder: Path, graph: Graph | None) -> Checkpoint:
    """The newest whole checkpoint of a network, or of any. Raises ValueError."""
    shapes = None if graph is None else {name: one.shape for name, one in graph.parameters.items()}
    found = Checkpoints(folder).latest(shapes, network=None if graph is None else identity(graph))
    if found is None:
        raise ValueError(
            f"there is no complete checkpoint in {folder}; give the folder of a run by --checkpoints"
        )
    return found
