"""What a request can come to, for its price: every dialect's output bound, whatever its limits count."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from orchestra.call import Charge, Usage
from orchestra.providers.base import Endpoint

__all__ = ["OUTPUT_GUESS", "expected_usage"]

OUTPUT_GUESS = 256
"""Output tokens expected of a call that does not bound them."""

_SILENT = frozenset({Endpoint.EMBEDDINGS, Endpoint.EMBED_CONTENT, Endpoint.BATCH_EMBED_CONTENTS})
_BOUNDS = ("max_completion_tokens", "max_output_tokens", "max_tokens", "maxOutputTokens")
_ANSWERS = ("n", "best_of", "candidateCount", "candidate_count")
_LARGEST_COUNT = 10**9


def expected_usage(endpoint: Endpoint, payload: Mapping[str, Any], charge: Charge) -> Usage | None:
    """Return the usage to set money aside for: the estimated input, and the output of all answers up to its bound.

    ``charge`` is the provider's own for this request. None where nobody knows what the endpoint charges for.
    """
    if endpoint is Endpoint.OTHER:
        return None
    output = charge.output_tokens
    if not output and endpoint not in _SILENT:  # the provider counts output only as it comes
        config = payload.get("generationConfig", payload.get("generation_config"))
        said = {**payload, **config} if isinstance(config, Mapping) else payload
        bound = next((size for name in _BOUNDS if (size := _count(said.get(name))) is not None), OUTPUT_GUESS)
        output = bound * max(_count(said.get(name)) or 1 for name in _ANSWERS)
    return Usage(math.ceil(charge.input_tokens), math.ceil(output), certainty="estimated")


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= _LARGEST_COUNT else None
