"""Codistillation against torch in float64: any groups and replicas, one part or two, losses that distil."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from partita.engine import SGD, Codistillation, evaluate, train
from partita.engine.drivers.traffic import traffic
from partita.engine.protocol import actions as a
from partita.engine.protocol.names import part_indices, part_name
from partita.engine.protocol.program_effects import PartSeat, SharedSpan
from partita.engine.protocol.replica_messages import StateCopy, View
from partita.engine.protocol.teaching import Teaching
from partita.engine.protocol.views import JoinedBatches, Member
from partita.engine.runtime.joint_sampler import JointSampler
from partita.layers import (
    BinaryCrossEntropy,
    Dense,
    HalfSquaredError,
    Huber,
    KLDivergence,
    Loss,
    Network,
    SoftmaxCrossEntropy,
)
from partita.partitioner import Cluster, partition
from tests.runtime.members import Members

EXAMPLES, BATCH, INPUTS, HIDDEN, CLASSES = 23, 3, 4, 5, 3
RATE, EVERY, BURN_IN, WEIGHT, EPOCHS = 0.3, 3, 2, 0.7, 3

functional = torch.nn.functional


def cross_entropy(scores: Any, target: Any) -> Any:
    """Of labels, or of probabilities; the sum over the examples."""
    return functional.cross_entropy(scores, target, reduction="sum")


def logistic(scores: Any, target: Any) -> Any:
    return functional.binary_cross_entropy_with_logits(scores, target, reduction="sum")


def half_square(scores: Any, target: Any) -> Any:
    return ((scores - target) ** 2).sum() / 2


LOSSES: dict[str, tuple[Loss, Any, Any]] = {
    "labels": (SoftmaxCrossEntropy(), cross_entropy, lambda scores: scores.softmax(1)),
    "probabilities": (KLDivergence(), cross_entropy, lambda scores: scores.softmax(1)),
    "logistic": (BinaryCrossEntropy(), logistic, torch.sigmoid),
    "squares": (HalfSquaredError(), half_square, lambda scores: scores),
}
"""Each loss, the same in torch (less what no score changes), and what its scores predict."""


def data(case: str) -> dict[str, Any]:
    random = np.random.default_rng(5)
    x, target = random.normal(size=(EXAMPLES, INPUTS)), random.random((EXAMPLES, CLASSES))
    if case == "labels":
        return {"x": x, "y": random.integers(0, CLASSES, (EXAMPLES, 1))}
    return {"x": x, "y": target / target.sum(1, keepdims=True)}


def network(case: str) -> Network:
    net = Network("small")
    hidden = Dense(HIDDEN, activation="tanh", name="hidden")(net.input("x", shape=(INPUTS,)))
    scores = Dense(CLASSES, name="scores")(hidden)
    net.loss = LOSSES[case][0](scores, net.target("y"))
    return net


def scores_of(parameters: dict[str, Any], x: Any) -> Any:
    for layer in ("hidden", "scores"):
        (matrix,) = (one for name, one in parameters.items() if name.startswith(layer) and one.ndim == 2)
        (bias,) = (one for name, one in parameters.items() if name.startswith(layer) and one.ndim == 1)
        x = x @ matrix.T + bias
        x = torch.tanh(x) if layer == "hidden" else x
    return x


def reference(case: str, start: dict[str, Any], driver: Codistillation) -> list[dict[str, Any]]:
    """The parameters of each group, all in one process: plain batches, and soft targets by autograd."""
    _, loss, predicted = LOSSES[case]
    given = {name: torch.from_numpy(array) for name, array in data(case).items()}
    batches = JoinedBatches(EXAMPLES, BATCH)
    sampler = JointSampler(batches, seed=0)
    groups, n = driver.groups, driver.replicas
    own = [{name: torch.from_numpy(array).clone() for name, array in start.items()} for _ in range(groups)]
    stale = [dict(one) for one in own]
    position = step = 0
    while position < EPOCHS * EXAMPLES:
        after = []
        for group in range(groups):
            shares = [sampler.indices(position, rank=rank, replicas=n) for rank in range(group, n, groups)]
            chosen = np.concatenate(shares)
            now = {name: value.clone().requires_grad_() for name, value in own[group].items()}
            x, y = given["x"][chosen], given["y"][chosen]
            scores = scores_of(now, x)
            total = loss(scores, y[:, 0] if case == "labels" else y)
            if step >= driver.burn_in:
                others = [predicted(scores_of(stale[k], x)) for k in range(groups) if k != group]
                total = total + driver.weight * loss(scores, torch.stack(others).mean(0))
            (total / max(len(chosen), 1)).backward()
            after.append({name: (value - RATE * value.grad).detach() for name, value in now.items()})
        own, step, position = after, step + 1, batches.after(position, n)
        if step % EVERY == 0:
            stale = own
    return own


def begun(case: str, driver: Codistillation, folder: Path, *, machines: int) -> Members:
    plan = partition(network(case), Cluster.local(machines=machines), batch=BATCH, precision="float64")
    settings: dict[str, Any] = {"by": driver.by, "optimizer": driver.optimizer, "driver": driver}
    return Members(plan, data(case), folder, replicas=driver.replicas, **settings)


def trained(case: str, driver: Codistillation, folder: Path, *, machines: int) -> tuple[Any, Members]:
    members = begun(case, driver, folder, machines=machines)
    start = members.parameters(0)
    members.publish(1, range(driver.replicas), until=EPOCHS * EXAMPLES)
    members.run()
    found = [members.parameters(replica) for replica in range(driver.replicas)]
    members.close()
    return (start, found), members


def driver(groups: int, replicas: int, **settings: Any) -> Codistillation:
    usual: dict[str, Any] = {"every": EVERY, "burn_in": BURN_IN, "weight": WEIGHT, "optimizer": SGD(RATE)}
    return Codistillation(replicas=replicas, groups=groups, **usual | settings)


@pytest.mark.parametrize(
    ("case", "groups", "replicas", "machines", "exchange"),
    [
        ("labels", 2, 2, 2, "parameters"),
        ("labels", 2, 4, 1, "predictions"),
        ("labels", 3, 6, 2, "parameters"),
        ("labels", 3, 6, 2, "predictions"),
        ("probabilities", 3, 3, 1, "parameters"),
        ("logistic", 2, 2, 1, "predictions"),
        ("squares", 2, 2, 2, "predictions"),
    ],
)
def test_groups_learn_what_the_others_predict(
    case: str, groups: int, replicas: int, machines: int, exchange: str, tmp_path: Path
) -> None:
    made = driver(groups, replicas, exchange=exchange)
    (start, found), _ = trained(case, made, tmp_path, machines=machines)
    expected = reference(case, start, made)
    for replica, parameters in enumerate(found):
        for name, wanted in expected[replica % groups].items():
            np.testing.assert_allclose(parameters[name], wanted.numpy(), rtol=1e-9, atol=1e-12)
            np.testing.assert_array_equal(parameters[name], found[replica % groups][name])
    plain = reference(case, start, driver(groups, replicas, burn_in=1000))
    name = next(iter(plain[0]))
    assert not np.allclose(found[0][name], plain[0][name], rtol=1e-3), "the term matters"
    assert not np.allclose(found[0][name], found[1][name], rtol=1e-3), "groups are not one"


@pytest.mark.parametrize(
    ("groups", "replicas", "machines", "exchange"),
    [(2, 2, 1, "predictions"), (2, 4, 1, "parameters"), (3, 3, 2, "predictions")],
)
def test_what_is_sent_is_what_the_formula_says(
    groups: int, replicas: int, machines: int, exchange: str, tmp_path: Path
) -> None:
    made = driver(groups, replicas, exchange=exchange, keep_every=4)
    _, members = trained("squares", made, tmp_path, machines=machines)
    vectors = [members.bodies[part_name(0, m)].arrays.vectors for m in range(machines)]  # type: ignore[attr-defined]
    sizes, scores = [one.size for one in vectors], [len(one.predictions) for one in vectors]
    assert sum(scores) == made.taught_minibatches * BATCH * CLASSES
    scores = [n // made.taught_minibatches for n in scores]
    for name in members.bodies:
        replica, machine = part_indices(name) or (0, 0)
        sent = [members.sent_bytes.get((name, kind), 0) for kind in ("PartialChunk", "FinalChunk")]
        run = {"examples": EXAMPLES, "batch": BATCH, "epochs": EPOCHS, "sizes": sizes, "item_bytes": 8}
        run["scores"] = scores
        assert sum(sent) == traffic(made, replica=replica, machine=machine, **run).n_bytes  # type: ignore[arg-type]


def test_a_round_sends_parameters_to_every_other_group_once() -> None:
    """A ring in the group, 2 (N - 1) / N vectors a step; a vector to one replica of each other group."""
    run: dict[str, Any] = {"examples": 1600, "batch": 4, "epochs": 1, "sizes": [1000]}
    for groups, replicas in ((2, 2), (2, 4), (4, 8)):
        made = driver(groups, replicas, every=10)
        steps, size = 1600 // (4 * replicas), replicas // groups
        wanted = steps * 2 * (size - 1) * 4000 // size + (1 + steps // 10) * (groups - 1) * 4000
        assert traffic(made, **run).n_bytes == wanted


def test_predictions_cost_the_scores_of_a_round_and_parameters_now_and_then() -> None:
    """A round's scores to one replica of each other group, where it learns; parameters every 50 steps."""
    run: dict[str, Any] = {"examples": 1600, "batch": 4, "epochs": 1, "sizes": [1000], "scores": [40]}
    for groups in (2, 4):
        made = driver(groups, groups, every=10, burn_in=20, exchange="predictions", keep_every=50)
        steps = 1600 // (4 * groups)
        parameters, rounds = 1 + steps // 50, steps // 10 - 2
        assert traffic(made, **run).n_bytes == (groups - 1) * 4 * (rounds * 10 * 40 + parameters * 1000)


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"groups": 1}, "groups is 1"),
        ({"exchange": "gradients"}, "exchange is 'gradients'"),
        ({"exchange": "predictions", "every": None}, "every is None"),
        ({"exchange": "predictions", "keep_every": 0}, "keep_every is 0"),
        ({"replicas": 3}, "replicas is 3, and there are 2 groups"),
        ({"weight": 0.0}, "weight is 0"),
        ({"burn_in": -1}, "burn_in is -1"),
        ({"elastic": (1, 2)}, "elastic is"),
        ({"optimizer": SGD(0.1, clip_norm=1.0)}, "needs the norms"),
        ({"replicas_per_group": 2}, "write replicas=4, groups=2"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], what: str) -> None:
    with pytest.raises((ValueError, TypeError), match=what):
        Codistillation(**settings)


