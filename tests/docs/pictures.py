"""The picture of the data flow, which is drawn by hand, and the folders that it must name."""

from __future__ import annotations

from xml.etree import ElementTree

from tests.docs.pages import PICTURES, ROOT

FLOW = PICTURES / "data_flow.svg"

ROOMS = ("layers", "partitioner", "engine")
BESIDE = ("examples", "tests", "docs", "benchmarks")


def folders_drawn() -> dict[str, str]:
    """Each folder that the picture of the data flow names, and the text that it stands under."""
    texts = ElementTree.parse(FLOW).iter("{http://www.w3.org/2000/svg}text")
    return {text.attrib["data-folder"]: text.text or "" for text in texts if "data-folder" in text.attrib}


def folders_of_the_flow() -> set[str]:
    """The rooms, the folders in them, and what lies beside them."""
    return {folder for folder in folders_of_the_tree() if folder.count("/") < 2}


def folders_of_the_tree() -> set[str]:
    """Every folder with modules in the three rooms, and what lies beside them."""
    modules = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    found = {path.parent for path in modules if "__pycache__" not in path.parts}
    return {str(folder.relative_to(ROOT)) for folder in found} | set(BESIDE)
