"""Drivers: the settings of a training system, `downpour` or `sandblaster`; a `driver` is their base."""

from partita.engine.drivers.downpour import Downpour
from partita.engine.drivers.driver import Driver
from partita.engine.drivers.sandblaster import Sandblaster

__all__ = ["Downpour", "Driver", "Sandblaster"]
