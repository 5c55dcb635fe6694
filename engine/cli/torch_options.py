"""Options of commands that take a module of PyTorch in the place of a network."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from partita.engine.cli.loading import UserFile
from partita.engine.cli.planning import Planning
from partita.engine.profile.profile import Profile
from partita.engine.run.phases import OnPhase
from partita.layers.network import Network

if TYPE_CHECKING:
    from partita.engine.cli.torch_module import FoundModule


@dataclass(frozen=True)
class FromTorch:
    """Options that make a network of a module of PyTorch.

    Args:
        from_torch: the file has a module of PyTorch, and needs no network().
        module: the module, as the file would write it, for example Net or Net(width=64); if not given,
            `module` or `model`, or else the only module of the file, or the only class of one.
        input: an argument of the module, with the examples of a minibatch first, for example 32x3x224x224
            or tokens=16x128:int64; may be given several times. If not given, those of `example_args`.
        loss: stands for the loss of a module that returns scores; if not given, cross-entropy over the
            last dimension, or the squared error where the scores are no classes.
    """

    from_torch: bool = False
    module: str | None = None
    input: list[str] = field(default_factory=list)
    loss: Literal["cross-entropy", "squared-error"] | None = None

    def networks(self, users: UserFile, planning: Planning) -> Networks:
        """Makes the network of a user's file, and says how it is to be planned.

        Raises:
            ValueError: an option is given without `--from-torch`, or the file has no network, or no module
                that can be one.
            UserCodeError: the user's code raised.
        """
        if not self.from_torch:
            given = {"--module": self.module, "--input": self.input, "--loss": self.loss}
            if wrong := [name for name, value in given.items() if value]:
                raise ValueError(f"{wrong[0]} describes a module of PyTorch; give --from-torch, too")
            return Networks(users.network(), planning)
        # Only this needs torch before any host is started: help and all other plans take no second more.
        from partita.engine.cli.torch_module import FoundModule

        found = FoundModule.of(users, module=self.module, inputs=self.input, loss=self.loss)
        batch = found.batch if planning.batch is None else planning.batch
        return Networks(found.network, replace(planning, batch=batch), found)


@dataclass(frozen=True)
class Networks:
    """The network of a user's file.

    Args:
        network: as declared, or made of a module.
        planning: the options, with the minibatch of the module's inputs.
        found: the module; None where the file declares a network.
    """

    network: Network
    planning: Planning
    found: FoundModule | None = None

    @property
    def remarks(self) -> tuple[str, ...]:
        """Sentences on how the module became the network."""
        return () if self.found is None else self.found.remarks

    def remarked(self, profile: Profile, *, beside: bool, on_phase: OnPhase) -> Profile:
        """Returns a profile with these remarks, and if asked for with PyTorch measured beside it."""
        if self.found is None:
            return profile
        figures = self.found.beside(profile, on_phase) if beside else ()
        return replace(profile, remarks=self.remarks, beside=figures)
