"""Splitting event streams."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from orchestra.providers.sse import EventSplitter, ObjectSplitter, event_data


@given(
    st.lists(st.sampled_from([b"data: {}", b"event: x\ndata: 1", b": ping", b"data: a\ndata: b"]), min_size=1),
    st.sampled_from([b"\n\n", b"\r\n\r\n", b"\n\r\n", b"\r\n\n"]),
    st.data(),
)
def test_any_cut_of_the_bytes_gives_the_same_events(events: list[bytes], end: bytes, data: st.DataObject):
    stream = b"".join(event + end for event in events)
    splitter, found = EventSplitter(), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        found += splitter.feed(stream[:size])
        stream = stream[size:]
    assert found == [event + end for event in events]
    assert splitter.rest() == b""


def test_the_last_part_is_kept_until_asked_for():
    splitter = EventSplitter()
    assert splitter.feed(b"data: 1\n\ndata: 2") == [b"data: 1\n\n"]
    assert splitter.rest() == b"data: 2"
    assert splitter.rest() == b""


def test_data_of_an_event():
    assert event_data(b"event: x\ndata: a\ndata:b\n\n") == b"a\nb"
    assert event_data(b": keep-alive\n\n") is None


NAMES = st.text(alphabet='{}"\\a')
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='{}[]"\\aé,'),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(NAMES, children, max_size=3),
    max_leaves=8,
)


@given(
    st.lists(st.dictionaries(NAMES, JSON, max_size=3), max_size=4),
    st.integers(1, 9),
    st.sampled_from([None, 2]),
)
def test_a_list_is_cut_after_each_of_its_objects(values: list[dict[str, object]], size: int, indent: int | None):
    data = json.dumps(values, indent=indent).encode()
    splitter = ObjectSplitter()
    cut = [piece for at in range(0, len(data), size) for piece in splitter.feed(data[at : at + size])]
    assert [json.loads(piece.strip(b"[, \n")) for piece in cut] == values
    assert b"".join(cut) + splitter.rest() == data
