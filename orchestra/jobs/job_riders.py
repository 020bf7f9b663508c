"""The lines of a submitted job, as its batches see them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from orchestra.batches import BatchDesk, BatchRoute
from orchestra.call import Call
from orchestra.errors import JobError
from orchestra.jobs.ledger.line import Line
from orchestra.jobs.ledger.record import BatchRecord, JobRecord
from orchestra.jobs.progress.pace import AllowedPace, pace_of
from orchestra.policies.diversion import SyncPace

__all__ = ["JobRiders"]


class JobRiders:
    """All lines of a job have its deadline, and go where their models' routes lead.

    ``rate`` says how many lines a second are answered that go by themselves, where some were lately. ``on_ended``
    is told how many have ended, ``on_overtaken`` which of those that may be on their way by themselves;
    ``on_released`` that some are to go so.
    """

    def __init__(
        self,
        job: JobRecord,
        desk: BatchDesk,
        *,
        rate: Callable[[], float | None],
        on_ended: Callable[[int], None],
        on_overtaken: Callable[[Sequence[int]], None],
        on_released: Callable[[], None],
    ) -> None:
        self._job = job
        self._desk = desk
        self._kinds: dict[tuple[str, str], _Kind] = {}
        self._rate = rate
        self._on_ended = on_ended
        self._on_overtaken = on_overtaken
        self.released = on_released

    def routes(self, line: Line, payload: Mapping[str, Any]) -> Sequence[BatchRoute]:
        """Return where a line could ride, in order of preference."""
        key = (line.path, payload["model"])
        kind = self._kinds.get(key)
        if kind is None:
            call = Call.originate(line.path, {"model": payload["model"]})
            kind = self._kinds[key] = _Kind(self._desk.routes(call))
        if kind.routes:
            kind.pace.look(kind.routes[0], payload)
        return kind.routes

    def waits(self, number: int) -> bool:
        """Return True: all lines of a job are to be dealt."""
        return True

    def is_awaited(self, record: BatchRecord) -> bool:
        """Return True: so are all lines of a job."""
        return True

    def deadline(self, number: int) -> float | None:
        """Return the unix time by which a line is wanted."""
        return self._job.deadline

    def deadline_of(self, record: BatchRecord) -> float | None:
        """Return the unix time by which a batch's lines are wanted."""
        return self._job.deadline

    def route(self, record: BatchRecord) -> BatchRoute | None:
        """Return the route of a batch that was made earlier. Raises JobError where there is none."""
        route = self._desk.reopened(record)
        if route is None:
            raise JobError(
                f"a batch of it is at the provider {record.provider!r}, as {record.route}, and the settings have "
                f"no such provider with batches any more: configure [providers.{record.provider}] again, or "
                f"give its lines up by `orchestra jobs cancel {self._job.name}`"
            )
        return route

    def pace(self) -> SyncPace:
        """Return how fast lines are answered that go by themselves: as measured, or as the settings allow."""
        return pace_of([kind.pace for kind in list(self._kinds.values())], self._rate())

    def refused(self, route: BatchRoute, why: str) -> None:
        """Raise JobError: nobody is served before the account is put right, and nothing is lost by waiting."""
        provider = route.account.name
        raise JobError(
            f"the account of [providers.{provider}] is refused: {why}; put its key or credit right and "
            "run the job again: its batches are kept, and their discount"
        )

    def ended(self, numbers: Sequence[int], count: int, *, late: bool) -> None:
        """Hear that so many of these lines have ended."""
        if late:
            self._on_overtaken(numbers)
        self._on_ended(count)


class _Kind:
    """Lines of one endpoint and model."""

    __slots__ = ("pace", "routes")

    def __init__(self, routes: Sequence[BatchRoute]) -> None:
        self.routes = routes
        self.pace = AllowedPace()
