"""The providers' batch endpoints: one file a form, found by the ``kind`` of the settings."""

from __future__ import annotations

import importlib
from functools import cache

from orchestra.kinds import KINDS
from orchestra.providers.batches.base import (
    Ask,
    BatchForm,
    BatchLine,
    BatchOrder,
    BatchState,
    BatchTraits,
    LineResult,
    ResultReader,
)

__all__ = [
    "Ask",
    "BatchForm",
    "BatchLine",
    "BatchOrder",
    "BatchState",
    "BatchTraits",
    "LineResult",
    "ResultReader",
    "form_of_kind",
    "forms_of_kind",
]


@cache
def form_of_kind(kind: str) -> BatchForm | None:
    """Return the form of that kind's batches, or None where it has none. Its module is loaded when first asked
    for."""
    named = KINDS[kind].batches
    if named is None:
        return None
    module, _, name = named.partition(":")
    form: type[BatchForm] = getattr(importlib.import_module(f"orchestra.providers.batches.{module}"), name)
    return form()


@cache
def forms_of_kind(kind: str) -> tuple[BatchForm, ...]:
    """Return every form in which lines can be handed to that kind at a lower price: its batches, then its
    responses in the background."""
    batches = form_of_kind(kind)
    forms = () if batches is None else (batches,)
    if not KINDS[kind].background:
        return forms
    from orchestra.providers.batches.background import BACKGROUNDS

    return (*forms, *(BACKGROUNDS[window]() for window in KINDS[kind].background))
