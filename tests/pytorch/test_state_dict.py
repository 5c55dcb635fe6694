"""State dicts of runs: the module's names and bits, out of this process and back into it."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

from partita.engine import SGD, Downpour, Run, Torch, evaluate, from_torch, load_tensors, train
from partita.engine.cli import app_of
from partita.engine.parameters import initialise
from partita.engine.pytorch.imported_network import ImportedNetwork
from partita.layers import Dense, HalfSquaredError, Network
from partita.partitioner import Cluster, Plan, partition
from tests.drivers.conftest import WatchedThreads, on_threads  # noqa: F401 - a fixture

BATCH = 4


class Mixed(nn.Module):
    """A convolution with one shape in both orders of axes, statistics, a tie, and an unused mask."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, bias=False)
        self.norm = nn.BatchNorm2d(3)
        self.first = nn.Linear(12, 12)
        self.again = nn.Linear(12, 12, bias=False)
        self.again.weight = self.first.weight
        self.register_buffer("mask", torch.arange(6).reshape(2, 3) % 2 == 0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.conv(x))).flatten(1)
        found: torch.Tensor = self.again(torch.tanh(self.first(x)))
        return found


class Second(nn.Module):
    """A module that wrote its state otherwise in its first version, as torchvision's MNASNet."""

    _version = 2

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(3, 3), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.inner(x)
        return found

    def _load_from_state_dict(self, state: Any, prefix: str, metadata: Any, *more: Any) -> None:
        if metadata.get("version") != 2:
            raise ValueError("this state is of the first version")
        super()._load_from_state_dict(state, prefix, metadata, *more)


def test_a_state_has_the_versions_of_its_modules(tmp_path: Path) -> None:
    net = from_torch(nn.Sequential(Second()), (torch.zeros(2, 3),))
    net.loss = HalfSquaredError()(net.output, net.target("y"))
    plan = partition(net, Cluster.local(machines=1), batch=BATCH)
    run = Run(plan, initialise(plan.graph.parameters.values(), 0))
    state = pickle.loads(pickle.dumps(run)).state_dict()
    nn.Sequential(Second()).load_state_dict(state, strict=True)
    assert state._metadata == {  # type: ignore[attr-defined]
        path: {"version": n} for path, n in (("", 1), ("0", 2), ("0.inner", 1), ("0.inner.0", 1))
    }
    with pytest.raises(ValueError, match="of the first version"):
        nn.Sequential(Second()).load_state_dict(dict(state), strict=True)
    kept = load_tensors(run.save(tmp_path / "kept.safetensors"))
    nn.Sequential(Second()).load_state_dict(kept, strict=True)
    assert kept._metadata == state._metadata  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="of the first version"):  # it has no versions
        safetensors.torch.load_model(nn.Sequential(Second()), tmp_path / "kept.safetensors")
    safetensors.torch.save_file(dict(state), tmp_path / "odd", metadata={"module_versions": "[1"})
    with pytest.raises(ValueError, match="odd is not a readable safetensors file"):
        load_tensors(tmp_path / "odd")
    layer = Torch(Second(), name="block")
    declared = Network("declared")
    declared.loss = HalfSquaredError()(layer(declared.input("x", shape=3)), declared.target("y"))
    plan = partition(declared, Cluster.local(machines=1), batch=BATCH)
    parameters = initialise(plan.graph.parameters.values(), 0)
    Second().load_state_dict(layer.state_dict(parameters), strict=True)
    assert Run(plan, parameters).state_dict()._metadata["block"] == {"version": 2}  # type: ignore[attr-defined]


def mixed(dtype: torch.dtype = torch.float32) -> Mixed:
    torch.manual_seed(7)
    module = Mixed().to(dtype)
    module.norm.num_batches_tracked += 41
    return module


def network_of(module: nn.Module) -> ImportedNetwork:
    dtype = next(module.parameters()).dtype
    net = from_torch(module, (torch.empty(2, 3, 4, 4, dtype=dtype),), name="mixed")
    net.loss = HalfSquaredError()(net.output, net.target("y"))
    return net


def plan_of(net: Network, precision: str = "float32") -> Plan:
    return partition(net, Cluster.local(machines=1), batch=BATCH, precision=precision)


