"""Before and after a run: what it will take, and what it took.

Calibration: `calibration` measures what is not known yet of this machine and keeps it in the `store`. Kernels
are timed in a `rehearsal` of the parts that a `ladder` of plans has; `roads` tells what the runtime adds for
an instruction and for a message. All of it happens on a `bench` of real hosts, some of which `tally` the work
of their messengers; `calibration_table` shows what was measured.
"""

from partita.engine.profile.calibration import Calibration, calibrate, known

__all__ = ["Calibration", "calibrate", "known"]
