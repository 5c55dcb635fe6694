"""The pictures say what is so: the data flow names the folders of the tree, the plan is the one of today."""

from __future__ import annotations

from pathlib import Path

from tests.docs.pages import ROOT
from tests.docs.pictures import PLAN, folders_drawn, folders_of_the_tree, plan_of_digits


def test_the_data_flow_names_every_folder_and_no_other() -> None:
    drawn = folders_drawn()
    assert set(drawn) == folders_of_the_tree()
    assert all((ROOT / folder).is_dir() for folder in drawn)
    assert [text for folder, text in drawn.items() if text != f"{Path(folder).name}/"] == []


def test_the_drawn_plan_is_the_plan_of_today(tmp_path: Path) -> None:
    """If not: `python -m tests.docs.refresh`."""
    drawn = plan_of_digits().draw(tmp_path / "plan.svg")
    assert PLAN.read_text(encoding="utf-8") == drawn.read_text(encoding="utf-8")