def test_a_loss_that_is_no_prediction_less_a_target_is_refused() -> None:
    made = Codistillation()
    assert made.fitted(partition(network("labels"), Cluster.local(machines=1), batch=BATCH)) is made
    net = Network("robust")
    net.loss = Huber(name="loss")(Dense(2)(net.input("x", shape=(2,))), net.target("y"))
    with pytest.raises(ValueError, match="'loss' is a Huber"):
        made.fitted(partition(net, Cluster.local(machines=1), batch=BATCH))


def test_a_program_that_learns_what_nobody_has_predicted_is_refused() -> None:
    batches = JoinedBatches(12, 3)
    me = Member(1, 0, View(1, (0, 1), 1, 0, 0, 24), batches)
    spans = (SharedSpan(0, 0, 5, (0,)),)
    place: dict[str, Any] = {"replica": 1, "machine": 0, "machines": 1, "incarnation": 0}
    seat = PartSeat(**place, size=5, spans=spans, exchanges=1, entries=2, entry_size=4)
    teaching = Teaching(seat, batches)
    partner = a.Compute(0, of=a.Share(0, ahead=1), teaches=1.0, entry=1)
    for forget in (teaching.begin_view, lambda: teaching.combine(a.Combine("predictions", {}))):
        forget()
        with pytest.raises(RuntimeError, match="no teacher has predicted"):
            teaching.examples(a.Compute(0, distil=0.5), me)
        assert teaching.examples(partner, me) == (6, 0)
        teaching.combine(a.Combine("delta", {}))
        assert teaching.examples(a.Compute(0, distil=0.5), me) == (0, 1)
    for wrong, what in (
        (a.Compute(0, teaches=1.0, entry=2), "computes entry 2 of the predictions, and the driver keeps 2"),
        (a.Compute(0, of=a.Share(0)), "only a teacher's pass has examples of another replica"),
        (a.Compute(0, of=a.Share(2), teaches=1.0), "in a view of 2 replicas"),
    ):
        with pytest.raises(RuntimeError, match=what):
            teaching.examples(wrong, me)


