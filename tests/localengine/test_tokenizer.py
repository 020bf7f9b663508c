"""Text to ids and back."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_gguf import CONTROL, KINDS, MERGES, TOKENS, byte_alphabet, written

from orchestra.localengine.errors import PromptError
from orchestra.localengine.text.tokenizer import Tokenizer, TokenKind
from orchestra.localengine.weights.gguf_tokenizer import byte_level_bpe, gguf_tokenizer

FRANCE = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def tiny(**changes: Any) -> Tokenizer:
    tokens = changes.pop("tokens", TOKENS)
    merges = changes.pop("merges", MERGES)
    kinds = changes.pop("kinds", KINDS)
    return byte_level_bpe(tokens, merges, kinds, **{"pre": "gpt2", "bos_id": 1, "eos_ids": (2,), **changes})


def extended(*extra: tuple[str, TokenKind], **changes: Any) -> Tokenizer:
    """The tiny vocabulary with more tokens at its end."""
    return tiny(
        tokens=(*TOKENS, *(text for text, _ in extra)), kinds=(*KINDS, *(kind for _, kind in extra)), **changes
    )


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return tiny()


def ids(*texts: str) -> list[int]:
    return [TOKENS.index(text) for text in texts]


def test_merges_apply_in_order_of_rank(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("hello world", special=False) == ids("hello", "Ġwo", "r", "l", "d")
    assert tokenizer.encode("", special=False) == []


def _reference_bpe(word: str, ranks: dict[tuple[str, str], int]) -> list[str]:
    """BPE as it is defined: again and again join the pair of lowest rank, leftmost first."""
    pieces = list(word)
    while pairs := [(ranks[p], i) for i, p in enumerate(itertools.pairwise(pieces)) if p in ranks]:
        _, i = min(pairs)
        pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]
    return pieces


@given(st.lists(st.sampled_from("abc"), max_size=24), st.randoms(use_true_random=False))
def test_encoding_equals_bpe_by_its_definition(word: list[str], random: Any) -> None:
    vocabulary = ["a", "b", "c"]
    merges: list[tuple[str, str]] = []
    for _ in range(6):
        pair = random.choice(vocabulary), random.choice(vocabulary)
        if "".join(pair) not in vocabulary:
            merges.append(pair)
            vocabulary.append("".join(pair))
    tokenizer = byte_level_bpe(vocabulary, [" ".join(m) for m in merges], [1] * len(vocabulary), pre="gpt2")
    wanted = _reference_bpe("".join(word), {pair: rank for rank, pair in enumerate(merges)})
    assert [vocabulary[i] for i in tokenizer.encode("".join(word), special=False)] == wanted


@given(TEXT)
def test_any_text_survives_the_round_trip(text: str) -> None:
    tokenizer = _SHARED
    assert tokenizer.decode(tokenizer.encode(text, special=False)) == text
    assert b"".join(map(tokenizer.token_bytes, tokenizer.encode(text, special=False))) == text.encode()


_SHARED = tiny()


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("gpt2", ["1234", "ab", "Ġ'", "s", "Ġ", "Ġx", "Ċ", "Ċ", "y"]),
        ("default", ["1234", "ab", "Ġ'", "s", "Ġ", "Ġx", "Ċ", "Ċ", "y"]),
        ("smollm", ["1", "2", "3", "4", "ab", "Ġ'", "s", "Ġ", "Ġx", "Ċ", "Ċ", "y"]),
        ("llama-bpe", ["123", "4", "ab", "Ġ'", "s", "Ġ", "Ġx", "ĊĊ", "y"]),
        ("llama3", ["123", "4", "ab", "Ġ'", "s", "Ġ", "Ġx", "ĊĊ", "y"]),
        ("qwen2", ["1", "2", "3", "4", "ab", "Ġ'", "s", "Ġ", "Ġx", "ĊĊ", "y"]),
    ],
)
def test_each_pre_tokenizer_splits_as_its_model_was_trained(pre: str, pieces: list[str]) -> None:
    # A vocabulary that would join whatever stands together, so that only the split keeps pieces apart.
    joined = ["12", "123", "1234", "ab", "Ġ'", "Ġ's", "ĠĠ", "ĠĠx", "Ġx", "ĊĊ", "4a", "34"]
    merges = ["1 2", "12 3", "123 4", "a b", "Ġ '", "Ġ' s", "Ġ x", "Ġ Ġ", "ĠĠ x", "Ċ Ċ", "4 a", "3 4"]
    tokens = [*byte_alphabet(), *joined]
    tokenizer = byte_level_bpe(tokens, merges, [1] * len(tokens), pre=pre)
    assert [tokens[i] for i in tokenizer.encode("1234ab 's  x\n\ny", special=False)] == pieces


def test_an_unknown_pre_tokenizer_is_named() -> None:
    with pytest.raises(ValueError, match="'deepseek-llm' is not supported; use a model with smollm, gpt2"):
        tiny(pre="deepseek-llm")


def test_control_tokens_count_only_where_asked_for(tokenizer: Tokenizer) -> None:
    text = "<|im_start|>hello<|im_end|>"
    assert tokenizer.encode(text, special=True) == ids("<|im_start|>", "hello", "<|im_end|>")
    plain = tokenizer.encode(text, special=False)
    assert not set(plain) & set(ids(*CONTROL))
    assert tokenizer.decode(plain) == text
    assert list(tokenizer.split("a<|im_end|><|end|>b")) == ["a", 2, 0, "b"]


@pytest.mark.parametrize("pre", ["gpt2", "llama-bpe", "smollm", "qwen2"])
def test_no_text_is_ever_merged_into_a_control_token(pre: str) -> None:
    # "unk" is a piece of its own, and the second one even has a merge that makes it.
    tokenizer = extended(
        ("unk", TokenKind.CONTROL),
        ("xy", TokenKind.CONTROL),
        ("xyz", TokenKind.NORMAL),
        pre=pre,
        merges=(*MERGES, "x y", "xy z"),
    )
    assert tokenizer.encode("unk xy xyz", special=False) == ids("u", "n", "k", "Ġ", "x", "y", "Ġ", "x", "y", "z")
    assert tokenizer.encode("unk", special=True) == [len(TOKENS)]


def test_llama_takes_a_piece_that_is_a_token_whole() -> None:
    extra = (("wor", TokenKind.NORMAL),)  # no merge leads there
    assert extended(*extra, pre="llama-bpe").encode("wor", special=False) == [len(TOKENS)]
    assert extended(*extra, pre="gpt2").encode("wor", special=False) == ids("w", "o", "r")


def test_user_defined_tokens_always_count_and_the_longest_wins() -> None:
    tokenizer = extended(("<t>", TokenKind.USER_DEFINED), ("<t><t>", TokenKind.USER_DEFINED))
    one, two = len(TOKENS), len(TOKENS) + 1
    assert tokenizer.encode("<t><t><t>h", special=False) == [two, one, *ids("h")]
    assert tokenizer.encode("<t><|end|>", special=True) == [one, 0]
    assert tokenizer.decode([two]) == "<t><t>"
    assert not tokenizer.is_special(one)


def test_a_control_token_of_one_character_is_never_read_from_text() -> None:
    tokenizer = extended(("§", TokenKind.CONTROL))
    assert len(TOKENS) not in tokenizer.encode("§", special=True)
    assert tokenizer.control_texts == CONTROL


def test_special_tokens_have_no_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode([1, *ids("hello"), 2]) == "hello"
    assert [tokenizer.is_special(i) for i in (0, 1, 2, 3)] == [True, True, True, False]
    assert tokenizer.token_text(1) == "<|im_start|>"
    assert tokenizer.token_text(None) is None


def test_bytes_of_tokens() -> None:
    tokenizer = extended(("<0x0A>", TokenKind.BYTE), ("中", TokenKind.NORMAL))
    assert [tokenizer.token_bytes(i)[0] for i in range(3, 3 + 256)] == list(range(256))
    assert tokenizer.token_bytes(TOKENS.index("Ġwo")) == b" wo"
    assert tokenizer.token_bytes(len(TOKENS)) == b"\n"
    assert tokenizer.token_bytes(len(TOKENS) + 1) == "中".encode()  # no byte alphabet: taken as it is written
    assert tokenizer.token_bytes(1) == b"<|im_start|>"


@given(st.lists(st.integers(-(2**40), 2**40) | st.integers(-2, len(TOKENS) + 2), max_size=20))
def test_any_ids_can_be_decoded(numbers: list[int]) -> None:
    """vllm-project/vllm#17448, #21951: a state that no text leads to, or an invalid id, ends the request."""
    inside = [i for i in numbers if 3 <= i < len(TOKENS)]
    assert _SHARED.decode(numbers) == b"".join(map(_SHARED.token_bytes, inside)).decode("utf-8", "replace")
    assert all(_SHARED.token_bytes(i) == b"" for i in numbers if not 0 <= i < len(TOKENS))


