"""The cheap token estimate."""

from __future__ import annotations

import base64

from hypothesis import given
from hypothesis import strategies as st

from orchestra.providers.estimate import estimate_tokens

IMAGE = "data:image/png;base64," + base64.b64encode(bytes(500_000)).decode()


def test_four_characters_are_a_token():
    assert estimate_tokens("a" * 400) == 100
    assert estimate_tokens([{"role": "user", "content": "a" * 400}]) in range(100, 110)


def test_images_count_by_rule_in_every_shape():
    chat = {"type": "image_url", "image_url": {"url": IMAGE}}
    responses = {"type": "input_image", "image_url": IMAGE}
    for part in (chat, responses, {"anything": IMAGE}):
        assert 500 < estimate_tokens([{"role": "user", "content": [part]}]) < 5000
    low = {"type": "image_url", "image_url": {"url": IMAGE, "detail": "low"}}
    assert estimate_tokens(low) == 85


def test_sound_and_files_do_not_count_by_their_length():
    for part in (
        {"type": "input_audio", "input_audio": {"data": IMAGE, "format": "wav"}},
        {"type": "file", "file": {"file_data": IMAGE}},
    ):
        assert estimate_tokens(part) < 5000


def test_token_ids_are_counted_not_read():
    assert estimate_tokens(list(range(1000))) == 1000
    assert estimate_tokens([list(range(10)), list(range(20))]) == 30


def test_other_scripts_are_not_underestimated_fourfold():
    assert estimate_tokens("日本語の文章です" * 10) >= 60


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=20,
)


@given(json_values)
def test_any_json_has_an_estimate(value: object):
    assert estimate_tokens(value) >= 0
