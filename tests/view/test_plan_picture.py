"""The picture is XML that every viewer reads, and shows each piece, each machine and each message."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.engine.view import svg
from partita.engine.view.layout import GAP, Wiring, packed, ranks_of
from partita.engine.view.palette import Palette
from partita.engine.view.plan_picture import draw_plan
from partita.layers import Add, Conv2D, Dense, Graph, Network, SoftmaxCrossEntropy
from partita.partitioner import Cluster, InputSplit, Plan, Tiles, Whole, partition
from tests.draws import examples
from tests.networks import networks
from tests.plans import plans
from tests.view.reading import SVG, digits, texts, tooltips


def drawn(plan: Plan) -> ElementTree.Element:
    return ElementTree.fromstring(draw_plan(plan))


@settings(max_examples=examples(32))
@given(st.booleans().flatmap(lambda losses: plans(losses=losses, shared=True)))
def test_every_plan_is_drawn_as_xml_with_all_of_its_pieces_and_messages(plan: Plan) -> None:
    root = drawn(plan)
    assert root.tag == f"{SVG}svg"
    written, told = texts(root), tooltips(root)
    assert plan.graph.name in written
    assert {f"#{m}" for m in range(len(plan.cluster))} <= set(written)
    for piece in plan.pieces:
        rows, name = f"{piece.start}:{piece.stop}", plan.cluster.machines[piece.machine].name
        found = re.compile(f"{re.escape(piece.layer)}: rows {rows} of .* on {name}")
        assert sum(found.fullmatch(tip) is not None for tip in told) == 1
    single = [
        tip
        for tip in told
        if re.match(
            r"(activations|gradients|weights|weight gradient|partial sums|summary(?: gradient)?) of ", tip
        )
    ]
    shared = [int(words.split()[0]) for words in written if " messages " in words]
    assert len(single) + sum(shared) == len(plan.messages)


@settings(max_examples=examples(32))
@given(plans(shared=True))
def test_nothing_lies_outside_the_picture(plan: Plan) -> None:
    root = drawn(plan)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for rect in root.iter(f"{SVG}rect"):
        x, y = float(rect.get("x", 0)), float(rect.get("y", 0))
        assert x >= 0 and x + float(rect.attrib["width"]) <= width
        assert y >= 0 and y + float(rect.attrib["height"]) <= height
    places = [(found.attrib["x"], found.attrib["y"]) for found in root.iter(f"{SVG}text")]
    assert len(set(places)) == len(places), "words lie on words"
    for path in (
        found.attrib["d"] for group in root.findall(f"{SVG}g") for found in group.iter(f"{SVG}path")
    ):
        numbers = [float(n) for n in re.findall(r"-?\d+(?:\.\d+)?", path)]
        assert all(0 <= n <= max(width, height) for n in numbers)


def test_the_head_describes_the_plan_and_the_legend_its_machines() -> None:
    written = texts(drawn(digits(2)))
    assert "digits" in written
    (head,) = [words for words in written if "predicted step" in words]
    assert head.startswith("2 machines · batch 32 · float32 · 5,770 parameters · predicted step ")
    assert {"m0", "m1", "2,885", "forward: activations", "backward: gradients"} <= set(written)
    assert {"image 8×8×1", "digit 1", "0:3", "3:6", "0:5", "5:10"} <= set(written)


def test_names_that_mean_something_in_xml_are_escaped() -> None:
    written = texts(drawn(digits(2, names="<&'\"{}>")))
    assert "<&'\"0>" in written


def test_states_are_drawn_in_one_stroke_and_errors_dashed() -> None:
    tips = [(path.find(f"{SVG}title"), path) for path in drawn(digits(2)).iter(f"{SVG}path")]
    dashed = {
        (tip.text.startswith(("errors", "gradient")), "stroke-dasharray" in path.attrib)
        for tip, path in tips
        if tip is not None and tip.text
    }
    assert dashed == {(True, True), (False, False)}


def test_a_larger_message_is_a_wider_line() -> None:
    widths = {
        path.findtext(f"{SVG}title", "").partition(":")[0]: float(path.attrib["stroke-width"])
        for path in drawn(digits(2)).iter(f"{SVG}path")
        if path.find(f"{SVG}title") is not None
    }
    assert widths["activations of hidden, rows 0"] > widths["summary of loss"]


def test_many_messages_share_a_rail() -> None:
    plan = digits(6)
    written = texts(drawn(plan))
    between = [message for message in plan.messages if str(message.buffer) in ("hidden", "hidden<scores")]
    expected = [
        f"{sum(m.direction == direction for m in between)} messages {direction}"
        for direction in ("forward", "backward")
    ]
    shared = [words.partition(",")[0] for words in written if " messages " in words]
    assert sorted(shared) == sorted([*expected, "30 messages of its summary"])


@pytest.mark.parametrize("machines", [2, 16])
def test_partial_sums_of_an_input_split_have_a_name_and_a_place(machines: int) -> None:
    """Sums and errors below one bar: lines of both, or rails of both, one below the other."""
    net = Network("two")
    hidden = Dense(32, activation="tanh", name="hidden")(net.input("x", shape=4))
    net.loss = SoftmaxCrossEntropy(name="loss")(Dense(16, name="scores")(hidden), net.target("digit"))
    cuts = {"scores": InputSplit(machines, replicated=True)}
    plan = partition(net, Cluster.local(machines), batch=8, strategy="balanced", cuts=cuts, micro_batches=4)
    root = drawn(plan)
    written, tips = texts(root), tooltips(root)
    assert {"forward: activations and partial sums", "a line is for all 4 micro-batches"} <= set(written)
    assert f"scores: rows 0:16 of 16, from weights for inputs 0:{32 // machines} on local0" in tips
    messages = len(plan.messages) // 4
    lines = [tip for tip in tips if tip.startswith(("partial sums of scores", "gradients of scores"))]
    said = [words.partition(",")[0] for words in written if " messages of its " in words]
    if machines == 2:
        assert len(lines) == messages == 3 and said == [] and "0:16/0:16" in written
    else:
        assert lines == [] and sorted(said) == [
            "15 messages of its gradients",
            "240 messages of its partial sums",
        ]
        rails = [p.attrib["d"] for p in root.iter(f"{SVG}path") if p.get("stroke-linecap") == "round"]
        assert len(rails) == len({rail.partition("H")[0] for rail in rails}) == 2


def test_what_skips_a_layer_passes_beside_it() -> None:
    net = Network("skip")
    first = Dense(4, name="first")(net.input("x", shape=3))
    Add(name="both")(Dense(4, name="middle")(first), first)
    cuts = {"first": Whole(0), "middle": Whole(0), "both": Whole(1)}
    root = drawn(partition(net, Cluster.local(2), batch=1, cuts=cuts, strategy="balanced"))
    (line,) = [p for p in root.iter(f"{SVG}path") if "activations of first" in p.findtext(f"{SVG}title", "")]
    (bar,) = [g for g in root.iter(f"{SVG}g") if g.findtext(f"{SVG}title", "").startswith("middle: rows")]
    rect = bar.find(f"{SVG}rect")
    assert rect is not None
    right = float(rect.attrib["x"]) + float(rect.attrib["width"])
    assert line.attrib["d"].count("C") == 3
    assert max(float(n) for n in re.findall(r"[ C](\d+(?:\.\d+)?) ", line.attrib["d"])) > right


@given(networks())
def test_every_layer_lies_above_its_inputs(graph: Graph) -> None:
    given_names = frozenset(grid.name for grid in graph.grids if grid.is_placeholder)
    ranks = ranks_of(Wiring({grid.name: grid.sources for grid in graph.grids}, given_names))
    for grid in graph.grids:
        assert all(ranks[source] < ranks[grid.name] for source in grid.sources)
    assert min(ranks.values()) == 0


@given(
    st.lists(st.tuples(st.floats(-500, 500), st.floats(0.01, 4), st.floats(1, 99)), min_size=1, max_size=7)
)
def test_neighbours_are_packed_without_touching(items: list[tuple[float, float, float]]) -> None:
    wishes, weights, halves = map(list, zip(*items, strict=True))
    places = packed(wishes, weights, [(half, half) for half in halves])
    for k in range(len(places) - 1):
        assert places[k + 1] - places[k] >= halves[k] + GAP + halves[k + 1] - 1e-6
    if len(places) == 1:
        assert places == wishes


@pytest.mark.parametrize("machines", [1, 8, 9, 16, 17, 64, 81, 300])
def test_machines_can_be_told_apart_and_text_can_be_read_on_them(machines: int) -> None:
    palette = Palette(tuple(map(str, range(machines))))
    for machine in range(machines):
        assert abs(svg.luminance(palette.colour(machine)) - svg.luminance(palette.ink(machine))) > 0.3
        assert svg.luminance(palette.line(machine)) < 0.7
    if machines <= 64:
        looks = {(palette.colour(machine), palette.striped(machine)) for machine in range(machines)}
        assert len(looks) == machines
    defined = {f"url(#{name})" for name in re.findall(r'id="(stripes\d+)"', "".join(palette.definitions()))}
    assert defined == {palette.fill(m) for m in range(machines) if palette.striped(m)}


def test_a_plan_is_written_to_a_file(tmp_path: Path) -> None:
    plan = digits(2)
    target = plan.draw(tmp_path / "plan.svg")
    assert target.read_text(encoding="utf-8") == draw_plan(plan)


def test_words_beside_maps_of_tiles_do_not_touch() -> None:
    net = Network("branches")
    image = net.input("image", shape=(8, 8, 1))
    arms = [Conv2D(2, kernel_size=3, padding="same", name=name)(image) for name in ("left", "right")]
    top = Conv2D(2, kernel_size=3, padding="same", name="top")(Add(name="both")(*arms))
    net.loss = SoftmaxCrossEntropy(name="loss")(Dense(4, name="scores")(top), net.target("digit"))
    cuts = {name: Tiles((0, 1, 2, 3), (2, 2)) for name in ("left", "right", "both", "top")}
    root = drawn(partition(net, Cluster.local(4), batch=4, cuts=cuts, strategy="balanced"))
    spans = []
    for words in root.iter(f"{SVG}text"):
        if " messages " in (words.text or ""):
            x, y = float(words.attrib["x"]), float(words.attrib["y"])
            spans.append((x, x + svg.text_width(words.text or "", size=11), y))
    bars = [g.find(f"{SVG}rect") for g in root.iter(f"{SVG}g") if " on " in g.findtext(f"{SVG}title", "")]
    assert len(spans) >= 8
    for n, (left, right, y) in enumerate(spans):
        assert all(abs(y - at) > 11 or right < x or left > to for x, to, at in spans[n + 1 :])
        for bar in bars:
            assert bar is not None
            x, top = float(bar.attrib["x"]), float(bar.attrib["y"])
            beside = right < x or left > x + float(bar.attrib["width"])
            assert beside or y - 9 > top + float(bar.attrib["height"]) or y < top
