"""Hosts at work: joins the protocol's machines, the kernels and a mailbox. Only this folder knows all three.

`host` is the loop of every host (one mailbox, one thread, one role) and `task` what a host is given to do
(`replica_task`, where it is a part of a run). There are five roles: `training` (a part under Downpour),
`portions` (a part under Sandblaster, whose `turns` are fed by `portion_feed`), `session` (a part that plays a
step when told to), `serving` (a shard) and `vector_serving` (a shard under batch optimisation, with
`gradients` on their way into a sum); what the two shards have in common is `leased`, `writing` their files,
and what goes on `beside` the talk. A part's program is played by `player` on kernel threads, and `trace`
tells what was done when; `compute` turns instructions into calls, `buffers` holds every array in a `window`
on one of the `devices` (a GPU is a `torch_device`; `open_device` finds the machine's), of which `views` shows
a kernel its part, `feed` brings the examples; `learn` takes gradients block by block, `norms` adds up squares
over machines, `updates` steps the optimizer; `metrics` counts what losses come to, and `finite` finds where
numbers went wrong; `underway` knows what is being computed, `compiling` counts what is compiled, and
`acknowledged` keeps on disk which pushes were. `simulation` plays the same machines on a virtual clock
instead. Import the modules themselves: a shard does not need what a part needs.
"""

__all__: list[str] = []
