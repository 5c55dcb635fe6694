"""Calibration before a run, and the profile of a network.

Calibration: `calibration` measures what is not known yet of this machine and keeps it in the `store`, a
`kept_file`. Kernels are timed by a `kernel_benchmark` of the parts of plans of all `sizes`; `links` measures
what the runtime adds for an instruction and for a message, `products` which library computes which matrix
product, `tiles` in which form the `tiled_loops` of a layer are fastest, and `threads` how much work a thread
is worth (`choices` keeps what the kernels of a part have `asked` for); a measurement holds for a `signature`.
All of it happens on a `bench` of real hosts, in some of which `step_timing` measures the work of
their communication threads; `tables` shows what was measured.

Calibration of a pool: `pool_calibration` measures its machines, and the links of `pool_pairs` of them, on a
`pool_bench` of hosts at its workers, some of which answer `host_questions`; `pool_tables` shows all of it.

Profile: `profile_network` plays a network on several numbers of machines (`run`), measured where this machine
can play it, simulated elsewhere, and says which is which. The `profile` prints itself and writes a page, a
trace and JSON. `measure` plays one plan on processes, `timeline` holds a step as bars, measured or predicted
(and `spans` of time adds them up), `changes` finds the `trials` that would gain most (some of them `recuts`
of layers), and `report` is all of it in plain numbers. `perfetto` writes traces.

Beside it, `beside_torch` trains a module by PyTorch's own means, cut where `torch_cuts` finds that it can be:
a `torch_group` of processes, each a `torch_player`. Its rows are in `beside`.
"""

from partita.engine.profile.calibration import Calibration, calibrate, known
from partita.engine.profile.changes import Change
from partita.engine.profile.measure import Measured, measure
from partita.engine.profile.pool_calibration import PoolCalibration, calibrate_pool, cluster_of
from partita.engine.profile.profile import Point, Profile
from partita.engine.profile.report import MachineReport, PointReport, Report
from partita.engine.profile.run import profile_network

__all__ = [
    "Calibration",
    "Change",
    "MachineReport",
    "Measured",
    "Point",
    "PointReport",
    "PoolCalibration",
    "Profile",
    "Report",
    "calibrate",
    "calibrate_pool",
    "cluster_of",
    "known",
    "measure",
    "profile_network",
]
