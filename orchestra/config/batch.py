"""The settings of a provider's batch endpoint."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from orchestra.config.section import Section

__all__ = ["BatchConfig"]

_Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False, strict=True)]
_Count = Annotated[int, Field(ge=1, strict=True)]


class BatchConfig(Section):
    """How bulk work that has time is put into a provider's batches.

    ``enabled`` is by default whether the kind of provider has batches; without it nothing here is used.
    ``background`` is whether lines may also go one by one as responses that are made in the background, which cost
    more than in a batch, and are sooner: by default whether the kind of provider has them.

    A batch of awaited calls is sent off ``window_seconds`` after the last of them came, and at most
    ``window_max_seconds`` after the first. An open batch is looked at after ``poll_seconds``, then each time half
    as long again, up to ``poll_max_seconds``.
    ``max_requests`` and ``max_bytes`` of a batch are by default those that the provider documents.
    ``expected_seconds`` is how long batches are thought to take, until some have been seen; ``cancelling_seconds``
    how long one takes to end that is cancelled, by default what the provider documents.
    """

    enabled: Annotated[bool, Field(strict=True)] | None = None
    background: Annotated[bool, Field(strict=True)] | None = None
    window_seconds: _Seconds = 2.0
    window_max_seconds: _Seconds = 30.0
    poll_seconds: _Seconds = 1.0
    poll_max_seconds: _Seconds = 60.0
    max_requests: _Count | None = None
    max_bytes: _Count | None = None
    expected_seconds: _Seconds | None = None
    cancelling_seconds: _Seconds | None = None

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        for short, long in (("window_seconds", "window_max_seconds"), ("poll_seconds", "poll_max_seconds")):
            if getattr(self, short) > getattr(self, long):
                raise ValueError(f"{short} may not be above {long}, which is {getattr(self, long):g}")
        return self
