"""Methods of training race to an accuracy: real gradients, on a virtual clock.

`digits` computes: gradients and accuracies of the small network, by the engine's own kernels. `machines` says
how long things take: steps of a network of the paper, cut over machines of its time, and what goes over their
links. `clock` puts both together: processes, and messages that take the time of their bytes. On it run
`downpour` (the real client and shard machines; a replica alone is plain SGD) and `sandblaster` (the real
batch methods). `examples/reproduce/figure4.py` lets them race and draws.
"""
