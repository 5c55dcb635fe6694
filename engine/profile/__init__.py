"""What a cut gains: measured where this machine can play it, simulated elsewhere, and said which is which.

`profile_network` plays a network on several numbers of machines (`run`); what comes of it, a `profile`,
prints itself and writes a page, a trace and JSON. `measure` plays one plan on processes, `timeline` holds a
step as bars, measured or predicted (and `spans` of time adds them up), `changes` tries what would gain most,
and `report` is all of it in plain numbers. `perfetto` writes traces; `page` is the page, `curve` its first
picture.
"""

from partita.engine.profile.changes import Change
from partita.engine.profile.measure import Measured, measure
from partita.engine.profile.profile import Point, Profile
from partita.engine.profile.report import MachineReport, PointReport, Report
from partita.engine.profile.run import profile_network
from partita.engine.profile.timeline import Timeline

__all__ = [
    "Change",
    "MachineReport",
    "Measured",
    "Point",
    "PointReport",
    "Profile",
    "Report",
    "Timeline",
    "measure",
    "profile_network",
]
