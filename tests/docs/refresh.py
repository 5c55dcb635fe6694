"""Writes what the code of the documentation prints into its pages, and what it draws into `docs/pictures/`.

    python -m tests.docs.refresh [PAGE ...]

What takes minutes is done for pages that are named. Look at the difference before you commit it: it is what a
reader will see.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from tests.docs.pages import PAGES, PICTURES, ROOT, demo, expected, pictures, play, steps, trimmed


def refresh(page: Path, *, minutes: bool = False) -> None:
    """Replaces all outputs of a page when one of them is not what is printed now: they fit together. And its
    pictures.
    """
    lines = page.read_text(encoding="utf-8").splitlines()
    with tempfile.TemporaryDirectory() as folder:
        found = list(play(page, Path(folder), minutes=minutes))
        for drawn in pictures(Path(folder)):
            shutil.copyfile(drawn, PICTURES / drawn.name)
    if page.name == "README.md":
        found += [(step, demo()) for step in steps(page) if step.code.text == "make demo"]
    stale = []
    for step, printed in sorted(found, key=lambda pair: -pair[0].code.first):
        shown, said = expected(step, printed)
        if step.output is not None:
            lines[step.output.first : step.output.last] = trimmed(printed)
        if shown != said:
            stale.append(step.code.name + ("" if step.output else ", which no output follows"))
    if stale:
        print(f"refreshed {page.relative_to(ROOT)}: {', '.join(stale)}")
        page.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main(arguments: list[str]) -> None:
    """Refreshes the named pages, or all of them."""
    for page in [ROOT / name for name in arguments] or PAGES:
        refresh(page, minutes=bool(arguments))


if __name__ == "__main__":
    main(sys.argv[1:])
