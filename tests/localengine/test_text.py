"""Incremental text: whole characters, exact stop strings."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orchestra.localengine.text.assembler import TextAssembler

SPECIAL = 1_000_000


class Pieces:
    """A tokenizer whose i-th token is the i-th piece of bytes."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = pieces

    def token_bytes(self, token_id: int) -> bytes:
        return self._pieces[token_id] if 0 <= token_id < len(self._pieces) else b""

    def is_special(self, token_id: int) -> bool:
        return token_id == SPECIAL


def run(pieces: list[bytes], stop: tuple[str, ...] = ()) -> tuple[list[str], TextAssembler]:
    """What each push returned, then what flush did."""
    assembler = TextAssembler(Pieces(*pieces), stop)
    return [*(assembler.push(i) for i in range(len(pieces))), assembler.flush()], assembler


def cut(text: str, stop: tuple[str, ...]) -> tuple[str, bool]:
    """The specification: before the stop that ends first; of two with one end, before the longer."""
    found = [(i + len(s), i) for s in stop if (i := text.find(s)) >= 0]
    return (text[: min(found)[1]], True) if found else (text, False)


# Few letters, so that stops overlap with the text and with each other.
LETTERS = st.text("abé😀", max_size=30)
STOPS = st.lists(st.text("abé😀", min_size=1, max_size=6), max_size=4).map(tuple)


@st.composite
def in_pieces(draw: st.DrawFn, content: st.SearchStrategy[bytes]) -> list[bytes]:
    whole = draw(content)
    ends = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=12)))
    return [whole[a:b] for a, b in zip([0, *ends], [*ends, len(whole)], strict=True)]


@given(in_pieces(LETTERS.map(str.encode) | st.binary(max_size=40)), STOPS)
@example([b"aa", b"aab"], ("aab",))
@example([b"ab"], ("b", "ab"))
def test_what_is_returned_is_the_whole_decoding_cut_at_the_first_stop(
    pieces: list[bytes], stop: tuple[str, ...]
) -> None:
    wanted, stopped = cut(b"".join(pieces).decode("utf-8", "replace"), stop)
    deltas, assembler = run(pieces, stop)
    assert "".join(deltas) == wanted == assembler.text
    assert assembler.stopped is stopped


@given(in_pieces(LETTERS.map(str.encode)), in_pieces(LETTERS.map(str.encode)), STOPS)
def test_text_once_returned_stays_whatever_comes_after(
    pieces: list[bytes], others: list[bytes], stop: tuple[str, ...]
) -> None:
    """sgl-project/sglang#31598: the sent offset moves back, and a character is sent twice."""
    deltas, assembler = run(pieces, stop)
    emitted = "".join(deltas[:-1])
    assert assembler.text.startswith(emitted)
    if not assembler.stopped:
        longer, _ = run([*pieces, *others], stop)
        assert "".join(longer).startswith(emitted)


@given(in_pieces(LETTERS.map(str.encode)), STOPS)
def test_nothing_is_held_back_that_cannot_become_a_stop(pieces: list[bytes], stop: tuple[str, ...]) -> None:
    """vllm-project/vllm#45636: a fixed number of characters is held back, whatever they are."""
    assembler = TextAssembler(Pieces(*pieces), stop)
    seen = b""
    for i, piece in enumerate(pieces):
        assembler.push(i)
        seen += piece
        text, stopped = cut(seen.decode("utf-8", "ignore"), stop)
        assert assembler.stopped is stopped
        if stopped:
            break
        held = text.removeprefix(assembler.text)
        assert len(held) == max((k for s in stop for k in range(len(s)) if text.endswith(s[:k])), default=0)


def test_an_emoji_in_four_tokens_comes_whole() -> None:
    """ai-dynamo/dynamo#12630, exo-explore/exo#1691: a character that is split over tokens becomes U+FFFD."""
    deltas, _ = run([bytes([b]) for b in "a😀b".encode()])
    assert deltas == ["a", "", "", "", "😀", "b", ""]


@pytest.mark.parametrize(
    ("raw", "wanted"),
    [
        (b"\xf0\x9f\x98", "\ufffd"),  # one for the maximal bad part, at the end ...
        (b"\xf0\x9f\x98x", "\ufffdx"),  # ... or in the middle
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"\xed\xa0\x80", "\ufffd" * 3),  # a surrogate
        (b"\xc0\xaf", "\ufffd" * 2),  # an overlong form
        (b"\xe2\x82\xe2\x82\xac", "\ufffd€"),
    ],
)
def test_invalid_bytes_become_what_python_makes_of_them(raw: bytes, wanted: str) -> None:
    deltas, _ = run([bytes([b]) for b in raw])
    assert "".join(deltas) == wanted == raw.decode("utf-8", "replace")


