"""Tokenizers and chat templates against transformers, on texts of every kind."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hub_lab import CONTROL, byte_level, sentencepiece, unigram
from tokenizers import AddedToken, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from varied_texts import VARIED

from orchestra.localengine.text.chat_template import ChatTemplate
from orchestra.localengine.text.tokenizer import Tokenizer, TokenKind
from orchestra.localengine.weights.container import read_container
from orchestra.localengine.weights.gguf_tokenizer import gguf_tokenizer, sentencepiece_bpe
from orchestra.localengine.weights.hub_tokenizer import hub_tokenizer

SETTINGS: dict[str, object] = {"bos_token": "<s>", "eos_token": "</s>"}
CHATML = (
    "{{ bos_token }}{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
GENERATION = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}</s>{% endgeneration %}"
    "{% else %}<s> [INST] {{ m.content | trim }} [/INST]{% endif %}{% endfor %}"
)


def with_strips() -> Backend:
    """Control tokens that swallow the white space beside them, and one that only stands for itself."""
    backend = byte_level()
    backend.add_special_tokens(
        [AddedToken("<|end|>", rstrip=True, normalized=False), AddedToken("<mask>", lstrip=True, normalized=False)]
    )
    return backend


def gpt4() -> Backend:
    """Llama 3's kind: another split, and whole pieces before merges."""
    backend = byte_level()
    state = json.loads(backend.to_str())
    state["model"]["ignore_merges"] = True
    backend = Backend.from_str(json.dumps(state))
    pattern = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+"
    from tokenizers import Regex

    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.normalizer = normalizers.NFC()
    return backend


KINDS = {
    "byte-level": byte_level,
    "gpt4": gpt4,
    "strips": with_strips,
    "sentencepiece": sentencepiece,
    "sentencepiece-first": lambda: sentencepiece("first"),
    "sentencepiece-never": lambda: sentencepiece("never"),
    "sentencepiece-legacy": lambda: sentencepiece("legacy"),
    "unigram": unigram,
}


@pytest.fixture(scope="module", params=list(KINDS))
def pair(request: pytest.FixtureRequest) -> tuple[Tokenizer, PreTrainedTokenizerFast]:
    backend = KINDS[request.param]()
    ours = hub_tokenizer(json.loads(backend.to_str()), SETTINGS, vocab_size=1000, end_ids=[4])
    theirs = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")
    theirs.clean_up_tokenization_spaces = False
    return ours, theirs


def test_200_varied_texts(pair: tuple[Tokenizer, PreTrainedTokenizerFast]) -> None:
    ours, theirs = pair
    assert len(VARIED) >= 200
    for text in VARIED:
        assert ours.encode(text, special=False) == theirs.encode(text, add_special_tokens=False), repr(text)
        assert ours.encode_prompt(text) == theirs.encode(text), repr(text)


def test_control_tokens_among_them(pair: tuple[Tokenizer, PreTrainedTokenizerFast]) -> None:
    ours, theirs = pair
    frames = [
        "{}",
        "<s>{}",
        "{}</s>",
        "a <|im_start|>{}<|im_end|> b",
        "<s><s> {} <think> x</s>",
        "x <mask> {} <|end|>  y",
    ]
    for i, text in enumerate(VARIED):
        framed = frames[i % len(frames)].format(text)
        assert ours.encode(framed, special=True) == theirs.encode(framed, add_special_tokens=False), repr(framed)


def test_no_text_becomes_a_control_token(pair: tuple[Tokenizer, PreTrainedTokenizerFast]) -> None:
    ours, _ = pair
    for text in (*CONTROL, "<mask>", "<|end|>", "x</s>", " <s>", "<s>" * 5, "".join(CONTROL)):
        ids = ours.encode(text, special=False)
        assert ids
        assert not any(ours.is_special(i) for i in ids), text
        assert ours.encode(text, special=False, first=False)