def run_of(plan: Plan) -> Run:
    dtype = "float64" if plan.precision == "float64" else "float32"
    return Run(plan, initialise(plan.graph.parameters.values(), 0, dtype=dtype))


def data() -> dict[str, Any]:
    draw = np.random.default_rng(2)
    return {"x": draw.normal(size=(8, 3, 4, 4)), "y": draw.normal(size=(8, 12))}


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """Names, types and bits."""
    assert list(found) == list(expected)
    for name, values in expected.items():
        assert found[name].dtype == values.dtype, name
        assert torch.equal(found[name], values), name


@pytest.mark.parametrize(
    ("dtype", "way"),
    [
        pytest.param("float32", "mapping", marks=pytest.mark.slow),
        ("float64", "half of the ties"),
        pytest.param("bfloat16", "torch", marks=pytest.mark.slow),
        ("bfloat16", "safetensors"),
    ],
)
def test_a_state_dict_comes_back_with_the_same_bits(dtype: str, way: str, tmp_path: Path) -> None:
    """Also into the run of another module of the class, by a file of torch's or of ours."""
    module = mixed(getattr(torch, dtype))
    plan = plan_of(network_of(module), dtype)
    run, expected = run_of(plan), module.state_dict()
    assert_same(run.state_dict(), expected)
    state = run.state_dict()
    assert state["first.weight"].data_ptr() == state["again.weight"].data_ptr()
    copy.deepcopy(module).load_state_dict(state, strict=True)
    other = Mixed().to(getattr(torch, dtype))
    net = network_of(other)
    if way == "mapping":
        net.load_state_dict(expected)
        found = run_of(plan_of(net, dtype))
    elif way == "half of the ties":
        net.load_state_dict({name: one for name, one in expected.items() if name != "first.weight"})
        found = run_of(plan_of(net, dtype))
    elif way == "torch":
        torch.save(expected, tmp_path / "state.pt")
        found = Run.load(tmp_path / "state.pt", plan_of(net, dtype))
    else:
        written = run.save(tmp_path / "state.safetensors")
        assert "again.weight" not in safetensors.torch.load_file(written)
        safetensors.torch.load_model(other, written, strict=True)
        header = written.read_bytes()[8:].partition(b"},")[0]  # in order, and so the same each time
        names = [header.find(name) for name in (b'"again.weight"', b'"format"', b'"module_versions"')]
        assert names == sorted(names) and names[0] > 0
        assert_same(other.state_dict(), expected)
        found = Run.load(written, plan_of(net, dtype))
    assert_same(found.state_dict(), expected)


def test_every_difference_is_listed_at_once(tmp_path: Path) -> None:
    net = network_of(mixed())
    state = mixed().state_dict()
    del state["norm.bias"]
    state["conv.weight"] = state["conv.weight"][:2]
    state["again.weight"] = state["again.weight"] + 1
    state["norm.weight"] = torch.ones(3, dtype=torch.int64)
    state["other"] = torch.ones(1)
    wrong = (
        r"'conv.weight' is \(2, 3, 3, 3\), and \(3, 3, 3, 3\).*'norm.weight' is .*int64.*"
        r"'norm.bias' \(3,\) is missing.*'again.weight' and 'first.weight' are one.*no 'other'"
    )
    with pytest.raises(ValueError, match="the state dict does not fit the network: " + wrong):
        net.load_state_dict(state)
    torch.save(state, tmp_path / "state.pt")
    with pytest.raises(ValueError, match=f"{tmp_path}/state.pt does not fit the network: {wrong}"):
        Run.load(tmp_path / "state.pt", plan_of(net))
    dense = Network("dense")
    dense.loss = HalfSquaredError()(Dense(2, name="a")(dense.input("x", shape=3)), dense.target("y"))
    shapes = r"'a.weight' \(2, 3\) is missing; 'a.bias' is \(3,\), and \(2,\).*; this network has no 'b'"
    with pytest.raises(ValueError, match=shapes):
        train(
            plan_of(dense),
            {"x": np.ones((4, 3)), "y": np.ones((4, 2))},
            driver=Downpour(),
            epochs=1,
            initial={"a.bias": torch.ones(3), "b": torch.ones(1)},
        )