def test_a_stop_inside_a_longer_token_is_found() -> None:
    """vllm-project/vllm#3572, #534: missed where only the tail is compared."""
    deltas, assembler = run([b"ABC", b"DEF", b"GHI"], ("DE",))
    assert deltas == ["ABC", "", "", ""]
    assert assembler.stopped


def test_no_part_of_a_stop_leaks() -> None:
    """vllm-project/vllm#3574, #2577; sgl-project/sglang#11446, #11462: its beginning is streamed too early."""
    deltas, assembler = run([b"ABC", b"D", b"EF", b"GHI", b"J", b"K"], ("DEFGHIJ",))
    assert deltas == ["ABC", "", "", "", "", "", ""]
    assert assembler.stopped


def test_a_stop_that_does_not_come_true_is_returned_at_once() -> None:
    deltas, assembler = run([b"ABC", b"D", b"EF", b"x"], ("DEFGHIJ",))
    assert deltas == ["ABC", "", "", "DEFx", ""]
    assert not assembler.stopped


def test_what_is_held_at_the_end_is_returned_by_flush() -> None:
    deltas, _ = run([b"ABC", b"DE"], ("DEFGHIJ",))
    assert deltas == ["ABC", "", "DE"]


def test_an_unfinished_character_can_complete_a_stop() -> None:
    deltas, assembler = run([b"a\xf0\x9f"], ("\ufffd",))
    assert "".join(deltas) == "a"
    assert assembler.stopped


def test_of_two_stops_the_one_complete_first_wins() -> None:
    _, assembler = run([b"abcdef"], ("abcdef", "cd"))
    assert assembler.text == "ab"


@given(in_pieces(LETTERS.map(str.encode)), STOPS, st.text("abé😀", min_size=1, max_size=3))
@example([b"aab"], ("b",), "aab")
@example([b"abab"], ("ba",), "ab")
def test_stops_count_only_after_the_marker(pieces: list[bytes], stop: tuple[str, ...], marker: str) -> None:
    """vllm-project/vllm#53066: a stop matches in what a model thinks aloud, before its answer begins."""
    thought, found, answer = b"".join(pieces).decode().partition(marker)
    wanted, stopped = cut(answer, stop)
    assembler = TextAssembler(Pieces(*pieces), stop, after=marker)
    told = "".join([*(assembler.push(i) for i in range(len(pieces))), assembler.flush()])
    assert told == thought + found + wanted
    assert assembler.stopped is stopped


def test_nothing_is_held_back_before_the_marker() -> None:
    assembler = TextAssembler(Pieces(b"so STO", b"</think>", b"STO", b"P"), ("STOP",), after="</think>")
    assert [assembler.push(i) for i in range(4)] == ["so STO", "</think>", "", ""]
    assert assembler.stopped


def test_a_marker_among_the_tokens_that_are_not_searched_counts() -> None:
    assembler = TextAssembler(Pieces(b"a>", b"b", b"b"), ("b",), unsearched=2, after=">")
    assert [assembler.push(i) for i in range(3)] == ["a>", "b", ""]


def test_a_stop_that_never_matches_changes_nothing() -> None:
    _, assembler = run([b"one ", b"two"], ("three",))
    assert assembler.text == "one two"


def test_special_and_unknown_tokens_give_no_text_and_do_no_harm() -> None:
    """vllm-project/vllm#17448, #21951: an id outside the vocabulary ends the request."""
    assembler = TextAssembler(Pieces(b"\xe2", b"\x82\xac"))
    returned = [assembler.push(i) for i in (0, SPECIAL, -5, 77, 1)]
    assert returned == ["", "", "", "", "€"]


def test_nothing_comes_after_a_stop_or_twice_from_flush() -> None:
    assembler = TextAssembler(Pieces(b"a", b"b"), ("b",))
    assert [assembler.push(i) for i in (0, 1, 0)] == ["a", "", ""]
    assert assembler.flush() == ""
    unfinished = TextAssembler(Pieces(b"a"), ("ab",))
    unfinished.push(0)
    assert (unfinished.flush(), unfinished.flush(), unfinished.text) == ("a", "", "a")


def test_an_empty_stop_is_refused() -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        TextAssembler(Pieces(), ("",))
    with pytest.raises(ValueError, match="must not be empty"):
        TextAssembler(Pieces(), ("a",), after="")


def test_a_long_stop_of_like_characters_costs_no_more_than_its_length() -> None:
    # a naive comparison at each token would need some 10^10 steps here
    deltas, _ = run([b"a" * 100] * 1000, ("a" * 50_000 + "b",))
    assert sum(map(len, deltas)) == 100_000


def test_it_tells_which_stop_string_ended_it() -> None:
    _, assembler = run([b"one t", b"wo three"], stop=("three", "two", "wo"))
    assert (assembler.text, assembler.stop) == ("one ", "two")
    _, assembler = run([b"one"], stop=("two",))
    assert assembler.stop is None
