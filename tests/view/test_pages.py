"""Pages: whole, alone, and saying which is which; drawing needs no more than a picture asks for."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from partita.engine.profile import Profile
from partita.engine.view import theme
from partita.engine.view.bars import FORWARD, draw_messages
from partita.engine.view.pages import plan_page
from partita.engine.view.steps import predicted_gantt
from partita.layers import Dense, Network, SoftmaxCrossEntropy
from partita.partitioner import Cluster, InputSplit, Machine, Whole, partition
from tests.properties.pages import read
from tests.view.reading import SVG, shapes, style, tooltips


def pictures(page: str) -> list[ElementTree.Element]:
    """The pictures of a page, with the areas inside of them."""
    found, depth, start = [], 0, 0
    for tag in re.finditer(r"<svg[\s>]|</svg>", page):
        if tag.group() != "</svg>":
            start = tag.start() if depth == 0 else start
            depth += 1
        else:
            depth -= 1
            found += [ElementTree.fromstring(page[start : tag.end()])] if depth == 0 else []
    return found


def net() -> Network:
    found = Network("net")
    found.loss = SoftmaxCrossEntropy()(Dense(6, name="scores")(found.input("x", shape=3)), found.target("y"))
    return found


def test_the_page_of_a_plan_is_whole_and_needs_no_other_file(tmp_path: Path) -> None:
    cluster = Cluster((Machine("<a>", memory_bytes=10**6), Machine("b")))
    plan = partition(net(), cluster, batch=2, strategy="balanced")
    page = plan.write_page(tmp_path / "plan.html").read_text(encoding="utf-8")
    assert page == plan_page(plan, str(plan))
    reader = read(page)
    assert (reader.tags.count("h2"), reader.tags.count("script")) == (5, 1)
    assert "&lt;a&gt;" in page and "<a>" not in page
    assert "predicted step" in page and "summary of softmax_cross_entropy" in page
    assert len(pictures(page)) == 4


def test_messages_of_all_micro_batches_are_one_bar_of_a_chart() -> None:
    net = Network("two")
    hidden = Dense(12, activation="tanh", name="hidden")(net.input("x", shape=4))
    top = Dense(6, name="top")(hidden)
    net.loss = SoftmaxCrossEntropy(name="loss")(Dense(4, name="scores")(top), net.target("digit"))
    cuts = {"top": InputSplit(2), "scores": Whole(1)}
    plan = partition(net, Cluster.local(2), batch=8, strategy="balanced", cuts=cuts, micro_batches=4)
    root = ElementTree.fromstring(draw_messages(plan))
    told = dict(tip.split(": ", 1) for tip in tooltips(root) if ": " in tip)
    # One machine has half of the activations, and receives half of the errors.
    expected = {
        "partial sums of top": 8,
        "gradients of top": 8,
        "activations of top": 4,
        "gradients of top from scores": 4,
    }
    assert {what: int(words.split()[3]) for what, words in told.items()} == expected
    bars = {told: shape.get("fill") for told, shape in shapes(root).items() if ": " in told}
    blue = {told.partition(":")[0] for told, fill in bars.items() if fill == FORWARD}
    assert blue == {"partial sums of top", "activations of top"}
    assert "batch 8 as 4 micro-batches of 2" in predicted_gantt(plan).subtitle


@pytest.fixture(scope="module")
def page(profile: Profile, tmp_path_factory: pytest.TempPathFactory) -> str:
    return Path(profile.write_page(tmp_path_factory.mktemp("page") / "page.html")).read_text(encoding="utf-8")


def test_the_page_of_a_profile_is_whole_and_needs_nothing_else(page: str, profile: Profile) -> None:
    text = " ".join(read(page).words)
    for point in profile.report().points:
        assert all(str(change) in text for change in point.changes)
    assert "Measured: " in text and "Simulated: " in text


def test_the_curve_marks_what_was_measured_and_what_was_not(
    page: str, profile: Profile, tmp_path: Path
) -> None:
    """A shape for each point, those of one kind alike."""
    marks = {told: style(mark) for told, mark in shapes(pictures(page)[0]).items() if ": " in told}
    fills = {
        kind: {mark["fill"] for told, mark in marks.items() if f", {kind}: " in told}
        for kind in ("measured", "simulated")
    }
    assert [sum(f", {kind}: " in told for told in marks) for kind in fills] == [2, 1]
    assert fills["simulated"] == {theme.PAPER} != fills["measured"] and len(fills["measured"]) == 1
    assert profile.draw(tmp_path / "curve.svg").read_text(encoding="utf-8") in page


def test_measured_and_predicted_steps_share_an_axis(page: str, profile: Profile) -> None:
    steps = pictures(page)[1:]
    measured = sum(point.measured is not None for point in profile.points)
    assert len(re.findall("<p>a measured step of", page)) == measured > 0
    for point in profile.points:
        mine, steps = steps[: 1 if point.measured is None else 2], steps[1 if point.measured is None else 2 :]
        assert len({tuple(ticks(picture)) for picture in mine}) == 1
    assert steps == []


def ticks(picture: ElementTree.Element) -> list[tuple[str, str]]:
    """Words and places on the axis."""
    found = [(text.text or "", text.attrib["x"]) for text in picture.iter(f"{SVG}text")]
    return [(words, x) for words, x in found if re.fullmatch(r"[\d.]+ (s|ms|µs)", words)]


def test_every_bar_lies_in_its_picture(page: str) -> None:
    for picture in pictures(page)[1:]:
        height = float(picture.attrib["height"])
        bars = [shape for shape in shapes(picture).values() if shape.tag == f"{SVG}rect"]
        assert bars
        for bar in bars:
            left, width = (float(bar.attrib[name].removesuffix("%")) for name in ("x", "width"))
            top, high = (float(bar.attrib[name]) for name in ("y", "height"))
            assert left >= 0 and left + width <= 100.1 and top >= 0 and top + high <= height


SILENT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in ('matplotlib', 'jinja2'):
            raise ModuleNotFoundError(f'No module named {name!r}', name=name)
sys.meta_path.insert(0, Missing())
import partita.engine
from partita.layers import Dense, Network
from partita.partitioner import Cluster, partition
net = Network('net')
Dense(4, name='d')(net.input('x', shape=3))
plan = partition(net, Cluster.local(2), batch=1, strategy='balanced')
print(plan.draw('plan.svg'), plan.draw('layer.svg', layer='d'))
print(plan.draw_timeline('step.svg'))
from partita.engine.cli import main
sys.argv = ['partita', 'plan', 'no_such_file.py', '--page', 'page.html']
main()
"""


def test_a_plan_is_drawn_without_matplotlib_and_a_page_says_what_to_install(tmp_path: Path) -> None:
    """Nor does the import of the engine need it, or jinja2."""
    command = [sys.executable, "-c", SILENT]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.stdout.splitlines() == ["plan.svg layer.svg", "step.svg"]
    assert run.returncode == 1, "the command refuses, before it reads the file"
    words = run.stderr.strip().removeprefix("partita: ")
    assert words.startswith(("No module named 'matplotlib", "No module named 'jinja2"))
    assert words.endswith("and charts, timelines and pages need it; run: pip install 'partita[view]'")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["layer.svg", "plan.svg", "step.svg"]
