"""A plan as one HTML page that needs no other file: numbers, table, pictures, messages by size, memory."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from partita.engine.view import charts
from partita.engine.view.plan_picture import draw_plan
from partita.engine.view.steps import predicted_timeline
from partita.engine.view.timeline import Picture
from partita.layers.text import counted
from partita.partitioner.plan import Plan
from partita.partitioner.text import readable_bytes, readable_seconds

STYLE = """
:root { --ink: #1f2933; --soft: #65717d; --line: #dfe5ea; }
body { margin: 0; background: #f4f6f8; color: var(--ink); line-height: 1.45;
  font-family: Inter, 'Segoe UI', Helvetica, Arial, sans-serif; }
main { max-width: 1320px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { margin: 0 0 2px; font-size: 26px; } h2 { margin: 34px 0 10px; font-size: 17px; }
p { margin: 4px 0 10px; color: var(--soft); font-size: 13px; }
.numbers { display: flex; flex-wrap: wrap; gap: 10px; margin-top: 16px; }
.numbers div { background: #fff; border: 1px solid var(--line); border-radius: 10px; padding: 10px 16px; }
.numbers b { display: block; font-size: 19px; } .numbers span { color: var(--soft); font-size: 12px; }
pre, .card { background: #fff; border: 1px solid var(--line); border-radius: 10px; padding: 14px;
  overflow: auto; margin: 0; } pre { font-size: 12px; line-height: 1.35; max-height: 70vh; }
.card svg { display: block; } .fit svg { max-width: 100%; height: auto; }
label { font-size: 13px; color: var(--soft); } input[type=range] { width: 260px; vertical-align: middle; }
"""
SCRIPT = """
for (const box of document.querySelectorAll('[data-zoom]')) {
  const picture = box.querySelector('svg'), range = document.getElementById(box.dataset.zoom);
  const left = +box.dataset.left, whole = +picture.getAttribute('width'), kept = [];
  for (const e of picture.querySelectorAll('.time *')) {
    const of = name => e.hasAttribute(name) ? +e.getAttribute(name) : null;
    kept.push([e, ['x', 'x1', 'x2'].map(n => [n, of(n)]).filter(p => p[1] !== null),
      e.tagName === 'rect' ? of('width') : null, of('data-room'), of('data-need')]);
  }
  const draw = () => {
    const z = 2 ** range.value, width = left + (whole - left) * z;
    picture.setAttribute('width', width);
    picture.setAttribute('viewBox', `0 0 ${width} ${picture.getAttribute('height')}`);
    picture.querySelector('rect').setAttribute('width', width);
    for (const [e, xs, w, room, need] of kept) {
      for (const [name, x] of xs) e.setAttribute(name, left + (x - left) * z);
      if (w !== null) e.setAttribute('width', w * z);
      if (need !== null) e.setAttribute('visibility', room * z < need ? 'hidden' : 'visible');
    }
  };
  range.addEventListener('input', () => {
    const middle = (box.scrollLeft + box.clientWidth / 2 - left) / (+picture.getAttribute('width') - left);
    draw();
    box.scrollLeft = left + middle * (+picture.getAttribute('width') - left) - box.clientWidth / 2;
  });
  box.addEventListener('scroll', () => picture.querySelectorAll('.stays').forEach(
    e => e.setAttribute('transform', `translate(${box.scrollLeft} 0)`)));
}
"""


def plan_page(plan: Plan, table: str) -> str:
    """The page as HTML.

    Args:
        plan: what it tells of.
        table: the plan as text.
    """
    title = escape(f"{plan.graph.name} over {counted(len(plan.cluster), 'machine')}")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head>\n'
        f"<body><main>{''.join(_parts(plan, table))}</main><script>{SCRIPT}</script></body></html>\n"
    )


def _parts(plan: Plan, table: str) -> Iterator[str]:
    timeline = Picture(predicted_timeline(plan), zoomable=True)
    yield _head(plan)
    yield _section("Who owns what", "", f"<pre>{escape(table)}</pre>")
    yield _section(
        "The network",
        "Parts are colours, messages are lines. Rest the pointer on a piece or a line to read what it is.",
        f'<div class="card fit">{draw_plan(plan)}</div>',
    )
    yield _section(
        "A predicted step",
        "For each machine its kernels, and below them the thread that sends and receives.",
        '<label>enlarge <input type="range" id="zoom" min="0" max="5" step="0.05" value="0"></label>'
        f'<div class="card" data-zoom="zoom" data-left="{timeline.left}">{timeline.text()}</div>',
    )
    yield _section("Messages by size", _messages_said(plan), _card(charts.messages(plan)))
    yield _section(
        "Memory by machine",
        "Full colour: parameters, what the update rule remembers and what Downpour keeps; pale: states, "
        "errors and scratch. A mark: the machine's limit.",
        _card(charts.memory(plan)),
    )


def _head(plan: Plan) -> str:
    """The name, and the numbers that people ask for first."""
    doubt = "" if plan.costs.calibrated else " (uncalibrated)"
    busy = [times.computing_s / plan.playback.step_s for times in plan.playback.times]
    numbers = (
        (readable_seconds(plan.predicted_step_s), f"predicted step{doubt}"),
        (f"{len(plan.cluster)}", "machines"),
        (f"{plan.batch}", f"examples in a batch{_portions(plan)}"),
        (f"{plan.graph.n_parameters:,}", "parameters"),
        (plan.precision, "precision"),
        (
            readable_bytes(sum(m.n_bytes for m in plan.messages)),
            f"in {counted(len(plan.messages), 'message')} a step",
        ),
        (f"{min(busy):.0%} to {max(busy):.0%}", "of the step machines compute"),
        (readable_bytes(max(map(plan.memory_bytes, range(len(plan.cluster))))), "peak memory of a machine"),
    )
    boxes = "".join(f"<div><b>{escape(n)}</b><span>{escape(words)}</span></div>" for n, words in numbers)
    return f'<h1>{escape(plan.graph.name)}</h1><div class="numbers">{boxes}</div>'


def _portions(plan: Plan) -> str:
    return f", as {plan.micro_batches} micro-batches" if plan.micro_batches > 1 else ""


def _section(title: str, said: str, body: str) -> str:
    words = f"<p>{escape(said)}</p>" if said else ""
    return f"<section><h2>{escape(title)}</h2>{words}{body}</section>\n"


def _card(picture: str) -> str:
    return f'<div class="card fit">{picture}</div>'


def _messages_said(plan: Plan) -> str:
    total = readable_bytes(sum(m.n_bytes for m in plan.messages))
    return (
        f"{total} in {counted(len(plan.messages), 'message')} a step; blue are states and partial sums, "
        "orange errors, grey what else machines tell one another."
        if plan.messages
        else "Nothing travels."
    )
