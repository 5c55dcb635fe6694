"""Every row of the table of differences from PyTorch, the equal ones too, against the installed torch."""

from __future__ import annotations

import pytest

from tests.docs.pages import ROOT
from tests.every_kind import kinds
from tests.truth.differences import (  # noqa: F401 - they register checks
    boltzmann,
    initial,
    layers,
    losses,
    optimizers,
    sequences,
    shapes,
)
from tests.truth.differences.rows import CHECKS, rows


def test_every_row_is_checked() -> None:
    assert sorted(rows()) == sorted(CHECKS)


def test_every_kind_of_layer_has_a_row() -> None:
    text = (ROOT / "docs" / "differences.md").read_text(encoding="utf-8")
    assert {kind.__name__ for kind in kinds() if f"`{kind.__name__}`" not in text} == set()


@pytest.mark.parametrize("what", CHECKS)
def test_a_row_says_what_is(what: str) -> None:
    assert CHECKS[what]() is rows()[what]
