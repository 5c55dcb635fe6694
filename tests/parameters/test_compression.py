"""Compressors against the algorithms of their papers, written densely in float64."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.engine.parameters.compression import (
    BadMessage,
    Compressor,
    Encoder,
    Exact,
    Int8,
    OneBit,
    PowerSGD,
    Shape,
    TopK,
    encoder_of,
)
from partita.engine.parameters.compression.compressor import bounds
from partita.engine.parameters.compression.kept_state import name_of, own_names, state_in

SHAPES = ((5, 7), (7,), (6, 9))
SIZE = 35 + 7 + 54
ALL = (TopK(0.1), TopK(0.1, 0.9), TopK(0.02, warm_up=3), OneBit(), Int8(), PowerSGD(2))
Array = np.ndarray[Any, Any]


class Replicas:
    """Some replicas that exchange the messages of a compressor, step by step."""

    def __init__(self, compress: Compressor, n: int, shapes: Sequence[Shape] = SHAPES) -> None:
        self.compress, self.shapes = compress, shapes
        self.encoders: list[Encoder] = [encoder_of(compress, shapes, np.float64) for _ in range(n)]

    def exchange(self, gradients: Array, step: int) -> Array:
        """The sum that all of them find."""
        found = gradients.copy()
        for turn, kind in enumerate(self.compress.rounds):
            items = self.compress.items(self.shapes, 8, step=step, turn=turn)
            messages = np.full((len(found), items), np.nan)
            for one, own, message in zip(self.encoders, gradients, messages, strict=True):
                one.begin(0)
                one.encode(own, message, step=step, turn=turn, replicas=len(found))
            if kind == "sum":
                messages = messages.sum(axis=0, keepdims=True)
            for one, out in zip(self.encoders, found, strict=True):
                one.decode(messages, out, step=step, turn=turn)
        for one in self.encoders:
            one.commit(step)
        for other in found[1:]:
            assert other.tobytes() == found[0].tobytes(), "replicas differ"
        return found[0]


def gradients_of(n: int, steps: int, size: int = SIZE) -> Array:
    return np.random.default_rng(5).standard_normal((steps, n, size))


@pytest.mark.parametrize("compress", [c for c in ALL if not getattr(c, "momentum", 0)], ids=repr)
def test_nothing_is_lost_what_was_not_sent_is_kept(compress: Compressor) -> None:
    """The sums of all steps, and all residuals, make the sum of all gradients."""
    replicas, gradients = Replicas(compress, 3), gradients_of(3, 6)
    found = sum(replicas.exchange(one, step) for step, one in enumerate(gradients))
    kept = sum(one.state["residual"] for one in replicas.encoders)
    np.testing.assert_allclose(found + kept, gradients.sum(axis=(0, 1)), rtol=1e-12, atol=1e-12)
    assert np.abs(kept).max() > 1e-3, "something was not sent"


def test_deep_gradient_compression_is_algorithm_4_of_its_paper() -> None:
    compress = TopK(0.1, 0.9, clip_norm=2.0)
    replicas, gradients, n = Replicas(compress, 2), gradients_of(2, 8), 2
    u, v = np.zeros((n, SIZE)), np.zeros((n, SIZE))
    tensors = [slice(0, 35), slice(35, 42), slice(42, 96)]
    for step, own in enumerate(gradients):
        total = np.zeros(SIZE)
        for k in range(n):
            most = 2.0 / math.sqrt(n)
            g = own[k] * min(1.0, most / float(np.linalg.norm(own[k])))
            u[k] = 0.9 * u[k] + g
            v[k] += u[k]
            mask = np.zeros(SIZE, bool)
            for tensor in tensors:
                size = tensor.stop - tensor.start
                threshold = np.sort(np.abs(v[k, tensor]))[-math.ceil(0.1 * size)]
                mask[tensor] = np.abs(v[k, tensor]) >= threshold
            total += np.where(mask, v[k], 0)
            u[k][mask] = v[k][mask] = 0
        np.testing.assert_allclose(replicas.exchange(own, step), total, rtol=1e-12, atol=1e-14)


def test_the_share_falls_by_quarters_as_in_the_paper() -> None:
    compress = TopK(0.001, warm_up=10)
    shares = [compress.share_at(step) for step in range(0, 12, 2)]
    np.testing.assert_allclose(shares, [0.25, 0.0625, 0.015625, 0.00390625, 0.001, 0.001])


def test_one_bit_is_the_sign_with_the_mean_size_and_error_feedback() -> None:
    replicas, gradients, e = Replicas(OneBit(), 2), gradients_of(2, 5), np.zeros((2, SIZE))
    for step, own in enumerate(gradients):
        p = own + e
        sent = np.empty_like(p)
        for tensor in (slice(0, 35), slice(35, 42), slice(42, 96)):
            sent[:, tensor] = np.sign(p[:, tensor]) * np.abs(p[:, tensor]).mean(axis=1, keepdims=True)
        e = p - sent
        np.testing.assert_allclose(replicas.exchange(own, step), sent.sum(axis=0), rtol=1e-12, atol=1e-13)


def test_int8_is_within_half_a_step_of_each_number() -> None:
    (own,) = gradients_of(1, 1)
    found = Replicas(Int8(feedback=False), 1).exchange(own, 0)
    for tensor in (slice(0, 35), slice(35, 42), slice(42, 96)):
        step = np.abs(own[0, tensor]).max() / 127
        assert np.abs(found[tensor] - own[0, tensor]).max() <= step / 2 * (1 + 1e-12)


def test_power_sgd_finds_a_matrix_of_its_rank_and_the_best_one_in_time() -> None:
    """One step finds a matrix of the rank; the same gradient again and again leads to the SVD's subspace."""
    draw = np.random.default_rng(2)
    low = draw.standard_normal((12, 2)) @ draw.standard_normal((2, 9))
    found = Replicas(PowerSGD(2), 2, [(12, 9)]).exchange(np.stack([low.ravel() / 3, low.ravel() * 2 / 3]), 0)
    np.testing.assert_allclose(found, low.ravel(), rtol=1e-10, atol=1e-12)
    full = draw.standard_normal((12, 9)) * np.logspace(0, -3, 9)
    replicas = Replicas(PowerSGD(2, feedback=False), 1, [(12, 9)])
    for step in range(30):
        found = replicas.exchange(full.reshape(1, -1), step)
    left, sizes, right = np.linalg.svd(full)
    best = (left[:, :2] * sizes[:2]) @ right[:2]
    np.testing.assert_allclose(found.reshape(12, 9), best, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("compress", ALL, ids=repr)
def test_a_step_that_is_computed_again_begins_with_the_same_state(compress: Compressor) -> None:
    """Also for another step in between, whose message nobody has used."""
    once, again = Replicas(compress, 1, SHAPES), Replicas(compress, 1, SHAPES)
    gradients = gradients_of(1, 3)
    for step, own in enumerate(gradients[:2]):
        once.exchange(own, step)
        again.exchange(own, step)
    lost = np.empty(compress.items(SHAPES, 8, step=2))
    again.encoders[0].encode(gradients[0, 0], lost, step=2, turn=0, replicas=1)
    assert again.exchange(gradients[2], 2).tobytes() == once.exchange(gradients[2], 2).tobytes()
    for name, vector in once.encoders[0].state.items():
        assert vector.tobytes() == again.encoders[0].state[name].tobytes()


def test_a_message_counts_for_its_own_step_alone() -> None:
    (own,), encoder = gradients_of(1, 1), TopK(0.1).encoder(SHAPES, np.float64)
    message = np.empty(TopK(0.1).items(SHAPES, 8))
    encoder.encode(own[0], message, step=4, turn=0, replicas=1)
    encoder.commit(5)
    assert not encoder.state["residual"].any()


@pytest.mark.parametrize(
    ("compress", "expected"),
    [
        (TopK(0.1), (4 + 1 + 6) * (4 + 4)),
        (TopK(1.0), SIZE * 8),
        (TopK(0.001, warm_up=4), (9 + 2 + 14) * 8),
        (OneBit(), 96 // 8 + 3 * 4),
        (Int8(), 96 + 3 * 4),
        (PowerSGD(1), 4 * (5 + 7 + 6)),
        (PowerSGD(3), 4 * (35 + 7 + 6 * 3)),
    ],
    ids=repr,
)
def test_messages_have_the_bytes_of_the_formula(compress: Compressor, expected: int) -> None:
    assert compress.n_bytes(SHAPES, 4) == expected
    assert compress.items(SHAPES, 4) == -(-expected // 4)


@given(st.sampled_from([TopK(0.2), OneBit(), Int8()]), st.binary(min_size=0, max_size=200))
def test_any_bytes_are_a_message_or_refused(compress: Compressor, junk: bytes) -> None:
    """Whatever a member sends of the right size: memory outside of the gradient is never written."""
    shapes = ((3, 5), (4,))
    encoder = compress.encoder(shapes, np.float32)
    message = np.frombuffer(junk.ljust(4 * compress.items(shapes, 4), b"\x01"), np.uint8)
    message = message[: 4 * compress.items(shapes, 4)].copy().view(np.float32)
    memory = np.full(19 + 8, 7.0, np.float32)
    with contextlib.suppress(BadMessage), np.errstate(all="ignore"):
        encoder.decode(message[None], memory[4:-4], step=0, turn=0)
    assert (memory[:4] == 7).all() and (memory[-4:] == 7).all()


@pytest.mark.parametrize("places", [[0, 19], [3, 3], [5, 2]])
def test_places_outside_or_out_of_order_are_refused(places: list[int]) -> None:
    encoder = TopK(0.05).encoder(((3, 5), (4,)), np.float32)
    message = np.zeros(4, np.float32)
    message[2:] = np.array(places, np.uint32).view(np.float32)
    with pytest.raises(BadMessage, match="ascending numbers below 19"):
        encoder.decode(message[None], np.zeros(19, np.float32), step=0, turn=0)


def test_a_gradient_that_is_not_finite_stays_so() -> None:
    """So the update of all replicas reports it."""
    for compress in ALL:
        own = np.ones((1, SIZE))
        own[0, 3] = np.nan
        with np.errstate(all="ignore"):
            assert not np.isfinite(Replicas(compress, 1).exchange(own, 0)).all(), compress


@pytest.mark.parametrize("compress", [*ALL, TopK(0.1, 0.9).alone, PowerSGD(2).alone], ids=repr)
@pytest.mark.parametrize("where", [0, 1, 2])
def test_exact_tensors_go_beside_the_messages_of_the_others(compress: Compressor, where: int) -> None:
    """Their sum is that of all replicas, and the others have the bits of messages without them."""
    shapes = [Exact(shape) if n == where else shape for n, shape in enumerate(SHAPES)]
    start, stop = bounds(SHAPES)[where]
    others = np.r_[0:start, stop:SIZE]
    both, alone = Replicas(compress, 3, shapes), Replicas(compress, 3, compress.encoded(shapes))
    for step, gradients in enumerate(gradients_of(3, 4)):
        found = both.exchange(gradients, step)
        np.testing.assert_array_equal(found[start:stop], sum(gradients)[start:stop])
        assert found[others].tobytes() == alone.exchange(gradients[:, others], step).tobytes()
        for n, one in enumerate(both.encoders):
            for name, vector in alone.encoders[n].state.items():
                assert one.state[name][others].tobytes() == vector.tobytes()
                assert not one.state[name][start:stop].any()
            both.encoders[n] = encoder_of(compress, shapes, np.float64)
            both.encoders[n].restore(one.state)
            both.encoders[n].begin(0)


def test_a_range_may_have_exact_tensors_alone() -> None:
    for compress in ALL:
        replicas, gradients = Replicas(compress, 2, [Exact((5,))]), gradients_of(2, 1, 5)[0]
        np.testing.assert_array_equal(replicas.exchange(gradients, 0), sum(gradients))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"share": 0.0}, "share is 0.0"),
        ({"share": 1.5}, "share is 1.5"),
        ({"share": 0.1, "momentum": 1.0}, "momentum is 1.0"),
        ({"share": 0.1, "momentum": 0.5, "feedback": False}, "without feedback"),
        ({"share": 0.1, "warm_up": 0}, "warm_up is 0"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        TopK(**settings)


@given(st.data())
def test_whatever_is_sent_and_what_is_left_are_all_gradients(data: st.DataObject) -> None:
    """Of one replica alone, in any shapes and sizes; each step goes on from a checkpoint."""
    compress = data.draw(
        st.sampled_from([TopK(0.3), TopK(0.01, warm_up=3), OneBit(), Int8(), PowerSGD(2)])
    ).alone
    sides = st.integers(1, 6)
    shapes = data.draw(st.lists(st.one_of(st.tuples(sides), st.tuples(sides, sides)), min_size=1, max_size=3))
    size, steps = sum(map(math.prod, shapes)), data.draw(st.integers(1, 4))
    numbers = st.floats(-1e3, 1e3).map(lambda x: round(x, 3))
    own = [np.array(data.draw(st.lists(numbers, min_size=size, max_size=size))) for _ in range(steps)]
    encoder, total = compress.encoder(shapes, np.float64), np.zeros(size)
    for step, gradient in enumerate(own):
        message, found = np.empty(compress.items(shapes, 8, step=step)), np.empty(size)
        encoder.encode(gradient, message, step=step, turn=0, replicas=1)
        encoder.commit(step)
        compress.encoder(shapes, np.float64).decode(message[None], found, step=step, turn=0)
        total += found
        state, encoder = encoder.state, compress.encoder(shapes, np.float64)
        encoder.restore(state)
    np.testing.assert_allclose(total + encoder.state["residual"], sum(own), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("replicas", [1, 2, 5])
def test_replicas_share_what_was_not_sent(replicas: int) -> None:
    """All of it, once; and each its own where there are as many as before."""
    draw = np.random.default_rng(3)
    saved = {name_of(name, n): draw.normal(size=4) for name in ("residual", "velocity") for n in range(2)}
    saved |= {name_of("warm_start", n): np.ones(4) for n in range(2)}
    names = [*saved, "sum", "unsent_residual"]
    assert own_names(names) == saved.keys()
    for compress, kept in ((TopK(0.1, 0.9), ("residual", "velocity")), (PowerSGD(1), ("residual",))):
        found = [
            state_in(
                compress,
                names,
                saved.__getitem__,
                replica=n,
                replicas=replicas,
                same_cut=lambda name: replicas < 5,
            )
            for n in range(replicas)
        ]
        for name in kept:
            total = sum(one[name] for one in found)
            np.testing.assert_allclose(total, saved[name_of(name, 0)] + saved[name_of(name, 1)], rtol=1e-12)
            assert replicas != 2 or all((found[n][name] == saved[name_of(name, n)]).all() for n in (0, 1))
        warm = ["warm_start" in one for one in found]
        assert warm == [isinstance(compress, PowerSGD) and replicas < 5] * replicas