@pytest.mark.parametrize("anew", [True, False])
def test_a_replica_that_gets_the_state_of_another_group_goes_on_with_its_own(
    anew: bool, tmp_path: Path
) -> None:
    """At the end of a round nothing is lost; a view that does not say it leaves two copies of one group."""
    made, found = driver(2, 2, every=2), []
    for copies in ((), (StateCopy(0, 0, 1),)):
        folder = tmp_path / str(len(copies))
        folder.mkdir()
        members = begun("labels", made, folder, machines=1)
        members.publish(1, range(2), until=12)
        members.run()
        members.said.clear()
        of_view = {"step": 2, "points": 1, "position": 12, "copies": copies, "anew": anew}
        members.publish(2, range(2), until=EPOCHS * EXAMPLES, **of_view)  # type: ignore[arg-type]
        members.run()
        found.append(members.parameters(1))
        members.close()
    same = all(np.array_equal(one, found[1][name]) for name, one in found[0].items())
    assert same == anew


@pytest.mark.slow
@pytest.mark.parametrize("exchange", ["parameters", "predictions"])
def test_a_run_is_resumed(exchange: str, tmp_path: Path) -> None:
    """With processes: groups draw parameters of their own, and go on from what they exchanged last."""
    plan = partition(network("labels"), Cluster.local(machines=2), batch=BATCH)
    made = driver(2, 4, every=4, exchange=exchange)
    settings: dict[str, Any] = {"driver": made, "checkpoints": tmp_path / "run", "show": "nothing"}
    first = train(plan, data("labels"), epochs=4, **settings)
    again = train(plan, data("labels"), epochs=8, resume=True, **settings)
    assert again.steps == (2 * first.steps[0],) * 4
    losses = [evaluate(run, data("labels"), show="nothing").loss for run in (first, again)]
    assert losses[1] < losses[0]
