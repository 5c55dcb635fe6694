"""The repeated operations after a checkpoint: enough, and no evaluation without an effect."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from partita.engine.protocol.commands import (
    Combine,
    Dots,
    Evaluate,
    Largest,
    Multiply,
    Operation,
    Request,
    Segment,
    Swap,
    axpy,
    copy,
)
from partita.engine.protocol.recovery import still_needed

NAMES = ["x", "g", "h", "d"]
names = st.sampled_from(NAMES)
operations: st.SearchStrategy[Operation] = st.one_of(
    st.builds(
        Combine, names, st.lists(st.tuples(st.sampled_from([1.0, 2.0, -3.0]), names), max_size=3).map(tuple)
    ),
    st.builds(Multiply, names, names, names),
    st.builds(Swap, names, names),
    st.builds(lambda name: Dots((name,), NAMES[:2]), names),  # type: ignore[arg-type]
    st.builds(Largest, names),
)
evaluations = st.lists(st.sampled_from(["g", "h"]), min_size=1, max_size=2, unique=True).map(
    lambda found: Evaluate(tuple(Segment(name, n, 1) for n, name in enumerate(found)))
)
requests: st.SearchStrategy[Request] = st.tuples(
    st.lists(operations, max_size=3), st.none() | evaluations, st.lists(operations, max_size=3)
).map(lambda found: (*found[0], *([found[1]] if found[1] else []), *found[2]))


def do(request: Request, vectors: dict[str, int]) -> None:
    """Each vector is one whole number, modulo a prime: what differs is seen."""
    for operation in request:
        match operation:
            case Combine(to=to, terms=terms):
                vectors[to] = sum(int(factor) * vectors[name] for factor, name in terms) % 1000003
            case Multiply(to=to, left=left, right=right):
                vectors[to] = vectors[left] * vectors[right] % 1000003
            case Swap(one=one, other=other):
                vectors[one], vectors[other] = vectors[other], vectors[one]
            case Evaluate(segments=segments):
                for segment in segments:
                    vectors[segment.vector] = (31 * vectors["x"] + 7 * segment.first + 1) % 1000003


@given(st.lists(requests, max_size=8), st.none() | requests)
def test_what_is_done_again_leads_to_the_same(done: list[Request], following: Request | None) -> None:
    whole = {name: 11 + n for n, name in enumerate(NAMES)}
    again = dict(whole)
    for request in done:
        do(request, whole)
    for request in still_needed(done, following):
        do(request, again)
    if following is not None:
        do(following, whole)
        do(following, again)
    assert whole == again


@given(st.lists(requests, max_size=8), st.none() | requests)
def test_it_is_never_more_than_was_done(done: list[Request], following: Request | None) -> None:
    needed = [operation for request in still_needed(done, following) for operation in request]
    everything = iter(operation for request in done for operation in request)
    assert all(any(operation is other for other in everything) for operation in needed)
    assert not any(isinstance(operation, Dots | Largest) for operation in needed)


def test_in_a_line_search_no_evaluation_is_done_again() -> None:
    def trial(step: float) -> Request:
        point = Combine("x", ((1.0, "before"), (step, "d")))
        return point, Evaluate((Segment("g", 0, 4),)), Dots(("g",), ("d",))

    begun: Request = (copy("before", "x"), Combine("d", ((-1.0, "g"),)))
    done = [begun, trial(1.0), trial(0.5), trial(0.25)]
    assert still_needed(done, trial(0.125)) == [begun]
    # Once the trial is accepted, its gradient counts, and no other's.
    accepted: Request = (axpy("y", 1.0, "g"),)
    assert still_needed(done, accepted) == [begun, trial(0.25)[:2]]


def test_vectors_that_change_names_are_followed() -> None:
    """The older of two gradients is wanted by its new name, and the newer one is not."""

    def trial(first: int) -> Request:
        return (Evaluate((Segment("g", first, 4),)),)

    done = [trial(0), (Swap("g", "before"),), trial(1)]
    assert still_needed(done, (*trial(2), Dots(("g",), ("before",)))) == done[:2]
    assert still_needed(done, (Swap("g", "before"), *trial(2), copy("before", "g"))) == []
