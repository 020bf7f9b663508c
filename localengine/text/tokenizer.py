"""Text to token ids and back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import IntEnum

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

    @property
    def special(self) -> bool:
        """Stands for no text."""
        return self in (TokenKind.UNKNOWN, TokenKind.CONTROL, TokenKind.UNUSED)

    @property
    def control(self) -> bool:
        """Means something of its own where a prompt has it written out, and must not in text from outside."""
        return self in (TokenKind.UNKNOWN, TokenKind.CONTROL)


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
_SPACE = r"[^\S\x1c-\x1f]*"  # white space as the tokenizers library counts it


class Tokenizer:
    """A vocabulary, and the way that its model cuts text into it. Immutable, so any thread may use it.

    ``tokens``, ``kinds``, ``pieces``: the text of each id, what it is for, and the bytes that it stands for.
    ``first`` encodes the start of a text and ``later`` what follows a control token (some models begin a text with
    a space); neither may know a control token, so that no text can be cut into one. ``eos_ids``: tokens that end
    the output, the model's own one (``eos_id``) first; control tokens that are known to end one are added to them.
    ``add_bos``: a raw prompt starts with ``bos_id``. ``adds_space``: an encoded text begins with a space that was
    not there. ``strips_left``, ``strips_right``: control tokens that swallow the white space beside them.

    Raises ValueError where the vocabulary is not usable.
    """

    def __init__(
        self,
        tokens: Sequence[str],
        kinds: Sequence[int],
        pieces: Sequence[bytes],
        *,
        first: Backend,
        later: Backend | None = None,
        bos_id: int | None = None,
        eos_ids: Sequence[int] = (),
        add_bos: bool = False,
        adds_space: bool = False,
        strips_left: AbstractSet[int] = frozenset(),
        strips_right: AbstractSet[int] = frozenset(),
    ) -> None:
        for token_id in eos_ids if bos_id is None else [bos_id, *eos_ids]:
            if not 0 <= token_id < len(tokens):
                raise ValueError(f"special token id {token_id} is outside the vocabulary; download the file again")
        self.vocab_size = len(tokens)
        self.bos_id = bos_id
        self.add_bos = add_bos and bos_id is not None
        self._special = frozenset(i for i, kind in enumerate(kinds) if TokenKind(kind).special)
        self.eos_id = eos_ids[0] if eos_ids else None
        self.eos_ids = frozenset(eos_ids) | {i for i in self._special if tokens[i] in _END_TEXTS}
        self._tokens = tuple(tokens)
        self._pieces = tuple(pieces)
        self._first = first
        self._later = first if later is None else later
        self._adds_space = adds_space
        # A control token of one character is never read from text: nothing could tell it from that character.
        self._control = {t: i for i, t in enumerate(tokens) if TokenKind(kinds[i]).control and len(t) > 1}
        self.control_texts = tuple(self._control)
        self._pattern = _any_of(
            {
                text: (_SPACE * (i in strips_left), _SPACE * (i in strips_right))
                for text, i in self._control.items()
            }
        )

    def encode(self, text: str, *, special: bool, first: bool = True) -> list[int]:
        """Token ids of ``text``. No token is added at either end.

        With ``special`` a control token written out in the text (``<|im_end|>``) is that token; without it, it is
        plain characters, as text from outside must be. ``first``: the text is the beginning, not what follows a
        control token. Characters that the vocabulary cannot write are left out, as the models' own tokenizers do.
        Raises PromptError where the text holds a lone surrogate.
        """
        if not special:
            return self._plain(text, first)
        ids: list[int] = []
        for part in self.split(text):
            ids += [part] if isinstance(part, int) else self._plain(part, first)
            first = False
        return ids

    def encode_prompt(self, text: str) -> list[int]:
        """Token ids of a raw prompt: control tokens count as such, and the model's start token is put first."""
        start = [self.bos_id] if self.add_bos and self.bos_id is not None else []
        return start + self.encode(text, special=True)

    def split(self, text: str) -> Iterator[int | str]:
        """The control tokens written out in ``text``, as ids, and the text between them."""
        position = 0
        for match in self._pattern.finditer(text) if self._pattern else ():
            if match.start() > position:
                yield text[position : match.start()]
            yield self._control[match[match.lastindex or 0]]
            position = match.end()
        if position < len(text):
            yield text[position:]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ``ids``, without special tokens; bytes that are not UTF-8 become U+FFFD."""
        text = b"".join(self.token_bytes(i) for i in ids if not self.is_special(i)).decode("utf-8", "replace")
        return text.removeprefix(" ") if self._adds_space else text

    def token_bytes(self, token_id: int) -> bytes:
        """What the token stands for; a special token's own text. Empty for an id outside the vocabulary."""
        return self._pieces[token_id] if 0 <= token_id < self.vocab_size else b""

    def token_text(self, token_id: int | None) -> str | None:
        """The token as the vocabulary writes it, e.g. ``<|im_start|>``; None for no token."""
        return self._tokens[token_id] if token_id is not None and 0 <= token_id < self.vocab_size else None

    def is_special(self, token_id: int) -> bool:
        """Whether the token is a control token, which stands for no text."""
        return token_id in self._special

    def _plain(self, text: str, first: bool) -> list[int]:
        refuse_surrogates(text, "the text")
        backend = self._first if first else self._later
        ids: list[int] = backend.encode(text, add_special_tokens=False).ids
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


def _any_of(texts: Mapping[str, tuple[str, str]]) -> re.Pattern[str] | None:
    """Finds the leftmost, and there the longest, of the texts, with the patterns before and behind each.

    The text alone is in the last group that matched.
    """
    longest_first = sorted(texts, key=len, reverse=True)
    patterns = ("{0}({2}){1}".format(*texts[text], re.escape(text)) for text in longest_first)
    return re.compile("|".join(patterns)) if longest_first else None
