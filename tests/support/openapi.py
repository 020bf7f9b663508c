"""OpenAI's published description of its wire, where ``ORCHESTRA_OPENAPI`` names its ``openapi.json``."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

needs_description = pytest.mark.skipif(
    "ORCHESTRA_OPENAPI" not in os.environ, reason="ORCHESTRA_OPENAPI names no openapi.json of OpenAI"
)


def faults(schema: str, told: Any, *, nulls: bool = True) -> Iterable[str]:
    """Yield what is wrong with ``told`` as the description's ``schema``.

    Some optional fields are not declared nullable though the API sends null: ``nulls=False`` leaves those out.
    """
    root = {**_description(), "$ref": f"#/components/schemas/{schema}"}
    validator = jsonschema.Draft202012Validator(root)
    for error in validator.iter_errors(told if nulls else _without_nulls(told)):
        yield f"{schema} {error.json_path}: {error.message[:300]}"


@cache
def _description() -> Mapping[str, Any]:
    document: Mapping[str, Any] = json.loads(Path(os.environ["ORCHESTRA_OPENAPI"]).read_text(encoding="utf-8"))
    return _map(document, _nullable)  # type: ignore[no-any-return]


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema with OpenAPI 3.0's ``nullable`` in today's words."""
    nullable = schema.pop("nullable", None)
    return {"anyOf": [schema, {"type": "null"}]} if nullable is True else schema


def _without_nulls(told: Any) -> Any:
    return _map(told, lambda one: {name: value for name, value in one.items() if value is not None})


def _map(value: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    if isinstance(value, list):
        return [_map(one, change) for one in value]
    if isinstance(value, Mapping):
        return change({name: _map(one, change) for name, one in value.items()})
    return value
