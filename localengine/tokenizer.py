"""Text to token ids and back, for byte-level BPE vocabularies."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from orchestra.localengine.errors import PromptError

__all__ = ["TokenKind", "Tokenizer", "refuse_surrogates"]


class TokenKind(IntEnum):
    """What a vocabulary entry is for; the numbers are those of ``tokenizer.ggml.token_type``."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_SPECIAL = frozenset({TokenKind.UNKNOWN, TokenKind.CONTROL, TokenKind.UNUSED})
_WRITTEN = frozenset({TokenKind.UNKNOWN, TokenKind.CONTROL})

# Control tokens that end an answer whatever the metadata name as eos_token_id: chat models often stop with one
# (end of turn) and documents with another (end of text).
_END_TEXTS = frozenset(
    {
        "<|im_end|>",
        "<|endoftext|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end_of_text|>",
        "<|end|>",
        "<end_of_turn>",
        "<EOT>",
    }
)

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


class Tokenizer:
    """A byte-level BPE vocabulary. Immutable, so any thread may use it.

    ``tokens``: the text of each id, bytes written as in GPT-2's alphabet. ``merges``: pairs ``"a b"`` in order of
    rank. ``kinds``: one ``TokenKind`` number per id. ``pre``: the name of the pre-tokenizer, as in
    ``tokenizer.ggml.pre``. ``eos_ids``: tokens that end the output, the model's own one (``eos_id``) first;
    control tokens that are known to end one are added to them. ``add_bos``: a raw prompt starts with ``bos_id``.

    Raises ValueError where the vocabulary is not usable.
    """

    def __init__(
        self,
        tokens: Sequence[str],
        merges: Sequence[str],
        kinds: Sequence[int],
        *,
        pre: str,
        bos_id: int | None = None,
        eos_ids: Sequence[int] = (),
        add_bos: bool = False,
    ) -> None:
        if not tokens:
            raise ValueError("the vocabulary is empty; use a complete model file")
        if len(kinds) != len(tokens):
            raise ValueError(f"{len(tokens)} tokens have {len(kinds)} token types; download the file again")
        if not set(kinds) <= set(TokenKind):
            raise ValueError("it has tokens of an unknown type; download the file again")
        for token_id in eos_ids if bos_id is None else [bos_id, *eos_ids]:
            if not 0 <= token_id < len(tokens):
                raise ValueError(f"special token id {token_id} is outside the vocabulary; download the file again")
        self.vocab_size = len(tokens)
        self.bos_id = bos_id
        self.add_bos = add_bos and bos_id is not None
        self._special = frozenset(i for i, kind in enumerate(kinds) if kind in _SPECIAL)
        self.eos_id = eos_ids[0] if eos_ids else None
        self.eos_ids = frozenset(eos_ids) | {i for i in self._special if tokens[i] in _END_TEXTS}
        self._tokens = tuple(tokens)
        self._bytes = tuple(_token_bytes(text, kind) for text, kind in zip(tokens, kinds, strict=True))
        # Written out in a text, these are tokens of their own: user-defined ones always, control ones on request.
        # A control token of one character is never read from text: nothing could tell it from that character.
        literal = {t: i for i, t in enumerate(tokens) if kinds[i] == TokenKind.USER_DEFINED and t}
        control = {t: i for i, t in enumerate(tokens) if kinds[i] in _WRITTEN and len(t) > 1}
        self.control_texts = tuple(control)
        self._literal_ids = literal
        self._all_ids = literal | control
        self._literal = _any_of(self._literal_ids)
        self._all = _any_of(self._all_ids)
        self._backend = _backend(tokens, merges, self._special, pre)

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, object]) -> Tokenizer:
        """From the ``tokenizer.ggml.*`` keys of a GGUF file. Raises ValueError (fault and remedy)."""
        model = metadata.get("tokenizer.ggml.model")
        if model != "gpt2":
            raise ValueError(f"its tokenizer is of kind {model!r}; use a model with byte-level BPE ('gpt2')")
        tokens = _texts(metadata, "tokens")
        kinds = metadata.get("tokenizer.ggml.token_type")
        eos_ids = (_token_id(metadata, key) for key in ("eos", "eot", "eom"))
        return cls(
            tokens,
            _texts(metadata, "merges"),
            [TokenKind.NORMAL] * len(tokens) if kinds is None else _numbers(kinds),
            pre=str(metadata.get("tokenizer.ggml.pre", "default")),
            bos_id=_token_id(metadata, "bos"),
            eos_ids=[i for i in eos_ids if i is not None],
            add_bos=metadata.get("tokenizer.ggml.add_bos_token", False) is True,
        )

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Token ids of ``text``. No token is added at either end.

        With ``special`` a control token written out in the text (``<|im_end|>``) is that token; without it, it is
        plain characters, as text from outside must be. Characters that the vocabulary cannot write are left out,
        as the models' own tokenizers do. Raises PromptError where the text holds a lone surrogate.
        """
        if special:
            return [i for part in self.split(text) for i in ([part] if isinstance(part, int) else self._bpe(part))]
        return self._bpe(text)

    def encode_prompt(self, text: str) -> list[int]:
        """Token ids of a raw prompt: control tokens count as such, and the model's start token is put first."""
        start = [self.bos_id] if self.add_bos and self.bos_id is not None else []
        return start + self.encode(text, special=True)

    def split(self, text: str) -> Iterator[int | str]:
        """The control and user-defined tokens written out in ``text``, as ids, and the text between them."""
        return _split(text, self._all, self._all_ids)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ``ids``, without special tokens; bytes that are not UTF-8 become U+FFFD."""
        return b"".join(self.token_bytes(i) for i in ids if not self.is_special(i)).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """What the token stands for; a special token's own text. Empty for an id outside the vocabulary."""
        return self._bytes[token_id] if 0 <= token_id < self.vocab_size else b""

    def token_text(self, token_id: int | None) -> str | None:
        """The token as the vocabulary writes it, e.g. ``<|im_start|>``; None for no token."""
        return self._tokens[token_id] if token_id is not None and 0 <= token_id < self.vocab_size else None

    def is_special(self, token_id: int) -> bool:
        """Whether the token is a control token, which stands for no text."""
        return token_id in self._special

    def _bpe(self, text: str) -> list[int]:
        refuse_surrogates(text, "the text")
        ids: list[int] = []
        for part in _split(text, self._literal, self._literal_ids):
            if isinstance(part, int):
                ids.append(part)
            else:
                ids += self._backend.encode(part, add_special_tokens=False).ids
        return ids


