"""Read the form that an answer should have, as each wire asks for it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from orchestra.errors import InputError
from orchestra.local_route.fields import optional, shown

if TYPE_CHECKING:
    from orchestra.localengine.sampling_params import Structure

__all__ = ["read_form", "read_structured_outputs"]


def read_form(given: Any, place: str, *, nested: bool) -> Structure | None:
    """Read ``{"type": "text" | "json_object" | "json_schema", ...}``; None asks for nothing.

    ``nested``: the schema is in an object of its own (chat), not beside the type (responses, messages).
    """
    from orchestra.localengine.sampling_params import Structure

    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise InputError(f"{place} must be an object with a type, not {shown(given)}", param=place)
    match given.get("type"):
        case "text":
            return None
        case "json_object":
            return Structure("json_object")
        case "json_schema":
            holder, inner = given, place
            if nested:
                inner = f"{place}.json_schema"
                holder = optional(given, "json_schema", dict, prefix=f"{place}.") or {}
            schema = holder.get("schema")
            if not isinstance(schema, Mapping):
                raise InputError(
                    f"{inner}.schema must be a JSON schema, not {shown(schema)}", param=f"{inner}.schema"
                )
            return Structure("json_schema", json.dumps(schema))
    raise InputError(
        f"{place}.type must be text, json_object or json_schema, not {shown(given.get('type'))}",
        param=f"{place}.type",
    )


def read_structured_outputs(payload: Mapping[str, Any]) -> Structure | None:
    """Read vLLM's ``structured_outputs``: one of ``json``, ``regex``, ``choice`` and ``grammar`` (Lark)."""
    from orchestra.localengine.sampling_params import Structure

    place = "structured_outputs"
    given = optional(payload, place, dict)
    asked = {name: value for name, value in (given or {}).items() if value not in (None, False)}
    if not asked:
        return None
    if len(asked) > 1:
        raise InputError(f"{place} must ask for one form, not {', '.join(asked)}", param=place)
    match asked:
        case {"json": str(schema)} if schema:
            return Structure("json_schema", schema)
        case {"json": dict(schema)}:
            return Structure("json_schema", json.dumps(schema))
        case {"json_object": True}:
            return Structure("json_object")
        case {"regex": str(pattern)} if pattern:
            return Structure("regex", pattern)
        case {"grammar": str(grammar)} if grammar:
            return Structure("grammar", grammar)
        case {"choice": [*choices]} if choices and all(isinstance(one, str) and one for one in choices):
            return Structure("regex", "|".join(map(re.escape, choices)))
    name = next(iter(asked))
    raise InputError(
        f"{place}.{name}: the local engine does json, json_object, regex, choice and grammar, each with a value",
        param=f"{place}.{name}",
    )
