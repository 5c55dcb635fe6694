"""What Hypothesis draws: a few examples in `make test`, the same ones each time; sixteen times as many in
`make slow`, new ones each time. So a change is not refused for what chance has found elsewhere.
"""

from __future__ import annotations

from typing import Final

from hypothesis import settings

USUAL: Final = 12
"""The examples of a test that says nothing else; `examples` are given in proportion."""

HOUSE: Final = 6
"""Those in `make test`."""


def register_profiles() -> None:
    """Makes `house` the profile; `--hypothesis-profile=thorough` takes the other one.

    Cores that compile kernels inside a test are noisy: its time says nothing, so examples have no deadline.
    """
    settings.register_profile("house", deadline=None, max_examples=HOUSE, print_blob=True, derandomize=True)
    settings.register_profile(
        "thorough", settings.get_profile("house"), max_examples=8 * USUAL, derandomize=False
    )
    settings.load_profile("house")


def examples(number: int) -> int:
    """`max_examples` of a test that needs so many where others have `USUAL`."""
    found: int = settings.default.max_examples
    return max(number * found // USUAL, 1)
