"""Which wire a request speaks, and what its body says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from types import ModuleType
from typing import Any

from orchestra.testing import anthropic_form, gemini_form, openai_form
from orchestra.testing.content import Content
from orchestra.testing.encoding import compact

__all__ = ["asked", "encoded_answer", "form_of", "most_output", "serves", "streamed"]

_PLAIN = ("/completions", "/messages", ":generateContent")
_GEMINI = re.compile(r"/v1(?:beta|alpha)/(?!openai/)|/v1/models/[^/]+:\w+$")


def form_of(path: str) -> ModuleType:
    """Return the module that knows the wire of a path."""
    if "/messages" in path:
        return anthropic_form
    return gemini_form if _GEMINI.search(path) else openai_form


def serves(path: str) -> bool:
    """Return whether there is an endpoint of the models that batches may ask."""
    return bool(form_of(path).serves(path))


def encoded_answer(path: str, payload: Mapping[str, Any], text: str, prompt: int) -> str:
    """Return the answer of a line of a batch as JSON."""
    model = payload.get("model")
    if isinstance(model, str) and path.endswith(_PLAIN):
        return _plain_answer(path, model, text, prompt)
    return compact(form_of(path).whole_answer(path, payload, text, prompt))


@lru_cache(maxsize=1024)
def _plain_answer(path: str, model: str, text: str, prompt: int) -> str:
    """Return an answer that depends on nothing else: many lines of a batch have the same."""
    answer = form_of(path).whole_answer(path, {"model": model}, text, prompt)
    if path.endswith("/messages"):
        answer["usage"]["service_tier"] = "batch"
    return compact(answer)


def asked(path: str, body: Content) -> dict[str, Any]:
    """Return what a body asks, with the model where the path names it; empty where it is no JSON object."""
    payload = openai_form.object_of(body) or {}
    model = gemini_form.model_of(path)
    return payload if model is None else {"model": model, **payload}


def streamed(path: str, payload: Mapping[str, Any]) -> bool:
    """Return whether an answer is to be streamed."""
    return payload.get("stream") is True or path.endswith(":streamGenerateContent")


def most_output(payload: Mapping[str, Any]) -> int:
    """Return how many tokens may come at most, or 0 where nothing is said of it."""
    config = payload.get("generationConfig")
    told = (
        *(payload.get(name) for name in ("max_completion_tokens", "max_tokens", "max_output_tokens")),
        config.get("maxOutputTokens") if isinstance(config, Mapping) else None,
    )
    bound = next((bound for bound in told if isinstance(bound, int)), 0)
    answers = payload.get("n")
    return bound * (answers if isinstance(answers, int) else 1)
