"""Hosts at work: joins the protocol's machines, the kernels and a mailbox. Only this folder knows all three.

`host` is the interpreter of every host's machine (one mailbox, one thread, one role), and `task` what a host
is set up with: a role's machine and the body that carries out its effects; `versions` are what hosts must
share. The roles are a part, a part in a `session` (in `two_phases`, where its caller has the gradients of the
outputs; in `exit_phases`, where examples may end early), and a `shard` with its `gradient_pool`, for which a
driver chooses one of the `shard_policies`.
A `shard_body` with its `shard_settings` has the vectors of
`shard_start` and `shard_records`, which a `shard_log` keeps for a `shard_recovery`, and `delay_compensation`
corrects stale gradients there; a `backup` is a second copy. `push_messages` are compressed pushes, as a part
writes and a shard reads them, and `unsent_of_parts` what they lacked, in a shard's file.
All parts have one `part_body`: it has a `runner` of their steps (a `step_runner`, or those of
`assignments`) and their arrays, `link_arrays` or `exchange_arrays` (over `program_vectors`, which
`state_files` writes, with the compressors of `message_coding`). A `part_task`
is that of every part, and how the work comes decides on its hands: `leased_hands`, `assigned_hands` (with a
`shared_part`) or `joined_hands`; a `validation` has the forward program alone.

A part's program is played by `player` on kernel threads, and `trace` records the times. For those who
watch a run, some are `recorded_steps`, folded to `lanes`, and a `measured_host` reports them. `compute` turns
instructions into calls, with `layer_kernel` for each layer, `parameter_calls`, `fused_update` and
`regularisation` for parameters, and `distillation` for what teachers predict.
`buffers` holds every array in a `window` on one of the `devices` (a GPU is a
`torch_device`; `open_device` finds the machine's); `feed`, `portion_feed` and `joint_sampler`
(with `prepared_examples` of data that is read ahead) fill in the
examples, a `local_optimizer` updates a part's parameters (of sparse tables, `row_tables`; `directions` are
what norms are taken of), `updates` add up its gradients, too, and a `gradient_sum` nothing else; `changes`
are what its updates have changed, and `elastic_updates` move a part towards its shards.
`metrics` sums losses, and the
`reported_sums` of each `metric` that is asked for; `nonfinite` finds the first array that is not finite,
`watchdog` computations that do not end; `compile_events` counts what is compiled. Import the modules
themselves: a shard does not need what a part needs.
"""

__all__: list[str] = []