def test_end_tokens_are_the_models_own_and_the_known_ones() -> None:
    tokenizer = extended(("<|endoftext|>", TokenKind.CONTROL), ("<|eot_id|>", TokenKind.NORMAL), eos_ids=(0,))
    assert tokenizer.eos_id == 0
    assert tokenizer.eos_ids == {0, 2, len(TOKENS)}  # not the normal token of that name


def test_a_raw_prompt_starts_with_the_models_start_token_where_it_wants_one() -> None:
    assert tiny(add_bos=True).encode_prompt("h<|end|>") == [1, *ids("h"), 0]
    assert tiny().encode_prompt("h") == ids("h")
    assert tiny(add_bos=True, bos_id=None).encode_prompt("h") == ids("h")


def test_a_lone_surrogate_is_refused_with_its_place(tokenizer: Tokenizer) -> None:
    with pytest.raises(PromptError, match=r"lone surrogate \(U\+D83D\) at character 3"):
        tokenizer.encode("abc\ud83d", special=False)


def test_words_in_nfd_reach_qwen_in_nfc() -> None:
    accented = written("é")
    tokenizer = extended((accented, TokenKind.NORMAL), merges=(*MERGES, " ".join(accented)), pre="qwen2")
    assert tokenizer.encode("e\u0301", special=False) == [len(TOKENS)]


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"tokens": (), "kinds": ()}, "vocabulary is empty"),
        ({"kinds": KINDS[:-1]}, "token types"),
        ({"kinds": (*KINDS[:-1], 77)}, "unknown type"),
        ({"tokens": (*TOKENS[:-1], "hello")}, "same text"),
        ({"bos_id": -1}, "token id -1 is outside"),
        ({"eos_ids": (1, 10**9)}, "token id 1000000000 is outside"),
        ({"merges": ("h e", "")}, "merge 1 "),
        ({"merges": ("q q",)}, "merge 0 .'q q'. does not fit"),
    ],
)
def test_an_unusable_vocabulary_is_refused(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        tiny(**changes)


@pytest.mark.parametrize("kinds", [None, [1] * 4])
def test_token_types_may_be_absent_from_a_file(kinds: Sequence[int] | None) -> None:
    keys: dict[str, object] = {"model": "gpt2", "tokens": ["a", "b", "ab", "c"], "merges": ["a b"]}
    metadata = {f"tokenizer.ggml.{key}": value for key, value in keys.items()}
    if kinds is not None:
        metadata["tokenizer.ggml.token_type"] = kinds
    tokenizer = gguf_tokenizer(metadata)
    assert tokenizer.encode("cab", special=True) == [3, 2]
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.eos_ids) == (None, None, frozenset())


