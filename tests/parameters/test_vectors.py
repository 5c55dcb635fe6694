"""Operations on named vectors, against the same sums in float64 and against exact ones."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.engine.parameters import ShardSnapshot, Vector, VectorStore, vectors
from partita.engine.parameters.vector_loops import add_product, add_products, add_term, add_terms
from partita.engine.protocol.commands import (
    Combine,
    Dots,
    Evaluate,
    Largest,
    Multiply,
    Operation,
    Swap,
    axpy,
    copy,
    dot,
    n_scalars,
    reads,
    scale,
    writes,
    zero,
)

NAMES = ("x", "g", "s_0", "d")


def store(n: int = 7, *, dtype: str = "float32", seed: int = 0) -> VectorStore:
    random = np.random.default_rng(seed)
    return VectorStore(
        random.normal(size=n), {name: random.normal(size=n) for name in NAMES[1:]}, dtype=dtype
    )


def reference(operation: Operation, numbers: dict[str, Vector], dtype: str) -> list[float]:
    """Done naively in float64; sums of products are exact, rounded once."""
    wide = {name: vector.astype(np.float64) for name, vector in numbers.items()}
    match operation:
        case Combine(to=to, terms=terms):
            total = np.zeros_like(wide["x"])
            for factor, name in terms:
                total = total + factor * wide[name]
            numbers[to] = total.astype(dtype)
            return []
        case Multiply(to=to, left=left, right=right):
            numbers[to] = (wide[left] * wide[right]).astype(dtype)
            return []
        case Swap(one=one, other=other):
            numbers[one], numbers[other] = numbers[other], numbers[one]
            return []
        case Dots(left=lefts, right=rights):
            return [math.fsum(wide[a] * wide[b]) for a in lefts for b in rights]
        case Largest(vector=name):
            return [float(np.abs(wide[name]).max())]
    raise AssertionError(operation)


names = st.sampled_from(NAMES)
factors = st.one_of(st.just(1.0), st.just(-1.0), st.floats(-3, 3))
operations = st.one_of(
    st.builds(Combine, names, st.lists(st.tuples(factors, names), max_size=6).map(tuple)),
    st.builds(Multiply, names, names, names),
    st.builds(Swap, names, names),
    st.builds(Dots, st.lists(names, max_size=4).map(tuple), st.lists(names, max_size=4).map(tuple)),
    st.builds(Largest, names),
)


@given(st.lists(operations, max_size=12), st.sampled_from(["float32", "float64"]), st.integers(1, 40))
def test_operations_in_a_row_are_what_they_are_in_float64(drawn: list[Operation], dtype: str, n: int) -> None:
    """Covers targets among the terms, vectors named twice, and no terms at all."""
    held = store(n, dtype=dtype)
    numbers = {name: held.vector(name).copy() for name in held.names()}
    for operation in drawn:
        before = {name: vector.copy() for name, vector in numbers.items()}
        expected = reference(operation, numbers, dtype)
        found = held.execute(operation)
        assert len(found) == n_scalars(operation)
        size = max(float(np.abs(before[name]).max()) for name in NAMES)
        assert found == pytest.approx(expected, rel=1e-12, abs=1e-14 * n * size**2)
        for name in NAMES:
            if name in writes(operation):
                error = 2 * np.finfo(dtype).eps * np.abs(numbers[name]) + 1e-14 * size**2
                assert (np.abs(held.vector(name) - numbers[name]) <= error).all()
                numbers[name] = held.vector(name).copy()  # a rounding may go either way at a tie
            else:
                assert held.vector(name).tobytes() == before[name].tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    """Numbers on both sides of every border, and a last block that is shorter."""
    asked: list[Operation] = [
        Combine("d", ((0.3, "x"), (-1.7, "g"), (2.5, "d"))),
        axpy("x", 0.25, "d"),
        Dots(("g", "x"), NAMES),
        scale("g", 1 / 3),
        Largest("g"),
    ]
    whole = store(1000, dtype=dtype)
    expected = [whole.execute(operation) for operation in asked]
    monkeypatch.setattr(vectors, "_BLOCK", 64)
    cut = store(1000, dtype=dtype)
    assert [cut.execute(operation) for operation in asked] == [
        pytest.approx(row, rel=1e-12) for row in expected
    ]
    for name in NAMES:
        assert cut.vector(name).tobytes() == whole.vector(name).tobytes(), "not even a rounding"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_was_compiled_before_is_not_compiled_again(dtype: str) -> None:
    """Each loop there is, whatever is asked then."""
    loops = (add_product, add_products, add_term, add_terms)
    vectors.compile_operations(dtype)
    made = [len(loop.signatures) for loop in loops]  # type: ignore[attr-defined]
    held = store(dtype=dtype)
    for left in range(5):
        held.execute(Dots(NAMES[:left], NAMES))
    for n in range(9):
        held.execute(Combine("new", ((0.5, "x"),) * n))
    assert [len(loop.signatures) for loop in loops] == made  # type: ignore[attr-defined]
    assert min(made) > 0


def test_vectors_that_are_swapped_stay_where_they_are() -> None:
    """One that is not there is zeros; a name that cannot be changes nothing."""
    held = store()
    x, g = held.vector("x"), held.vector("g")
    held.execute(Swap("x", "g"))
    assert held.vector("x") is g and held.vector("g") is x
    held.execute(Swap("g", "new"))
    assert held.vector("new") is x and held.vector("g").tolist() == [0.0] * 7
    assert held.names() == (*NAMES, "new"), "x is the first"
    for one, other in (("fresh", "a b"), ("a b", "fresh")):
        with pytest.raises(ValueError, match="'a b' cannot name a vector"):
            held.execute(Swap(one, other))
    assert held.names() == (*NAMES, "new")


def test_what_is_stored_in_float32_adds_up_in_float64() -> None:
    held = VectorStore(np.full(4, 1e8, np.float32), {"small": np.full(4, 1.0, np.float32)})
    held.execute(Combine("sum", ((1.0, "x"), (1.0, "small"), (-1.0, "x"))))
    assert held.vector("sum").tolist() == [1.0] * 4, "in float32 the 1 would be lost"
    many = VectorStore(np.full(1 << 20, 0.1, np.float32))
    assert many.execute(dot("x", "x")) == [pytest.approx((1 << 20) * float(np.float32(0.1)) ** 2, rel=1e-11)]


def test_a_copy_a_zero_and_a_new_vector() -> None:
    held = store()
    held.execute(copy("new", "x"))
    assert held.vector("new").tobytes() == held.vector("x").tobytes()
    assert not np.shares_memory(held.vector("new"), held.vector("x"))
    held.execute(zero("x"))
    assert held.vector("x").tolist() == [0.0] * 7
    assert held.vector("new").any()
    assert held.names() == (*NAMES, "new")


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_overflow_shows_in_the_scalars_without_a_warning(number: float) -> None:
    held = VectorStore(np.array([1.0, number, -3.0], np.float32))
    same = pytest.approx([abs(number)], nan_ok=True)
    assert held.execute(Largest("x")) == same
    assert held.execute(dot("x", "x")) == same
    held.execute(Combine("far", ((1e300, "x"), (-1e300, "x"))))
    held.execute(scale("x", 1e300))
    assert not np.isfinite(held.vector("x")).any()


def test_an_empty_shard_adds_nothing() -> None:
    held = VectorStore(np.empty(0))
    assert held.execute(Largest("x")) == [0.0]
    assert held.execute(Dots(("x",), ("x", "x"))) == [0.0, 0.0]
    held.execute(axpy("x", 2.0, "x"))
    assert held.vector("x").size == 0


@pytest.mark.parametrize(
    "operation", [copy("y", "gone"), Multiply("y", "x", "gone"), Dots(("x",), ("gone",)), Largest("gone")]
)
def test_what_was_never_written_cannot_be_read(operation: Operation) -> None:
    held = store()
    assert "gone" in reads(operation)
    with pytest.raises(ValueError, match=r"^there is no vector 'gone' to read, only 'x', 'g', 's_0', 'd'; "):
        held.execute(operation)
    assert held.names() == NAMES, "nothing has changed"


def test_names_and_operations_that_are_not_for_vectors() -> None:
    held = store()
    for name in ("", "a b", "a/b", "é"):
        with pytest.raises(ValueError, match="cannot name a vector; use letters, digits and underscores"):
            held.execute(zero(name))
    with pytest.raises(ValueError, match=r"^Evaluate is not for vectors alone"):
        held.execute(Evaluate(()))
    assert held.names() == NAMES


def test_a_store_goes_back_to_a_snapshot() -> None:
    held = store(dtype="float64")
    before = {name: held.vector(name).copy() for name in NAMES}
    kept = held.snapshot()
    held.execute(Combine("x"))
    held.execute(scale("g", 2.0))
    held.execute(copy("later", "g"))
    for _ in range(2):
        held.restore(kept)
        assert held.names() == NAMES, "what was made since is gone"
        assert all(held.vector(name).tobytes() == before[name].tobytes() for name in NAMES)
        held.execute(zero("x"))
    narrow = VectorStore(np.full(7, 1e300), dtype="float32")
    assert np.isinf(narrow.vector("x")).all(), "what has run away in another precision is no warning"
    with pytest.raises(ValueError, match=r"^vector 'g' is \(3,\); all vectors must be \(7,\)$"):
        held.restore(ShardSnapshot(np.ones(7), {"g": np.ones(3)}))
    assert held.vector("d").tobytes() == before["d"].tobytes()


steps = st.one_of(
    operations.map(lambda operation: ("do", operation)),
    st.tuples(st.just("settle"), names, st.integers(0, 9)),
    st.just(("snapshot",)),
    st.tuples(st.just("release"), st.integers(0, 3)),
    st.tuples(st.just("back"), st.integers(0, 3)),
)


@given(st.lists(steps, max_size=30))
def test_a_snapshot_keeps_its_bits_whatever_follows_and_costs_what_is_written_meanwhile(
    drawn: list[tuple],  # type: ignore[type-arg]
) -> None:
    """Against a naive store that copies everything. Nothing is allocated while nothing is kept."""
    held, naive = store(10), store(10)
    kept: list[tuple[ShardSnapshot, dict[str, bytes]]] = []
    for step in drawn:
        before = [held.vector(name) for name in NAMES]
        match step:
            case "do", operation:
                assert str(held.execute(operation)) == str(
                    naive.execute(operation)
                )  # a NaN is as good as another
            case "settle", name, border:
                numbers = np.linspace(-1, border, 10, dtype=np.float32)
                for part in (slice(0, border), slice(border, 10)):
                    held.target(name)[part] = naive.target(name)[part] = numbers[part]
            case ("snapshot",):
                kept.append((held.snapshot(), bits(held)))
            case "release", n if n < len(kept):
                held.release(kept.pop(n)[0])
            case "back", n if n < len(kept):
                held.restore(kept[n][0])
                naive.restore(kept[n][0])
        assert bits(held) == bits(naive)
        assert held.names() == NAMES
        for snapshot, expected in kept:
            found = {"x": snapshot.values, **snapshot.state}
            assert {name: vector.tobytes() for name, vector in found.items()} == expected
        snapshots = [vector for one, _ in kept for vector in (one.values, *one.state.values())]
        in_use = {id(vector) for vector in [*snapshots, *(held.vector(name) for name in NAMES)]}
        assert len(in_use) <= len(NAMES) * (1 + len(kept))
        free = {id(vector) for vector in before} - {id(vector) for vector in snapshots}
        assert free <= {id(held.vector(name)) for name in NAMES}, "written where they lie"


def bits(held: VectorStore) -> dict[str, bytes]:
    return {name: held.vector(name).tobytes() for name in held.names()}


def test_numbers_that_are_no_vector_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^values are int64 \(3,\); use a float32 or float64 vector$"):
        VectorStore(np.arange(3))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^values are float64 \(2, 2\)"):
        VectorStore(np.ones((2, 2)))
