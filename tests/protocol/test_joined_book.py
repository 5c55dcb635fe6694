"""The book of joined work: whatever the views, each example of an epoch is done once in what counts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from partita.engine.protocol.joined_book import JoinedBook
from partita.engine.protocol.views import JoinedBatches

VIEWS = st.lists(
    st.tuples(st.integers(1, 4), st.floats(0, 1), st.booleans(), st.booleans(), st.integers(0, 12)),
    max_size=8,
)


@given(examples=st.integers(1, 30), batch=st.integers(1, 6), start=st.integers(0, 20), views=VIEWS)
def test_views_go_on_where_the_one_before_is_left(
    examples: int, batch: int, start: int, views: list[tuple[int, float, bool, bool, int]]
) -> None:
    """Forward within what was leased, or back to a step of an older view, by the positions of the steps."""
    book, step, units = JoinedBook(JoinedBatches(examples, batch), start), 0, start
    at, known = {0: start}, 0  # the position of every step that counts, and the first one that may come again
    for replicas, share, goes_back, stops, more in views:
        units += more
        assert book.extend(units) == (book.free > 0)
        leased = book.renew(step, replicas, stops=stops)
        book.validate()
        assert leased.start == at[step] and (leased.stop == at[step] if stops else leased.stop >= units)
        units = max(units, leased.stop)
        assert book.done.size == leased.start and not (book.free and not stops)
        at = {one: position for one, position in at.items() if one <= step}
        for one in range(step, leased.end):
            at[one + 1] = book.batches.after(at[one], replicas)
        assert at[leased.end] == leased.stop
        assert all(leased.unit(one) == at[one] for one in range(step, leased.end))
        assert book.position(step) == at[step]
        book.forget(known)  # where no view goes back behind it, nothing changes
        assert all(book.position(one) == at[one] for one in range(known, leased.end))
        step = known + int(share * (step - known)) if goes_back else step + int(share * (leased.end - step))
        known = (known + step) // 2 if stops else known