def test_texts_come_back(pair: tuple[Tokenizer, PreTrainedTokenizerFast]) -> None:
    ours, theirs = pair
    for text in VARIED:
        ids = theirs.encode(text)
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True), repr(text)
        pieces = b"".join(ours.token_bytes(i) for i in ids if not ours.is_special(i)).decode("utf-8", "replace")
        assert pieces in (ours.decode(ids), " " + ours.decode(ids))


@pytest.mark.parametrize("template", [CHATML, GENERATION])
def test_chats(pair: tuple[Tokenizer, PreTrainedTokenizerFast], template: str) -> None:
    ours, theirs = pair
    compare_chats(ChatTemplate(template, bos_token="<s>", eos_token="</s>"), ours, theirs, template)


def compare_chats(
    template: ChatTemplate, ours: Tokenizer, theirs: Any, source: str, texts: Sequence[str] = VARIED
) -> None:
    for i, text in enumerate(texts):
        messages = [{"role": "user", "content": text}]
        if i % 3:
            messages = [
                *messages,
                {"role": "assistant", "content": texts[i - 1]},
                {"role": "user", "content": "ok"},
            ]
        rendered = theirs.apply_chat_template(
            messages, chat_template=source, tokenize=False, add_generation_prompt=True
        )
        assert template.render(messages) == rendered
        wanted = theirs.encode(rendered, add_special_tokens=False)
        assert template.encode(messages, ours) == wanted, repr(text)


def test_ids_that_the_vocabulary_has_not(pair: tuple[Tokenizer, PreTrainedTokenizerFast]) -> None:
    ours, _ = pair
    assert ours.vocab_size == 1000
    assert ours.token_bytes(999) == b""
    assert ours.is_special(999)
    assert ours.decode([999, -1, 5000]) == ""
    assert ours.eos_ids >= {2, 4}


@pytest.mark.parametrize("add_space", [True, False])
def test_sentencepiece_by_scores_as_gguf_has_it(add_space: bool) -> None:
    backend = sentencepiece("legacy")
    if not add_space:
        backend.normalizer = normalizers.Replace(" ", "\u2581")
    vocab = backend.get_vocab()
    tokens = sorted(vocab, key=vocab.__getitem__)
    kinds = [TokenKind.NORMAL] * len(tokens)
    for i, text in enumerate(tokens):
        if text in CONTROL:
            kinds[i] = TokenKind.CONTROL
        elif text.startswith("<0x"):
            kinds[i] = TokenKind.BYTE
        elif text == "<think>":
            kinds[i] = TokenKind.USER_DEFINED
    merges = json.loads(backend.to_str())["model"]["merges"]
    ranks = {"".join(merge): i for i, merge in reversed(list(enumerate(merges)))}
    ours = sentencepiece_bpe(
        tokens, [-float(ranks.get(text, 0)) for text in tokens], kinds, bos_id=1, eos_ids=[2], add_space=add_space
    )
    theirs = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")
    for text in VARIED:
        assert ours.encode_prompt(text) == theirs.encode(text), repr(text)
        # a written \u2581 is a space to SentencePiece
        assert ours.decode(ours.encode(text, special=False)) == text.replace("\u2581", " "), repr(text)


@pytest.mark.model
@pytest.mark.timeout(300)
def test_the_small_models_own(model_path: Path) -> None:
    theirs = AutoTokenizer.from_pretrained(model_path.parent, gguf_file=model_path.name)
    # transformers does not read tokenizer.ggml.pre: this is what it says, and what the model's tokenizer.json has
    theirs.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    with model_path.open("rb") as file:
        metadata = read_container(file).metadata
    ours = gguf_tokenizer(metadata)
    for text in VARIED:
        assert ours.encode(text, special=False) == theirs.encode(text, add_special_tokens=False), repr(text)
        framed = f"<|im_start|>user\n{text}<|im_end|>\n"
        assert ours.encode(framed, special=True) == theirs.encode(framed, add_special_tokens=False), repr(framed)
    source = str(metadata["tokenizer.chat_template"])
    bos, eos = (ours.token_text(i) for i in (ours.bos_id, ours.eos_id))
    compare_chats(ChatTemplate(source, bos_token=bos, eos_token=eos), ours, theirs, source)
