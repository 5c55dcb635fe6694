"""Modules of PyTorch in users' files: which is meant, on which inputs, and with which loss."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from partita.engine.cli.loading import UserFile
from partita.engine.cli.planning import Planning
from partita.engine.cli.torch_module import FoundModule, read_input
from partita.engine.cli.torch_options import FromTorch, Networks
from tests.profile import torch_file

Given = Callable[..., Networks]
WORDS = ("words=6x5:int64", "bias=6x5x6")


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Given]:
    """Makes the network of a copy of the file, with lines added."""
    monkeypatch.setattr(sys, "path", list(sys.path))

    def make(module: str | None, *inputs: str, loss: str | None = None, lines: str = "") -> Networks:
        file = tmp_path / "users_module.py"
        shutil.copy(torch_file.__file__, file)
        file.write_text(f"{file.read_text()}\n{lines}\n")
        asked = FromTorch(from_torch=True, module=module, input=list(inputs), loss=loss)  # type: ignore[arg-type]
        return asked.networks(UserFile.load(file), Planning())

    yield make
    sys.modules.pop("users_module", None)


def test_a_class_is_called_and_inputs_have_names(given: Given) -> None:
    """Of a module of two inputs, in any order; the batch is theirs."""
    found = given("Words", *reversed(WORDS))
    graph = found.network.graph()
    assert found.planning.batch == 6
    assert [(one.name, one.shape) for one in graph.inputs] == [("words", (5,)), ("bias", (5, 6))]
    assert graph[graph.losses[0]].layer.kind == "SoftmaxCrossEntropy"
    assert graph.targets[0].shape == (5,)
    assert found.remarks == (
        "the loss is a stand-in for the module's own: softmax cross-entropy over the 20 classes of the last "
        "dimension",
    )


@pytest.mark.parametrize(
    ("module", "classes"), [("five", 5), ("Labelled(classes=7)", 7), ("five()", 5), (None, 9)]
)
def test_a_module_is_named_in_the_words_of_the_file(given: Given, module: str | None, classes: int) -> None:
    found = given(module, "3x4", lines="model = Labelled(9)")
    assert isinstance(found.found, FoundModule)
    assert found.found.network.output.shape == (classes,) and found.planning.batch == 3


def test_the_file_may_say_what_the_module_takes(given: Given) -> None:
    found = given("five", lines="def example_args():\n    return torch.zeros(7, 4),\n")
    assert found.planning.batch == 7 and [one.shape for one in found.network.graph().inputs] == [(4,)]


@pytest.mark.parametrize("loss", [None, "squared-error"])
def test_numbers_that_are_no_classes_have_a_squared_error(given: Given, loss: str | None) -> None:
    found = given("Picture", "2x2x4x5", loss=loss)
    graph = found.network.graph()
    assert graph[graph.losses[0]].layer.kind == "HalfSquaredError" and graph.targets[0].shape == (3, 4, 5)
    assert "the squared error of 60 numbers" in found.remarks[0]


def test_a_module_with_its_own_loss_has_that(given: Given) -> None:
    """Its labels are a target, which PyTorch's own ways are given as the module's argument."""
    found = given("OwnLoss", "6x4", "label=6:int64")
    assert isinstance(found.found, FoundModule) and found.planning.batch == 6 and not found.remarks
    graph = found.network.graph()
    assert [one.name for one in (*graph.inputs, *graph.targets)] == ["x", "label"]
    assert found.found.network.arguments == ("x", "label") and found.found.given.stand_in is None


def test_what_stays_whole_is_named_with_its_share_and_the_reason(given: Given) -> None:
    """By the operations of the layers of the network that it became."""
    found = given("waves", "2x4")
    graph = found.network.graph()
    work = {one.name: one.flops_per_node * one.n_nodes for one in graph.computed}
    (kept,) = (one.name for one in graph.computed if one.layer.kind == "Torch")
    share = work[kept] / sum(work.values())
    assert f"{kept} stays whole, on one machine, with {share:.0%} of the operations" in found.remarks[1]
    assert "there are no layers for fft_fft, at " in found.remarks[1] and 0 < share < 0.2


def test_two_examples_are_drawn_whatever_the_batch_is() -> None:
    """Whole numbers are zeros, which every table has a row for."""
    words, numbers = read_input("words=512x3:int64"), read_input("64x2x3")
    assert torch.equal(words.examples, torch.zeros((2, 3), dtype=torch.int64)) and words.name == "words"
    assert numbers.examples.shape == (2, 2, 3) and numbers.examples.dtype == torch.float32


@pytest.mark.parametrize(
    ("module", "inputs", "lines", "sentence"),
    [
        (
            None,
            ["2x4"],
            "",
            "several modules: Words, Picture, Labelled, OwnLoss, Waves; say which with --module NAME",
        ),
        ("nothing", ["2x4"], "", "nothing() in {} returns a int; return a module"),
        ("5", ["2x4"], "", "5 in {} is 5; give a module, or what makes one"),
        (
            "Labelled",
            ["2x4"],
            "",
            "Labelled in {} cannot be called so: missing a required",
        ),
        ("five", [], "", "does not say what the module takes: give --input with the examples of a minibatch"),
        ("five", ["axb"], "", "--input axb is no shape; write for example 32x3x224x224"),
        ("five", ["2x4:int3"], "", "--input 2x4:int3 is no shape"),
        (
            "Total()",
            ["2x4"],
            "class Total(OwnLoss):\n    def forward(self, x):\n        return self.scores(x).mean()",
            "Total.forward returns one number for all examples",
        ),
        ("five", ["y=2x4"], "", "Labelled.forward has no argument 'y'; it has x"),
        ("Words", [WORDS[1]], "", "Words.forward takes 'words' before; give an --input for it, too"),
        ("Words", ["3x5:int64", "4x5x6"], "", "the inputs have 3 and 4 examples in axis 0; give all as many"),
        ("five", [], "example_args = [3]", "example_args in {} are no tensors with examples in axis 0"),
    ],
)
def test_what_is_missing_is_one_sentence(
    given: Given, tmp_path: Path, module: str | None, inputs: list[str], lines: str, sentence: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence.format(tmp_path / "users_module.py"))):
        given(module, *inputs, lines=lines)


def test_without_modules_the_sentence_says_how_to_write_one(tmp_path: Path) -> None:
    file = tmp_path / "no_module.py"
    file.write_text("x = 1\n")
    with pytest.raises(ValueError, match=r"defines no module of PyTorch; say what it is with --module"):
        FromTorch(from_torch=True).networks(UserFile.load(file), Planning())
    with pytest.raises(ValueError, match="--loss describes a module of PyTorch; give --from-torch, too"):
        FromTorch(loss="squared-error").networks(UserFile.load(file), Planning())
