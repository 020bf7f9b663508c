"""What a batch's result says about a line. Pure."""

from __future__ import annotations

from dataclasses import replace

from orchestra.batches import BatchRoute
from orchestra.jobs.ledger.batch_ledger import number_of
from orchestra.jobs.ledger.record import End, LineError
from orchestra.providers import FormatError
from orchestra.providers.batches import LineResult

__all__ = ["judge_result"]


def judge_result(tag: str, route: BatchRoute, result: LineResult) -> End | None:
    """Return how a line of the job of that tag ended; None for one that is not ours, or that nobody served.

    An answer that is none of its endpoint's counts as not served.
    """
    number = number_of(tag, result.custom_id)
    if number is None or result.kind == "unserved":
        return None
    refused = result.kind == "refused"
    end = End(
        number,
        LineError(result.code, result.message) if refused else None,
        status_code=result.status,
        request_id=result.request_id,
        response=result.body,
        route=route.name,
        via=route.form.via,
    )
    if refused:
        return end
    try:
        usage = route.usage_of(result.body or b"")
    except FormatError:
        return None
    return replace(
        end,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        usd=route.usd_of(usage),
    )