def refuse_surrogates(text: str, what: str) -> None:
    """Raise PromptError, naming ``what``, where a string holds half a UTF-16 pair, as JSON escapes can make it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise PromptError(
            f"{what} holds a lone surrogate (U+{ord(text[error.start]):04X}) at character {error.start}, which is "
            "half a character: remove it"
        ) from None


def _split(text: str, pattern: re.Pattern[str] | None, ids: Mapping[str, int]) -> Iterator[int | str]:
    position = 0
    for match in pattern.finditer(text) if pattern else ():
        if match.start() > position:
            yield text[position : match.start()]
        yield ids[match[0]]
        position = match.end()
    if position < len(text):
        yield text[position:]


def _any_of(texts: Iterable[str]) -> re.Pattern[str] | None:
    """Finds the leftmost, and there the longest, of the texts."""
    longest_first = sorted(texts, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None


def _backend(tokens: Sequence[str], merges: Sequence[str], special: frozenset[int], pre: str) -> Backend:
    # Special tokens are not in the vocabulary that BPE sees, so no text can ever be merged into one.
    vocab = {text: i for i, text in enumerate(tokens) if i not in special}
    if len(vocab) != len(tokens) - len(special):
        raise ValueError("two tokens have the same text; download the file again")
    hidden = {tokens[i] for i in special}
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
    backend.decoder = decoders.ByteLevel()
    if pre == "qwen2":
        backend.normalizer = normalizers.NFC()
    return backend


def _gpt2_alphabet() -> dict[str, int]:
    """GPT-2's way to write each byte as one visible character: itself where printable, else from U+0100 up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in set(printable)]
    return {chr(b): b for b in printable} | {chr(0x100 + n): b for n, b in enumerate(others)}


_ALPHABET = _gpt2_alphabet()
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _token_bytes(text: str, kind: int) -> bytes:
    if kind == TokenKind.BYTE and (match := _BYTE_TOKEN.fullmatch(text)):
        return bytes([int(match[1], 16)])
    if kind == TokenKind.NORMAL:
        try:
            return bytes([_ALPHABET[c] for c in text])
        except KeyError:
            pass  # a token that was added as it is written
    return text.encode("utf-8", "replace")


def _texts(metadata: Mapping[str, object], key: str) -> list[str]:
    value = metadata.get(f"tokenizer.ggml.{key}")
    if not isinstance(value, list):
        raise ValueError(f"tokenizer.ggml.{key} is missing or no list of texts; use a complete model file")
    return value


def _numbers(value: object) -> Sequence[int]:
    if isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(n, int) for n in value):
        return value
    raise ValueError("tokenizer.ggml.token_type is no list of whole numbers; download the file again")


def _token_id(metadata: Mapping[str, object], key: str) -> int | None:
    value = metadata.get(f"tokenizer.ggml.{key}_token_id")
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise ValueError(f"tokenizer.ggml.{key}_token_id is {value!r}, not a token id; download the file again")
