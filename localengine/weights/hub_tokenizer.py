"""The tokenizer of a model on a hub: ``tokenizer.json``, run by the library that wrote it, and its settings.

The library would read a control token out of any text. So it is given a vocabulary in which the control tokens
have names that nobody can guess, and control tokens are found by :class:`Tokenizer` where they may be.
"""

from __future__ import annotations

import copy
import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer as Backend

from orchestra.localengine.text.tokenizer import Tokenizer, TokenKind
from orchestra.localengine.weights.fields import DAMAGED, Fields
from orchestra.localengine.weights.pieces import byte_level_piece, sentencepiece_piece

__all__ = ["hub_tokenizer"]

_MAX_VOCABULARY = 1 << 22
_PROBE = "Hello world, 1234 \u00e9\u4e2d\U0001f600\n\t  x"  # a tokenizer that cannot cut this up cuts up nothing


def hub_tokenizer(
    source: Mapping[str, Any],
    settings: Mapping[str, object],
    *,
    vocab_size: int,
    end_ids: Sequence[int] = (),
) -> Tokenizer:
    """From the contents of ``tokenizer.json`` and ``tokenizer_config.json``, for a model of ``vocab_size`` rows.

    ``end_ids``: the tokens that end an output, as the model's own files name them. Raises ValueError (fault and
    remedy) where it is no tokenizer that the engine runs.
    """
    entries = _model_entries(source)
    added = _added_tokens(source)
    named = {key: _token_name(settings, key) for key in ("bos_token", "eos_token", "unk_token", "pad_token")}
    control = {t["content"] for t in added if t["special"]} | {name for name in named.values() if name}
    tokens = [""] * vocab_size
    kinds = [TokenKind.UNUSED] * vocab_size
    fallback = Fields(source["model"]).flag("byte_fallback", default=False)
    for text, i in [*entries, *((t["content"], t["id"]) for t in added)]:
        if not 0 <= i < vocab_size:
            raise ValueError(f"token {text[:40]!r} has the id {i} in a model of {vocab_size} rows; {DAMAGED}")
        tokens[i] = text
        byte = fallback and text.startswith("<0x")
        kinds[i] = TokenKind.BYTE if byte else TokenKind.NORMAL
    for token in added:
        kinds[token["id"]] = TokenKind.USER_DEFINED
    ids = {text: i for i, text in enumerate(tokens) if text}
    for text in control & ids.keys():
        kinds[ids[text]] = TokenKind.CONTROL
    named_ids = {key: ids.get(name) if name else None for key, name in named.items()}

    first = _hidden(source, control)
    later = _without_first_space(first)
    backend = _backend(first)
    for text, i in ids.items():
        if kinds[i] != TokenKind.CONTROL and backend.token_to_id(text) != i:
            raise ValueError(f"token {text[:40]!r} is not where tokenizer.json says; {DAMAGED}")
    decoder = list(_parts(source.get("decoder")))
    start = _start_id(source)
    bos_id = start if named_ids["bos_token"] is None else named_ids["bos_token"]
    add_bos = Fields(settings).flag("add_bos_token", default=start is not None)
    piece = _piece_of(decoder)
    ends = [i for i in (named_ids["eos_token"], *end_ids) if i is not None]
    return Tokenizer(
        tokens,
        kinds,
        [piece(text, kind) for text, kind in zip(tokens, kinds, strict=True)],
        first=backend,
        later=None if later is None else _backend(later),
        bos_id=bos_id,
        eos_ids=list(dict.fromkeys(ends)),
        add_bos=add_bos,
        adds_space=any(_strips_space(part) for part in decoder),
        strips_left={t["id"] for t in added if t["lstrip"]},
        strips_right={t["id"] for t in added if t["rstrip"]},
    )