# The real vocabulary


@pytest.fixture(scope="module")
def real(model_path: Any) -> Tokenizer:
    from orchestra.localengine.weights.container import read_container

    with model_path.open("rb") as file:
        return gguf_tokenizer(read_container(file).metadata)


@pytest.mark.model
def test_the_real_models_prompt(real: Tokenizer) -> None:
    encoded = real.encode(FRANCE, special=True)
    assert len(encoded) == 37
    assert encoded[:6] == [1, 9690, 198, 2683, 359, 253]
    assert encoded[-5:] == [198, 1, 520, 9531, 198]
    assert (real.vocab_size, real.bos_id, real.eos_id) == (49_152, 1, 2)
    assert real.eos_ids == {0, 2}
    assert [real.token_text(i) for i in (0, 1, 2)] == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    assert 1 not in real.encode(FRANCE, special=False)
    assert real.decode(real.encode(FRANCE, special=False)) == FRANCE


@pytest.mark.model
@settings(max_examples=60, deadline=None)
@given(text=st.text(st.characters(max_codepoint=0x3FFFF, exclude_categories=["Cs", "Cc"]), max_size=60))
def test_text_survives_the_real_models_round_trip(real: Tokenizer, text: str) -> None:
    # Its vocabulary lacks six control characters and planes 4 to 11, so these are left out.
    assert real.decode(real.encode(text, special=False)) == text
