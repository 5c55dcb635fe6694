"""Parsing of pictures for tests: the words, the tooltips and the positions in an SVG file."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from partita.layers import Dense, LocallyConnected2D, Network, SoftmaxCrossEntropy
from partita.partitioner import Cluster, Machine, Plan, partition

SVG = "{http://www.w3.org/2000/svg}"


def texts(root: ElementTree.Element) -> list[str]:
    """The words that are seen, without tooltips; of a line in several looks, each by itself."""
    found = [*root.iter(f"{SVG}text"), *root.iter(f"{SVG}tspan")]
    words = ((one.text or "") + "".join(c.tail or "" for c in one) for one in found)
    return [one for one in words if one]


def tooltips(root: ElementTree.Element) -> list[str]:
    return [found.text or "" for found in root.iter(f"{SVG}title")]


def shapes(root: ElementTree.Element) -> dict[str, ElementTree.Element]:
    """Each element that has a tooltip, by its words."""
    return {
        found.findtext(f"{SVG}title", ""): found
        for found in root.iter()
        if found.find(f"{SVG}title") is not None
    }


def style(shape: ElementTree.Element) -> dict[str, str]:
    """Style that matplotlib has written into the attribute `style`."""
    pairs = (entry.split(":", 1) for entry in shape.get("style", "").split(";") if entry.strip())
    return {name.strip(): value.strip() for name, value in pairs}


def numbers(path: ElementTree.Element) -> list[float]:
    """All coordinates of a path."""
    return [float(n) for n in re.findall(r"-?\d+(?:\.\d+)?", path.attrib["d"])]


def box(shape: ElementTree.Element) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of a rectangle, or of a path of straight lines."""
    if shape.tag == f"{SVG}rect":
        x, y, width, height = (float(shape.attrib[name]) for name in ("x", "y", "width", "height"))
        return x, y, x + width, y + height
    xs, ys = numbers(shape)[::2], numbers(shape)[1::2]
    return min(xs), min(ys), max(xs), max(ys)


def digits(machines: int, *, names: str = "m{}") -> Plan:
    """A small network over machines of these names."""
    net = Network("digits")
    hidden = LocallyConnected2D(8, kernel_size=3, name="hidden")(net.input("image", shape=(8, 8, 1)))
    net.loss = SoftmaxCrossEntropy(name="loss")(Dense(10, name="scores")(hidden), net.target("digit"))
    cluster = Cluster(tuple(Machine(names.format(m)) for m in range(machines)))
    return partition(net, cluster, batch=32, strategy="balanced")
