"""A streamed answer read from raw events, however they are cut."""

import itertools
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestra.call import Outcome
from orchestra.chat_stream import ChatStream, error_message
from orchestra.errors import StreamInterrupted

SAMPLES = Path(__file__).parent.parent / "samples"
WHOLE = (SAMPLES / "sse_chat_stream.txt").read_bytes()


def stream_of(parts: Iterable[bytes]) -> ChatStream:
    async def body() -> AsyncIterator[bytes]:
        for part in parts:
            yield part

    return ChatStream(Outcome(200, (), body(), "cloud/big"))


@given(st.lists(st.integers(0, len(WHOLE)), max_size=20), st.sampled_from([b"\n", b"\r\n"]))
async def test_cuts_and_line_ends_do_not_matter(cuts: list[int], line_end: bytes) -> None:
    data = WHOLE.replace(b"\n", line_end)
    bounds = [0, *sorted(cuts), len(data)]
    stream = stream_of(data[start:end] for start, end in itertools.pairwise(bounds))
    assert [text async for text in stream] == ["Yel", "low."]
    assert (stream.text, stream.finish_reason, stream.route) == ("Yellow.", "stop", "cloud/big")
    assert stream.usage is not None
    assert (stream.usage.prompt_tokens, stream.usage.cached_tokens) == (1204, 1024)
    assert stream.model == "gpt-5.4-mini-2026-03-17"


async def test_text_and_chunks_can_be_read_by_turns() -> None:
    stream = stream_of([WHOLE])
    assert await anext(stream) == "Yel"
    assert [chunk.text for chunk in [chunk async for chunk in stream.chunks]] == ["low.", "", ""]
    assert [text async for text in stream] == []


async def test_comments_are_passed_over_and_the_body_is_read_to_its_end() -> None:
    read: list[bytes] = []

    def parts() -> Iterable[bytes]:
        for part in (b": keep-alive\n\n", WHOLE, b": bye\n\n"):
            read.append(part)
            yield part

    assert [text async for text in stream_of(parts())] == ["Yel", "low."]
    assert len(read) == 3


async def test_a_stream_without_the_last_line_is_whole_once_it_has_a_finish_reason() -> None:
    stream = stream_of([WHOLE.replace(b"data: [DONE]\n\n", b"").rstrip()])
    assert "".join([text async for text in stream]) == "Yellow."
    assert stream.usage is not None


async def test_a_cut_stream_raises_and_goes_on_raising() -> None:
    stream = stream_of([(SAMPLES / "sse_chat_stream_cut.txt").read_bytes()])
    seen = []
    for _ in range(2):
        with pytest.raises(StreamInterrupted, match="cloud/big broke off"):
            seen += [text async for text in stream]
    assert stream.text
    assert stream.finish_reason is None


async def test_an_error_event_is_told() -> None:
    stream = stream_of([(SAMPLES / "sse_chat_stream_midstream_error.txt").read_bytes()])
    assert await anext(stream) == "Yel"
    with pytest.raises(StreamInterrupted, match="The server had an error while processing the request"):
        await anext(stream)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b'{"error": {"message": "no"}}', "no"),
        (b'[{"error": {"message": "no", "code": 4}}]', "no"),
        (b'{"error": "no"}', "no"),
        (b'{"message": "no"}', "no"),
        (b'{"detail": [1]}', '{"detail": [1]}'),
        (b"<html>no</html>", "<html>no</html>"),
        (b"\xff", "\N{REPLACEMENT CHARACTER}"),
        (b"x" * 1000, "x" * 500 + "..."),
    ],
)
def test_an_errors_message_is_found(body: bytes, told: str) -> None:
    assert error_message(body) == told
