"""The tokenizer inside a GGUF file: byte-level BPE by merges, or SentencePiece's BPE by scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from orchestra.localengine.text.tokenizer import Tokenizer, TokenKind
from orchestra.localengine.weights.pieces import byte_level_piece, sentencepiece_piece

__all__ = ["byte_level_bpe", "gguf_tokenizer", "sentencepiece_bpe"]

_Number = TypeVar("_Number", int, float)

# GPT-4's splitting, as Llama 3 and Qwen 2 use it; they differ in how many digits may stand together.
_GPT4_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _byte_level(*before: pre_tokenizers.PreTokenizer, use_regex: bool) -> pre_tokenizers.PreTokenizer:
    bytes_last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    return pre_tokenizers.Sequence([*before, bytes_last])


def _gpt4(digits: str) -> pre_tokenizers.PreTokenizer:
    return _byte_level(pre_tokenizers.Split(Regex(_GPT4_SPLIT % digits), "isolated"), use_regex=False)


def _pre_tokenizer(name: str) -> pre_tokenizers.PreTokenizer:
    match name:
        case "gpt2" | "gpt-2" | "default":
            return _byte_level(use_regex=True)
        case "smollm":
            return _byte_level(pre_tokenizers.Digits(individual_digits=True), use_regex=True)
        case "llama-bpe" | "llama3" | "llama-v3":
            return _gpt4(r"\p{N}{1,3}")
        case "qwen2":
            return _gpt4(r"\p{N}")
    raise ValueError(
        f"the pre-tokenizer {name!r} is not supported; use a model with smollm, gpt2, llama-bpe or qwen2"
    )


def gguf_tokenizer(metadata: Mapping[str, object]) -> Tokenizer:
    """From the ``tokenizer.ggml.*`` keys of a GGUF file. Raises ValueError (fault and remedy)."""
    model = metadata.get("tokenizer.ggml.model")
    if model not in ("gpt2", "llama"):
        raise ValueError(
            f"its tokenizer is of kind {model!r}; use a model with byte-level BPE ('gpt2') or SentencePiece's "
            "('llama')"
        )
    tokens = _texts(metadata, "tokens")
    kinds = metadata.get("tokenizer.ggml.token_type")
    kinds = [TokenKind.NORMAL] * len(tokens) if kinds is None else _numbers(kinds, int, "token_type")
    bos_id = _token_id(metadata, "bos")
    ends = (_token_id(metadata, key) for key in ("eos", "eot", "eom"))
    eos_ids = [i for i in ends if i is not None]
    # what is not said has SentencePiece's own defaults there
    spaced, add_bos = (
        metadata.get(f"tokenizer.ggml.{key}", model == "llama") is True
        for key in ("add_space_prefix", "add_bos_token")
    )
    if model == "llama":
        scores = _numbers(metadata.get("tokenizer.ggml.scores"), float, "scores")
        return sentencepiece_bpe(
            tokens, scores, kinds, bos_id=bos_id, eos_ids=eos_ids, add_bos=add_bos, add_space=spaced
        )
    pre = str(metadata.get("tokenizer.ggml.pre", "default"))
    merges = _texts(metadata, "merges")
    return byte_level_bpe(tokens, merges, kinds, pre=pre, bos_id=bos_id, eos_ids=eos_ids, add_bos=add_bos)


def byte_level_bpe(
    tokens: Sequence[str],
    merges: Sequence[str],
    kinds: Sequence[int],
    *,
    pre: str,
    bos_id: int | None = None,
    eos_ids: Sequence[int] = (),
    add_bos: bool = False,
) -> Tokenizer:
    """A vocabulary over bytes, written in GPT-2's alphabet.

    ``merges``: pairs ``"a b"`` in order of rank. ``kinds``: one ``TokenKind`` number per id. ``pre``: the name of
    the pre-tokenizer, as in ``tokenizer.ggml.pre``.
    """
    vocab = _visible(tokens, kinds)
    hidden = {text for text, kind in zip(tokens, kinds, strict=True) if TokenKind(kind).special}
    pairs = []
    for rank, merge in enumerate(merges):
        space = merge.find(" ", 1)
        left, right = merge[:space], merge[space + 1 :]
        if left + right in hidden or left in hidden or right in hidden:
            continue
        if space < 0 or not all(piece in vocab for piece in (left, right, left + right)):
            raise ValueError(f"merge {rank} ({merge[:40]!r}) does not fit the vocabulary; download the file again")
        pairs.append((left, right))
    # Llama 3 takes a piece that is a token whole, without walking through the merges.
    whole = pre in ("llama-bpe", "llama3", "llama-v3")
    backend = Backend(models.BPE(vocab=vocab, merges=pairs, fuse_unk=False, ignore_merges=whole))
    backend.pre_tokenizer = _pre_tokenizer(pre)
    if pre == "qwen2":
        backend.normalizer = normalizers.NFC()
    _add_literals(backend, tokens, kinds)
    pieces = [byte_level_piece(text, TokenKind(kind)) for text, kind in zip(tokens, kinds, strict=True)]
    return Tokenizer(tokens, kinds, pieces, first=backend, bos_id=bos_id, eos_ids=eos_ids, add_bos=add_bos)


def sentencepiece_bpe(
    tokens: Sequence[str],
    scores: Sequence[float],
    kinds: Sequence[int],
    *,
    bos_id: int | None = None,
    eos_ids: Sequence[int] = (),
    add_bos: bool = True,
    add_space: bool = True,
) -> Tokenizer:
    """A vocabulary over characters, spaces written as U+2581, that falls back to bytes.

    Of neighbouring pieces those two are joined first whose union has the highest of ``scores``. ``add_space``: a
    text, and each part of it behind a control token, begins with a space.
    """
    vocab = _visible(tokens, kinds)
    if len(scores) != len(tokens):
        raise ValueError(f"{len(tokens)} tokens have {len(scores)} scores; download the file again")
    joined = {text for text, i in vocab.items() if kinds[i] == TokenKind.NORMAL}
    pairs = []
    for text in joined:
        for cut in range(1, len(text)):
            left, right = text[:cut], text[cut:]
            if left in joined and right in joined:
                pairs.append((-scores[vocab[text]], vocab[text], vocab[left], vocab[right], left, right))
    pairs.sort()
    merges = [(left, right) for *_, left, right in pairs]
    backend = Backend(models.BPE(vocab=vocab, merges=merges, fuse_unk=True, byte_fallback=True))
    spaces = normalizers.Replace(" ", "\u2581")
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), spaces]) if add_space else spaces
    _add_literals(backend, tokens, kinds)
    pieces = [sentencepiece_piece(text, TokenKind(kind)) for text, kind in zip(tokens, kinds, strict=True)]
    return Tokenizer(
        tokens,
        kinds,
        pieces,
        first=backend,
        bos_id=bos_id,
        eos_ids=eos_ids,
        add_bos=add_bos,
        adds_space=add_space,
    )


def _visible(tokens: Sequence[str], kinds: Sequence[int]) -> dict[str, int]:
    """The vocabulary that BPE sees: without the special tokens, so that no text can ever be merged into one."""
    if not tokens:
        raise ValueError("the vocabulary is empty; use a complete model file")
    if len(kinds) != len(tokens):
        raise ValueError(f"{len(tokens)} tokens have {len(kinds)} token types; download the file again")
    if not set(kinds) <= set(TokenKind):
        raise ValueError("it has tokens of an unknown type; download the file again")
    special = [i for i, kind in enumerate(kinds) if TokenKind(kind).special]
    hidden = frozenset(special)
    vocab = {text: i for i, text in enumerate(tokens) if i not in hidden}
    if len(vocab) != len(tokens) - len(hidden):
        raise ValueError("two tokens have the same text; download the file again")
    return vocab


def _add_literals(backend: Backend, tokens: Sequence[str], kinds: Sequence[int]) -> None:
    """User-defined tokens, which are tokens of their own wherever they are written out."""
    literals = [text for text, kind in zip(tokens, kinds, strict=True) if kind == TokenKind.USER_DEFINED and text]
    backend.add_tokens([AddedToken(text, normalized=False) for text in literals])


def _texts(metadata: Mapping[str, object], key: str) -> list[str]:
    value = metadata.get(f"tokenizer.ggml.{key}")
    if not isinstance(value, list):
        raise ValueError(f"tokenizer.ggml.{key} is missing or no list of texts; use a complete model file")
    return value


def _numbers(value: object, kind: type[_Number], key: str) -> Sequence[_Number]:
    if isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(n, kind) for n in value):
        return value
    what = "whole numbers" if kind is int else "numbers"
    raise ValueError(f"tokenizer.ggml.{key} is no list of {what}; download the file again")


def _token_id(metadata: Mapping[str, object], key: str) -> int | None:
    value = metadata.get(f"tokenizer.ggml.{key}_token_id")
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise ValueError(f"tokenizer.ggml.{key}_token_id is {value!r}, not a token id; download the file again")