def _model_entries(source: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Text and id of each entry of the vocabulary proper."""
    model = source.get("model")
    if not isinstance(model, Mapping):
        raise ValueError(f"tokenizer.json has no model; {DAMAGED}")
    vocab = model.get("vocab")
    kind = model.get("type", "BPE" if "merges" in model else None)
    if kind == "BPE" and isinstance(vocab, Mapping):
        entries = list(vocab.items())
    elif kind == "Unigram" and isinstance(vocab, list) and all(isinstance(v, list) and v for v in vocab):
        entries = [(piece[0], i) for i, piece in enumerate(vocab)]
    else:
        raise ValueError(f"its tokenizer is of kind {str(kind)[:40]!r}; use a model with BPE or Unigram")
    if len(entries) > _MAX_VOCABULARY:
        raise ValueError(f"its vocabulary has {len(entries):,} tokens, which no model needs; {DAMAGED}")
    for text, i in entries:
        if not isinstance(text, str) or isinstance(i, bool) or not isinstance(i, int):
            raise ValueError(f"its vocabulary has an entry {text!r:.40} of {i!r:.40}; {DAMAGED}")
    return entries


def _added_tokens(source: Mapping[str, Any]) -> list[dict[str, Any]]:
    added = source.get("added_tokens") or []
    flags = ("special", "lstrip", "rstrip")
    for token in added if isinstance(added, list) else [added]:
        if (
            not isinstance(token, dict)
            or not isinstance(token.get("content"), str)
            or not isinstance(token.get("id"), int)
            or not token["content"]
            or not all(isinstance(token.get(flag), bool) for flag in flags)
        ):
            raise ValueError(f"tokenizer.json has an added token {str(token)[:60]!r}; {DAMAGED}")
    return list(added)


def _token_name(settings: Mapping[str, object], key: str) -> str | None:
    value = settings.get(key)
    if isinstance(value, Mapping):
        value = value.get("content")
    if value is None or isinstance(value, str):
        return value
    raise ValueError(f"{key} in tokenizer_config.json is {str(value)[:40]!r}; {DAMAGED}")


def _hidden(source: Mapping[str, Any], control: set[str]) -> dict[str, Any]:
    """``source`` with other texts for the control tokens, and without what it would add to a text."""
    names = {text: f"{secrets.token_hex(16)}-{i}" for i, text in enumerate(sorted(control))}
    out = {**source, "post_processor": None, "truncation": None, "padding": None}
    out["added_tokens"] = [
        {**token, "content": names.get(token["content"], token["content"])}
        for token in source.get("added_tokens") or []
    ]
    model = dict(source["model"])
    if isinstance(model["vocab"], list):
        model["vocab"] = [[names.get(text, text), *rest] for text, *rest in model["vocab"]]
    else:
        model["vocab"] = {names.get(text, text): i for text, i in model["vocab"].items()}
        model["merges"] = [pair for pair in model.get("merges") or [] if not _touches(pair, control)]
        unknown = model.get("unk_token")
        model["unk_token"] = names.get(unknown, unknown) if isinstance(unknown, str) else None
    return {**out, "model": model}


def _touches(merge: object, control: set[str]) -> bool:
    """Whether a merge, ``"a b"`` or ``["a", "b"]``, makes or uses a control token."""
    parts = merge.split(" ") if isinstance(merge, str) else merge
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        raise ValueError(f"its merges hold {str(merge)[:40]!r}; {DAMAGED}")
    return "".join(parts) in control or not control.isdisjoint(parts)


def _without_first_space(source: dict[str, Any]) -> dict[str, Any] | None:
    """For what follows a control token, where only the beginning of a text gets a space; else None."""
    other = copy.deepcopy(source.get("pre_tokenizer"))
    changed = False
    for part in _parts(other):
        if part.get("type") == "Metaspace" and part.get("prepend_scheme") == "first":
            part["prepend_scheme"] = "never"
            changed = True
    return {**source, "pre_tokenizer": other} if changed else None


def _backend(source: Mapping[str, Any]) -> Backend:
    try:
        backend = Backend.from_str(json.dumps(source))
        backend.encode(_PROBE, add_special_tokens=False)
    except BaseException as error:
        # the library's faults are plain Exceptions, and its panics no Exceptions at all
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        fault = str(error).strip().partition("\n")[0][:200].rstrip(".")
        raise ValueError(f"tokenizer.json cannot be used ({fault}); {DAMAGED}") from None
    return backend


def _parts(node: object) -> Iterator[dict[str, Any]]:
    """A decoder, pre-tokenizer or post-processor and all that are inside it."""
    if not isinstance(node, dict):
        return
    yield node
    for key in ("decoders", "pretokenizers", "processors"):
        for inner in node.get(key) or ():
            yield from _parts(inner)


def _piece_of(decoder: list[dict[str, Any]]) -> Callable[[str, TokenKind], bytes]:
    """How this decoder's vocabulary writes bytes."""
    kinds = {part.get("type") for part in decoder}
    if "ByteLevel" in kinds:
        return byte_level_piece
    if kinds & {"Metaspace", "ByteFallback", "Replace"}:
        return sentencepiece_piece
    raise ValueError("its tokenizer writes neither bytes nor spaces in a known way; use another model")


def _strips_space(part: Mapping[str, Any]) -> bool:
    """Whether this part of a decoder takes a space from the beginning, which then is one that was put there."""
    if part.get("type") == "Metaspace":
        return bool(part.get("prepend_scheme", "always") != "never" and part.get("add_prefix_space", True))
    return part.get("type") == "Strip" and part.get("content") == " " and bool(part.get("start"))


def _start_id(source: Mapping[str, Any]) -> int | None:
    """The token that is put before every text."""
    for part in _parts(source.get("post_processor")):
        if part.get("type") == "TemplateProcessing":
            single = part.get("single") or [{}]
            name = (single[0].get("SpecialToken") or {}).get("id")
            ids = ((part.get("special_tokens") or {}).get(name) or {}).get("ids")
            if ids and isinstance(ids[0], int):
                return int(ids[0])
    return None
