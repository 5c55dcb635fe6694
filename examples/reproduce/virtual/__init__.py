"""Virtual time for drivers: their own programs are played, gradients are real, and only time is assumed.

`hosts` has the machines, whose times are drawn; `replica` what a program knows of its replica;
`exchanges` those among replicas, which take what their algorithm's alpha-beta model says; `shards` the
parameters on shards, which merge pushes by the real policy, `links` the exchanges with them, and
`server_link` the link of one server, where all go through it; `world` plays the programs, action by action;
and `batch_world` plays batch methods, whose replicas evaluate. The network is the small one of
`two_functions`, and its parameters stand for `n_bytes` on the links.
"""

from examples.reproduce.virtual.batch_world import BatchWorld
from examples.reproduce.virtual.hosts import Hosts
from examples.reproduce.virtual.world import World

__all__ = ["BatchWorld", "Hosts", "World"]
