"""Figures of papers, drawn again at a scale that fits one machine.

`figure3` simulates the speed-up of one model on more machines, and `figure3_guesses` varies what it
assumes; `figure4` lets the methods of `race` train to an accuracy on simulated machines; `fine_tuning`
makes a belief net a classifier; `fedavg` counts the rounds of federated averaging. `local_sgd` and `admm`
have drivers whose replicas compute alone. `compression` compares compressors of gradients, and
`large_batch` optimizers of few steps, and `float16` precisions, with a loss scale and without. Each is a
module that prints and draws: `python -m examples.reproduce.figure3`.
`ddnn` has exits over devices and a cloud, and `resolution` trains on small pictures first.
"""
