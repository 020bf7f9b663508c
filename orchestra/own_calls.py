"""Calls of our own client: what it is asked becomes a `Call`, and an answer that is an error becomes one."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from orchestra.call import Call, Outcome, read_json
from orchestra.chat_stream import error_message
from orchestra.clock import wall
from orchestra.errors import ConnectionFailed, InputError, ProviderError
from orchestra.policies.traffic import TrafficClass
from orchestra.providers.hints import retry_after
from orchestra.tagging import Tag, current_tag

__all__ = ["chat_payload", "embeddings_payload", "originate", "provider_error", "read_vectors"]

QUEUE_BOUND = 600.0
"""Seconds that an interactive call waits for its turn at most: the read timeout that SDKs have by default."""


def chat_payload(model: str, messages: Sequence[Any], params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of a chat request. Raises InputError where its model or its messages cannot be meant."""
    if not isinstance(model, str) or not model:
        raise InputError(f"model must be a name, not {model!r}", param="model")
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence):
        raise InputError('messages must be a list, like [{"role": "user", "content": "Hello"}]', param="messages")
    if not messages:
        raise InputError("messages must hold at least one message", param="messages")
    plain = [_plain_message(message, index) for index, message in enumerate(messages)]
    return {"model": model, "messages": plain, **params}


def embeddings_payload(model: str, texts: Sequence[str], params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of an embeddings request. Raises InputError where its model or its texts cannot be meant."""
    if not isinstance(model, str) or not model:
        raise InputError(f"model must be a name, not {model!r}", param="model")
    if isinstance(texts, str) or not isinstance(texts, Sequence) or not texts:
        raise InputError('texts must be a list of at least one text, like ["Hello"]', param="input")
    for index, text in enumerate(texts):
        if not isinstance(text, str) or not text:
            raise InputError(f"texts[{index}] must be a text that is not empty", param=f"input[{index}]")
    return {"model": model, "input": list(texts), "encoding_format": "float", **params}


def read_vectors(outcome: Outcome, body: bytes, count: int) -> list[list[float]]:
    """Return the vectors of an embeddings answer, in the order of the texts.

    Raises ConnectionFailed where it is none, or not for so many texts.
    """
    try:
        data = read_json(body)["data"]
        found = {entry["index"]: [float(each) for each in entry["embedding"]] for entry in data}
        return [found[index] for index in range(count)]
    except (ValueError, TypeError, KeyError):
        pass
    raise ConnectionFailed(f"the answer from {outcome.route} holds no embeddings of {count} texts", sent=True)


def _plain_message(message: Any, index: int) -> Mapping[str, Any]:
    if hasattr(message, "model_dump"):  # a message that an answer brought, ours or an SDK's
        message = message.model_dump(exclude_none=True)
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise InputError(f"messages[{index}] must be a dict with role and content", param=f"messages[{index}]")
    return message


def originate(path: str, payload: Mapping[str, Any]) -> Call:
    """Return the call, in the class and with the bounds of the block that we are in."""
    tag = current_tag() or Tag(TrafficClass.INTERACTIVE)
    expires_at = tag.expires_at(time.monotonic(), wall())
    waits_unbounded = tag.traffic is TrafficClass.BULK or expires_at is not None
    try:
        return Call.originate(
            path,
            payload,
            traffic=tag.traffic,
            job=tag.job,
            expires_at=expires_at,
            queue_bound=None if waits_unbounded else QUEUE_BOUND,
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"the request cannot be written as JSON: {error}") from None


def provider_error(outcome: Outcome, body: bytes) -> ProviderError:
    try:
        answer = read_json(body)
    except ValueError:
        answer = None
    error = answer.get("error") if isinstance(answer, dict) else None
    fields = error if isinstance(error, dict) else {}
    code = fields.get("code") or fields.get("type")
    return ProviderError(
        f"{outcome.route} answered {outcome.status}: {error_message(body)}",
        status=outcome.status,
        code=None if code is None else str(code),
        retry_after=retry_after(outcome.headers, fields, wall()),
        body=body,
    )
