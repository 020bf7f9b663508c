"""Hold an output to a form: a JSON schema, a regular expression or a grammar, by llguidance.

What may be drawn next is worked out for constrained rows alone, in a thread of its own while the model computes
the step, so that it costs the step next to nothing.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import Any

from orchestra.localengine.errors import EngineError, GrammarError
from orchestra.localengine.sampling_params import Structure
from orchestra.localengine.text.assembler import TokenBytes

__all__ = ["WHITESPACE", "Constraint", "StructureCompiler"]

WHITESPACE = r"[ \t\r\n]{0,20}"
"""Between the parts of JSON. It is bounded, as small models would fill the whole output with it."""

_THREADS = 2
_REMEMBERED = 256  # compiled forms, of which many requests have the same
_LONGEST_DEFINITION = 1 << 20


class Constraint:
    """One output's place in its form. One thread uses it at a time."""

    def __init__(self, matcher: Any, threads: ThreadPoolExecutor) -> None:
        self._matcher = matcher
        self._threads = threads
        self._mask: Future[bytes] | None = None  # of what may come next

    def allowed(self) -> Callable[[], bytes]:
        """Begin to work out what may come next; what is returned waits for that, and never raises.

        A bit for each token, the lowest first. Where the form cannot be followed any further, everything is
        allowed and `accept` raises.
        """
        if self._mask is None:  # else it was asked for by a step that was given up, and may still be in the making
            self._mask = self._threads.submit(self._matcher.compute_bitmask)
        return self._mask.result

    def accept(self, token_id: int) -> bool:
        """Take the next token; True where the output is whole and nothing can follow.

        Raises EngineError where the form became too complex to follow.
        """
        self._mask = None
        if not self._matcher.consume_token(token_id):
            raise EngineError(f"the output's form cannot be followed any further: {_brief(self._matcher)}")
        return bool(self._matcher.is_stopped())


class StructureCompiler:
    """Makes constraints over one vocabulary. Any thread may use it.

    ``eos_ids`` are the tokens that end the output where its form says that it may end.
    """

    def __init__(self, tokenizer: TokenBytes, vocab_size: int, eos_ids: AbstractSet[int]) -> None:
        self._words = tokenizer
        self._vocab_size = vocab_size
        self._eos_ids = sorted(eos_ids)
        self._lock = threading.Lock()
        self._vocabulary: Any = None
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="orchestra-structure")
        self._compiled = lru_cache(_REMEMBERED)(self._compile)

    def constraint(self, structure: Structure) -> Constraint:
        """A constraint at the beginning of an output. Takes milliseconds, or seconds for a giant schema.

        Raises GrammarError where the form cannot be compiled, and ImportError without llguidance.
        """
        return Constraint(self._compiled(structure).deep_copy(), self._threads)

    def _compile(self, structure: Structure) -> Any:
        from llguidance import LLMatcher

        if len(structure.definition) > _LONGEST_DEFINITION:
            raise GrammarError(f"the {structure.kind} has more than {_LONGEST_DEFINITION:,} characters")
        with self._lock:
            if self._vocabulary is None:
                self._vocabulary = self._read_vocabulary()
        matcher = LLMatcher(self._vocabulary, _grammar(structure), log_level=0)
        if matcher.is_error():
            raise GrammarError(f"the {structure.kind} cannot be used: {_brief(matcher)}")
        return matcher

    def _read_vocabulary(self) -> Any:
        from llguidance import LLTokenizer, TokenizerWrapper

        words = [self._words.token_bytes(token) for token in range(self._vocab_size)]
        # llguidance tells control tokens from text by a first byte that no text has
        marked = [b"\xff" + w if self._words.is_special(t) else w for t, w in enumerate(words)]
        eos_ids = self._eos_ids or [next((t for t, w in enumerate(words) if self._words.is_special(t)), 0)]
        return LLTokenizer(
            TokenizerWrapper(_Vocabulary(marked, eos_ids[0])), n_vocab=self._vocab_size, eos_token=eos_ids
        )


class _Vocabulary:
    """What llguidance's TokenizerWrapper asks for."""

    bos_token_id = None

    def __init__(self, tokens: list[bytes], eos_token_id: int) -> None:
        self.tokens = tokens
        self.eos_token_id = eos_token_id
        self._ids = {word: token for token, word in enumerate(tokens)}

    def __call__(self, text: bytes | str) -> list[int]:
        """Used to split forced text, byte by byte where need be; masks do not depend on it."""
        octets = text.encode() if isinstance(text, str) else text
        return [
            self._ids[octet] for octet in (octets[i : i + 1] for i in range(len(octets))) if octet in self._ids
        ]


def _grammar(structure: Structure) -> str:
    from llguidance import LLMatcher

    options = {"whitespace_pattern": WHITESPACE}
    match structure.kind:
        case "json_object":
            return LLMatcher.grammar_from_json_schema({"type": "object"}, overrides=options)  # type: ignore[arg-type]
        case "json_schema":
            try:
                schema = json.loads(structure.definition)
            except (ValueError, RecursionError) as error:
                raise GrammarError(f"the json_schema is not JSON: {error}") from None
            if not isinstance(schema, dict):
                raise GrammarError("the json_schema must be an object")
            return LLMatcher.grammar_from_json_schema(schema, overrides=options)  # type: ignore[arg-type]
        case "regex":
            return LLMatcher.grammar_from_regex(structure.definition)
        case "grammar":
            return LLMatcher.grammar_from_lark(structure.definition)


def _brief(matcher: Any) -> str:
    """The first line of what is wrong, as much as fits in a sentence."""
    return str(matcher.get_error()).strip().partition("\n")[0][:300]
