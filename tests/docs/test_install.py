"""The quick start names every extra that a user may install, and the wheel as it is built."""

from __future__ import annotations

import re
import tomllib

from tests.docs.pages import ROOT

OF_THE_CHECKOUT = {"dev", "browser", "benchmarks", "docs"}
"""Extras for tests, figures and pages of this checkout alone."""

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PAGE = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")


def test_every_extra_for_users_has_a_line() -> None:
    named = re.findall(r"^\| `(\w+)` \|", PAGE, flags=re.MULTILINE)
    assert sorted(named) == sorted(set(PROJECT["optional-dependencies"]) - OF_THE_CHECKOUT)


def test_the_wheel_has_the_name_that_is_installed() -> None:
    (wheel,) = re.findall(r"dist/([\w.-]+\.whl)", PAGE)
    assert wheel == f"{PROJECT['name']}-{PROJECT['version']}-py3-none-any.whl"
