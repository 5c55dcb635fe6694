"""Models of Hugging Face's transformers with random weights: steps and results, on 1 to 4 machines.

The package is imported by the tests that run, and nothing is downloaded.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch
from torch import nn

from partita.engine import SGD, Session, from_torch
from partita.engine.parameters import initialise
from partita.layers import HalfSquaredError
from partita.partitioner import Cluster, partition
from tests.pytorch.steps import BATCH, check, check_own
from tests.pytorch.vision import vision_models

WORDS = torch.empty(BATCH, 6, dtype=torch.int64)


class Result(nn.Module):
    """One result of a model, as a tensor."""

    def __init__(self, model: nn.Module, name: str) -> None:
        super().__init__()
        self.model, self.name = model, name

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = getattr(self.model(words), self.name)
        return found


@pytest.fixture
def transformers(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The package, which must not reach for a network; it imports torchvision where that is installed."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("TRANSFORMERS_OFFLINE", "1")
    if importlib.util.find_spec("torchvision") is not None:
        vision_models()
    return pytest.importorskip("transformers")


def gpt2(transformers: Any, kind: str = "GPT2LMHeadModel", **settings: Any) -> nn.Module:
    torch.manual_seed(3)
    still = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    sizes = {"n_layer": 2, "n_embd": 16, "n_head": 4, "vocab_size": 11, "n_positions": 8}
    config = {**sizes, **still, "bos_token_id": None, "eos_token_id": None, **settings}
    model: nn.Module = getattr(transformers, kind)(transformers.GPT2Config(**config))
    return model


def llama(transformers: Any, monkeypatch: pytest.MonkeyPatch | None = None, **settings: Any) -> nn.Module:
    """With `monkeypatch`, a model that normalises in the precision of its numbers, not in float32."""

    def norm(self: Any, x: torch.Tensor) -> Any:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))

    if monkeypatch is not None:
        monkeypatch.setattr(transformers.models.llama.modeling_llama.LlamaRMSNorm, "forward", norm)
    torch.manual_seed(3)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "vocab_size": 11}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 16}
    config = transformers.LlamaConfig(**{**sizes, **heads, **settings})
    model: nn.Module = transformers.LlamaForCausalLM(config)
    return model


@pytest.mark.slow
def test_a_step_of_gpt2_and_of_llama_is_pytorchs(transformers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses, gradients, ties and names, in float64."""
    check(Result(gpt2(transformers, n_layer=1), "logits"), WORDS, machines=2)
    check(Result(llama(transformers, monkeypatch, num_hidden_layers=1), "logits"), WORDS, machines=2)


@pytest.mark.slow
@pytest.mark.parametrize("machines", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", ["gpt2", "scores", "eager", "llama"])
def test_a_step_on_any_number_of_machines(
    kind: str, machines: int, transformers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = {
        "gpt2": lambda: (gpt2(transformers, "GPT2Model"), "last_hidden_state"),
        "scores": lambda: (gpt2(transformers), "logits"),
        "eager": lambda: (gpt2(transformers, attn_implementation="eager"), "logits"),
        "llama": lambda: (llama(transformers, monkeypatch), "logits"),
    }
    check(Result(*models[kind]()), WORDS, machines=machines)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["BertForSequenceClassification", "BertForMaskedLM"])
def test_a_step_of_bert(kind: str, transformers: Any) -> None:
    """Two layers, whose attention is of all positions."""
    torch.manual_seed(3)
    still = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
    config = transformers.BertConfig(**sizes, **still, vocab_size=11, max_position_embeddings=16)
    check(Result(getattr(transformers, kind)(config), "logits"), WORDS, machines=2)


@pytest.mark.slow
@pytest.mark.parametrize("make", [gpt2, llama])
def test_a_model_as_it_is_in_float32(make: Any, transformers: Any) -> None:
    """Its result with a cache beside it, its names, its tie, and what it computes after training steps."""
    model = make(transformers)
    net = from_torch(model, (WORDS,))
    net.loss = HalfSquaredError()(net.output, net.target("y"))
    plan = partition(net, Cluster.local(machines=3), batch=BATCH)
    words = torch.randint(0, 11, WORDS.shape)
    y = torch.randn(BATCH, *net.output.shape)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    start = initialise(plan.graph.parameters.values(), 0)
    with Session(plan, start, train=True, optimizer=SGD(0.1)) as session:
        for _ in range(3):
            scores = model(words).logits
            found = session.step(
                {"input_ids": words.numpy(), "y": y.numpy()}, collect=("parameters", net.output.name)
            )
            states = torch.from_numpy(found.collected[net.output.name]).movedim(-1, 0)
            torch.testing.assert_close(states, scores.detach(), rtol=1e-5, atol=1e-5)
            optimizer.zero_grad()
            ((scores - y).square().sum() / 2 / BATCH).backward()
            optimizer.step()
    state = net.state_dict(found.vectors["parameters"])
    assert list(state) == list(model.state_dict())
    for name, values in model.state_dict().items():
        torch.testing.assert_close(state[name], values, rtol=1e-4, atol=1e-5, msg=name)
    model.load_state_dict(state, strict=True)
    if make is gpt2:
        assert state["lm_head.weight"] is state["transformer.wte.weight"]


@pytest.mark.slow
@pytest.mark.parametrize("machines", [1, 2, 3])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_the_loss_of_a_model_that_is_given_labels(
    kind: str, machines: int, transformers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model moves the labels by one word, and its scores are the output."""
    model = gpt2(transformers) if kind == "gpt2" else llama(transformers, monkeypatch)
    draw = torch.Generator().manual_seed(1)
    words, labels = torch.randint(0, 11, (2, BATCH, 6), generator=draw)

    def loss(found: Any) -> torch.Tensor:
        """The model's, in float64: it computes it in float32."""
        moved = nn.functional.cross_entropy(found.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        torch.testing.assert_close(moved.float(), found.loss)
        return moved

    net = check_own(model, {"labels": labels, "input_ids": words}, machines=machines, loss_of=loss)
    assert net.arguments == ("input_ids", "labels") and net.output.shape == (6, 11)
