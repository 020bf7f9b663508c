"""The heap against a sorted list."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.policies.heap import Heap

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.integers(0, 9)),
        st.tuples(st.just("pop"), st.just(0)),
        st.tuples(st.just("discard"), st.integers(0, 99)),
    )
)


@given(STEPS)
def test_it_behaves_as_a_sorted_list(steps):
    heap, entries, model = Heap(), [], []
    for number, (step, value) in enumerate(steps):
        if step == "push":
            entries.append((heap.push(value, number), (value, number)))
            model.append((value, number))
        elif step == "pop" and model:
            assert heap.pop() == min(model)[1]
            model.remove(min(model))
        elif step == "discard" and entries:
            entry, key = entries[value % len(entries)]
            assert heap.discard(entry) is (key in model)
            model = [other for other in model if other != key]
        assert len(heap) == len(model)
        assert heap.first() == (min(model)[1] if model else None)
        assert len(heap._run) + len(heap._heap) <= 2 * len(model) + 8, "husks pile up"


def test_an_empty_heap_has_nothing_to_pop():
    heap = Heap()
    heap.discard(heap.push(1.0, "gone"))
    with pytest.raises(IndexError):
        heap.pop()


def test_a_discarded_item_is_let_go_at_once():
    heap = Heap()
    for key in range(100):
        heap.push(key, object())
    entry = heap.push(1000.0, item := object())
    heap.discard(entry)
    assert item not in entry