@pytest.mark.parametrize(
    ("write", "says"),
    [
        (lambda path: torch.save(mixed(), path), "other objects than tensors"),
        (
            lambda path: torch.save({"model": mixed().state_dict(), "epoch": 3}, path),
            "but model, epoch; save",
        ),
        (lambda path: path.write_bytes(b"PK\x03\x04 and nothing"), "or is damaged; nothing in it was"),
        (lambda path: path.write_bytes(b"nothing of the kind"), "is not a readable safetensors file"),
        (lambda path: path.mkdir(), "holds no complete checkpoint"),
        (lambda path: None, "there is no file"),
    ],
)
def test_what_is_no_state_dict_is_refused(write: Any, says: str, tmp_path: Path) -> None:
    write(tmp_path / "state")
    with pytest.raises(ValueError, match=says):
        load_tensors(tmp_path / "state")


SOURCE = """
from tests.pytorch.test_state_dict import mixed, network_of
def network():
    return network_of(mixed())
"""


@pytest.mark.slow
def test_a_run_knows_its_module_wherever_it_goes_on(
    on_threads: WatchedThreads,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """From the module's file, resumed, pickled, evaluated, and exported from its checkpoints."""
    monkeypatch.chdir(tmp_path)
    torch.save(mixed().state_dict(), "start.pt")
    plan = plan_of(network_of(Mixed()))
    settings: dict[str, Any] = {"driver": Downpour(optimizer=SGD(0.01)), "show": "nothing"}
    train(plan, data(), epochs=1, initial="start.pt", checkpoints="net.checkpoints", **settings)
    run = train(
        plan,
        data(),
        epochs=2,
        initial=mixed().state_dict(),
        checkpoints="net.checkpoints",
        resume=True,
        **settings,
    )
    state = run.state_dict()
    alone = mixed()
    assert int(state["norm.num_batches_tracked"]) == 41
    assert not torch.equal(state["conv.weight"], alone.conv.weight)
    alone.load_state_dict(state, strict=True)
    known = evaluate(run, data()).loss
    alone.eval()
    x, y = (torch.from_numpy(one).float() for one in data().values())
    assert known == pytest.approx(((alone(x) - y) ** 2).sum().item() / 2 / 8, rel=1e-4)

    assert_same(pickle.loads(pickle.dumps(run)).state_dict(), state)
    assert_same(Run.load("net.checkpoints", run.plan).state_dict(), state)

    (tmp_path / "net.py").write_text(SOURCE)
    for source in ("net.py", "net.checkpoints"):
        with pytest.raises(SystemExit) as ended:
            app_of("export")(["export", source, "--to", "out.safetensors"])
        assert not ended.value.code, capsys.readouterr()
        assert set(load_tensors("out.safetensors")) == set(state) - {"again.weight"}
    kept = load_tensors("net.checkpoints")
    assert list(kept) == list(state)
    assert_same(kept, state)
    mixed().load_state_dict(kept, strict=True)


@pytest.mark.slow
def test_another_process_writes_the_modules_names(tmp_path: Path) -> None:
    run = run_of(plan_of(network_of(mixed())))
    (tmp_path / "run").write_bytes(pickle.dumps(run))
    code = "import pickle; r = pickle.load(open('run', 'rb')); r.save('there.safetensors')"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, cwd=tmp_path)
    found = Run.load(tmp_path / "there.safetensors", plan_of(network_of(Mixed())))
    assert_same(found.state_dict(), run.state_dict())


def test_a_layer_has_its_modules_names_behind_its_own(tmp_path: Path) -> None:
    net = Network("net")
    module = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3))
    features = Torch(module, name="features")(net.input("x", shape=(4, 4, 2)))
    net.loss = HalfSquaredError()(Dense(2, name="scores")(features), net.target("y"))
    run = run_of(plan_of(net))
    run = replace(run, parameters={**run.parameters, "features.1.running_mean": np.ones(3, np.float32)})
    state = run.state_dict()
    own = {name.removeprefix("features."): one for name, one in state.items() if "features" in name}
    assert list(own) == list(module.state_dict()) and {*state} - {"scores.weight", "scores.bias"} == {
        f"features.{name}" for name in own
    }
    module.load_state_dict(own, strict=True)
    assert module[1].running_mean.tolist() == [1.0, 1.0, 1.0]
    assert_same(Run.load(run.save(tmp_path / "a"), run.plan).state_dict(), state)
