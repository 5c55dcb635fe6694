"""`partita train`."""

from __future__ import annotations

import sys
from pathlib import Path

from partita.engine.cli import options
from partita.engine.cli.drivers import BY_HAND, make_driver
from partita.engine.cli.loading import UserFile
from partita.engine.cli.planning import cluster_of, make_plan
from partita.engine.cli.sentences import one_sentence_each
from partita.engine.cli.terminal import terminal_width
from partita.engine.drivers.caller import Caller
from partita.engine.drivers.data import Data, check_data
from partita.engine.drivers.evaluate import evaluate
from partita.engine.drivers.run import Run
from partita.engine.drivers.train import train_as
from partita.engine.parameters.files import check_target
from partita.engine.protocol.coordinator_effects import INSTRUCTION_TIMEOUT_S, START_TIMEOUT_S
from partita.layers.text import counted
from partita.partitioner.plan import Plan
from partita.partitioner.table import plan_table


def train(
    file: options.File,
    machines: options.Machines = 2,
    threads: options.Threads = 1,
    batch: options.Batch = 32,
    cluster: options.ClusterFile = None,
    strategy: options.Strategy = "automatic",
    cut: options.CutsByHand = [],  # noqa: B006 - typer reads the default once
    micro_batches: options.MicroBatches = None,
    precision: options.Precision = "float32",
    driver: options.Driver = options.Drivers.DOWNPOUR,
    replicas: options.Replicas = 1,
    shards: options.Shards = 1,
    push_every: options.PushEvery = None,
    seed: options.Seed = 0,
    optimizer: options.OptimizerName = None,
    learning_rate: options.LearningRate = None,
    momentum: options.MomentumKept = None,
    weight_decay: options.WeightDecay = None,
    clip_norm: options.ClipNorm = None,
    schedule: options.Schedule = None,
    epochs: options.Epochs = None,
    fetch_every: options.FetchEvery = None,
    overlap: options.Overlap = None,
    method: options.Method = None,
    history: options.History = None,
    max_iterations: options.MaxIterations = None,
    gtol: options.GTol = None,
    ftol: options.FTol = None,
    l2: options.L2 = None,
    portion: options.Portion = None,
    sample: options.Sample = None,
    overlap_share: options.OverlapShare = None,
    backups: options.Backups = None,
    warm_epochs: options.WarmEpochs = None,
    checkpoints: options.Checkpoints = None,
    checkpoint_every: options.CheckpointEvery = 30.0,
    checkpoint_timeout: options.CheckpointTimeout = 120.0,
    start_timeout: options.StartTimeout = START_TIMEOUT_S,
    instruction_timeout: options.InstructionTimeout = INSTRUCTION_TIMEOUT_S,
    resume: options.Resume = False,
    overwrite: options.Overwrite = False,
    save: options.Save = None,
    listen: options.Listen = None,
) -> None:
    """Trains the network on processes of this machine."""
    given = {name: value for name, value in locals().items() if name in BY_HAND}
    with one_sentence_each():
        users = UserFile.load(file)
        settings, passes = make_driver(driver.value, replicas=replicas, shards=shards, given=given)
        found = make_plan(
            users,
            cluster_of(cluster, machines=machines, threads=threads),
            batch=batch,
            cuts=cut,
            strategy=strategy,
            # What overlaps are whole minibatches, unless both are asked for.
            micro_batches=1 if micro_batches is None and (overlap or 1) > 1 else micro_batches,
            precision=precision,
        )
        data, held_out = users.data()
        check_end(found, held_out, save)
        print(plan_table(found, width=terminal_width()), flush=True)
        run = train_as(
            Caller.of_command(["partita", *sys.argv[1:]]),
            found,
            data,
            driver=settings,
            epochs=passes,
            seed=seed,
            checkpoints=checkpoints or Path(f"{file.stem}.checkpoints"),
            checkpoint_every_s=checkpoint_every,
            checkpoint_timeout_s=checkpoint_timeout,
            start_timeout_s=start_timeout,
            instruction_timeout_s=instruction_timeout,
            resume=resume,
            overwrite=overwrite,
            listen=listen,
        )
        report(run, held_out, save)


def check_end(plan: Plan, held_out: Data | None, save: Path | None) -> None:
    """What follows the training is looked at before it: a mistake there must not cost the whole run."""
    if held_out is not None:
        try:
            check_data(plan.graph, held_out, targets=True, precision=plan.precision)
        except ValueError as mistake:
            raise ValueError(f"held-out data: {mistake}") from mistake
    if save is not None:
        check_target(save)


def report(run: Run, held_out: Data | None, save: Path | None) -> None:
    """The last lines of a training."""
    done = [f"{counted(sum(run.steps), 'step')}"] if run.steps else []
    done += [f"{counted(run.iterations, 'iteration')}"] if run.outcome is not None else []
    print(f"trained {' and '.join(done)} in {run.seconds:.1f} s; checkpoint: {run.checkpoint}")
    if run.lost_pushes:
        print(f"failures cost {counted(run.lost_pushes, 'push', 'pushes')}")
    if save is not None:
        print(f"saved: {run.save(save)}")
    if held_out is not None:
        print(f"held-out: {evaluate(run, held_out)}")
