"""Comparison of the text of a layer in a file with that of a layer of today, which may have more settings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import Final

from partita import layers
from partita.layers.layer import Placeholder

_DIGEST: Final = re.compile(r"#[0-9a-f]+")
_TEXT: Final = re.compile(r"(\w+)\((.*)\)( of .*)?", re.DOTALL)
_TODAY: Final = {
    "Given": "Placeholder",
    "LogisticCrossEntropy": "BinaryCrossEntropy",
    "OneAgainstAll": "OneVsRest",
    "SquaredError": "HalfSquaredError",
}
"""Names of layers by those in older files."""

_FORMER: Final = re.compile(rf"^({'|'.join(_TODAY)})(?=\()")


def in_todays_names(text: str) -> str:
    """Returns a text under the name that the layer has today."""
    return _FORMER.sub(lambda match: _TODAY[match[1]], text)


def is_same_layer(found: str, expected: str) -> bool:
    """Returns whether a layer of a file is one of today.

    A setting that the file does not know came later. The layer is the same if it has its default.
    """
    if found == expected:
        return True
    old, new = (_TEXT.fullmatch(text) for text in (found, expected))
    if old is None or new is None or (old[1], old[3]) != (new[1], new[3]):
        return False
    had, has = (dict(_settings(match[2])) for match in (old, new))
    later = has.keys() - had.keys()
    if not later or {name: text for name, text in has.items() if name in had} != had:
        return False
    defaults = _defaults(new[1])
    return all(has[name] == defaults.get(name) for name in later)


def is_same_but_for_digests(found: str, expected: str) -> bool:
    """Returns whether only code or arrays differ."""
    return is_same_layer(_DIGEST.sub("", found), _DIGEST.sub("", expected))


def _settings(text: str) -> Iterator[tuple[str, str]]:
    """Yields the names and the texts of settings: `a=1, b=(2, 3)`."""
    depth, start = 0, 0
    for at, letter in enumerate(f"{text},"):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth:
            name, _, value = text[start:at].strip().partition("=")
            if name:
                yield name, value
            start = at + 1


def _defaults(kind: str) -> dict[str, str]:
    """The texts of the settings' defaults, for a layer of this library."""
    found = Placeholder if kind == Placeholder.__name__ else getattr(layers, kind, None)
    if not (isinstance(found, type) and is_dataclass(found)):
        return {}
    return {one.name: repr(one.default) for one in fields(found) if one.default is not MISSING}
