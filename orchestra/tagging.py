"""Say which traffic class the calls inside a block belong to.

The tag travels in a context variable, so that it reaches calls made by any library. Threads started by
``run_in_executor`` do not inherit it (``asyncio.to_thread`` does); there, or for a client that sends nothing but
bulk, send a header instead, or a field of the same name in the JSON body (``extra_body`` of the official SDKs)::

    x-orchestra-traffic: bulk; deadline=24h; job=nightly

What is closest to the call counts: the body's field, else the header, else the innermost block. Neither leaves us.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass

from orchestra.clock import wall
from orchestra.durations import parse_duration
from orchestra.errors import InputError
from orchestra.policies.traffic import TrafficClass

__all__ = ["TAG_HEADER", "Tag", "bulk", "current_tag", "interactive", "parse_tag"]

TAG_HEADER = "x-orchestra-traffic"


@dataclass(frozen=True, slots=True)
class Tag:
    """A traffic class and its bounds.

    ``timeout`` bounds each call, in seconds from its start, queueing included. ``deadline`` is an instant (unix
    time) that bounds them all, since it must mean the same after a restart.
    """

    traffic: TrafficClass
    job: str | None = None
    timeout: float | None = None
    deadline: float | None = None

    def expires_at(self, now: float, wall: float) -> float | None:
        """Return the instant that bounds a call which starts now, on the clock of ``now``; None where none does.

        ``wall`` is unix time.
        """
        bounds = [] if self.timeout is None else [now + self.timeout]
        if self.deadline is not None:
            bounds.append(now + self.deadline - wall)
        return min(bounds, default=None)


_tag: ContextVar[Tag | None] = ContextVar("orchestra_tag", default=None)


def current_tag() -> Tag | None:
    """Return the tag of the innermost block, or None outside any."""
    return _tag.get()


@contextmanager
def interactive(*, timeout: float | str | None = None) -> Iterator[Tag]:
    """Calls inside are interactive: admitted before any bulk. ``timeout`` bounds each one, queueing included."""
    tag = Tag(TrafficClass.INTERACTIVE, timeout=None if timeout is None else parse_duration(timeout))
    with _tagged(tag):
        yield tag


@contextmanager
def bulk(*, deadline: float | str | None = None, job: str | None = None) -> Iterator[Tag]:
    """Calls inside are bulk: they take what interactive leaves. ``deadline`` counts from here and bounds them all.

    ``job`` names the work they belong to; jobs share what bulk gets fairly.
    """
    instant = None if deadline is None else wall() + parse_duration(deadline)
    tag = Tag(TrafficClass.BULK, job=job, deadline=instant)
    with _tagged(tag):
        yield tag


@contextmanager
def _tagged(tag: Tag) -> Iterator[None]:
    token = _tag.set(tag)
    try:
        yield
    finally:
        with suppress(ValueError):  # left in another context (a generator that a framework finishes elsewhere)
            _tag.reset(token)


def parse_tag(header: str) -> Tag:
    """Return the tag that a ``x-orchestra-traffic`` header, or such a field of a body, states.

    Raises InputError where it is malformed: a call must not run in the wrong class by a typing error.
    """
    word, *pairs = (part.strip() for part in header.split(";"))
    try:
        traffic = TrafficClass(word.lower())
    except ValueError:
        raise _malformed(f"{word!r} is neither 'interactive' nor 'bulk'") from None
    job: str | None = None
    timeout: float | None = None
    deadline: float | None = None
    for pair in filter(None, pairs):
        key, _, value = (part.strip() for part in pair.partition("="))
        try:
            match key:
                case "job" if value:
                    job = value
                case "timeout":
                    timeout = parse_duration(value)
                case "deadline":
                    deadline = wall() + parse_duration(value)
                case _:
                    raise ValueError("it is none of job=, timeout=, deadline=")
        except ValueError as error:
            raise _malformed(f"{pair!r}: {error}") from None
    return Tag(traffic, job=job, timeout=timeout, deadline=deadline)


def _malformed(what: str) -> InputError:
    return InputError(f'{TAG_HEADER}: {what}; write it like "bulk; deadline=24h; job=nightly"', param=TAG_HEADER)
