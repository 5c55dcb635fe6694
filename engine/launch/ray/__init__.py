"""Hosts on a Ray cluster: one worker of a pool in each bundle of a placement group.

`settings` is `Ray`, an argument of `train`; `bundles` are what hosts need, in Ray's words, and whether nodes
can have them; `connection` imports Ray, and connects to a cluster or starts one. `actor` is the worker of one
bundle, `supervisor` starts an actor in each bundle and again where one has died, and `introduced` are the
keys of one run, of which only public halves travel. `opening` joins these: a registry in this process knows
the workers, and the launcher is that of a pool. No number of a run passes through Ray.

Only `actor`, `connection` and what they start import Ray, which is an extra.
"""

from partita.engine.launch.ray.settings import Ray

__all__ = ["Ray"]
