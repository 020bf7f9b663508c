"""What a `ScriptedProvider` is told to do with batches."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from orchestra.testing.script import Reply

__all__ = ["BatchLimits", "BatchScript"]


@dataclass(frozen=True, slots=True)
class BatchScript:
    """How a batch goes, from its creation to what is read of it. By itself: at once, and all is well.

    Its course, in seconds of the provider's clock: ``validating``, then ``running`` while line after line is
    answered, then ``finalizing``, then ``end``:

    - ``"completed"``, ``"expired"`` or ``"cancelled"`` (by somebody else);
    - ``"failed"``, straight after validating, with ``code`` and ``message``. Anthropic knows no such end: there
      every line is ``errored``;
    - None: never; it stands in progress until it is cancelled or its window is over;
    - any other word: a status that no client knows, and it stays.

    A batch that is cancelled takes ``cancelling`` seconds, in which ``finishing`` more lines are answered.

    ``answered`` is how many of its lines are ever answered, the first ones: a number, a share (0.6), or None for
    all. ``replies`` are the answers of single lines, by position or custom id; a status of 400 or more is a failed
    line; all others get the endpoint's default answer. Lines in ``missing`` are not answered, and nothing is said
    of them; those in ``doubled`` are told twice; ``strangers`` are told though nobody asked them; ``shuffle`` is
    the seed of a random order.

    What is wrong with reading it: its files or results appear ``results_after`` seconds after its end;
    ``results_origin`` is another host that they are read from (Anthropic); from ``vanishes_after`` seconds after
    its creation on nobody knows it; ``absent_id`` is what stands for the id of a file that there is not;
    ``empty_files`` makes an empty file rather than none; ``counts=False`` tells null for its request counts.

    What is wrong with the requests themselves: ``on_create`` is answered though the batch exists
    (``Reply(drop=True)``: nothing is); ``on_poll`` are the answers of its first polls, ``on_results`` of the first
    times its results are read. A `Reply` without a status and body of its own is the usual answer, later, or cut.
    """

    validating: float = 0.0
    running: float = 0.0
    finalizing: float = 0.0
    cancelling: float = 0.0
    end: str | None = "completed"
    code: str = "token_limit_exceeded"
    message: str = "scripted"
    answered: int | float | None = None
    finishing: int = 0
    replies: Mapping[int | str, Reply] = field(default_factory=dict)
    missing: Collection[int | str] = ()
    doubled: Collection[int | str] = ()
    strangers: Sequence[str] = ()
    shuffle: int | None = None
    results_after: float = 0.0
    results_origin: str | None = None
    vanishes_after: float = math.inf
    absent_id: str | None = None
    empty_files: bool = False
    counts: bool = True
    on_create: Reply | None = None
    on_poll: Sequence[Reply] = ()
    on_results: Sequence[Reply] = ()

    def __post_init__(self) -> None:
        seconds = ("validating", "running", "finalizing", "cancelling", "results_after", "vanishes_after")
        for name in seconds:
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be a number of seconds from 0 on, not {getattr(self, name)!r}")
        if isinstance(self.answered, float) and not 0 <= self.answered <= 1:
            raise ValueError(
                f"answered must be a number of lines, or a share from 0.0 to 1.0, not {self.answered!r}"
            )

    @property
    def named(self) -> frozenset[str]:
        """The custom ids that it says something of."""
        every = (*self.replies, *self.missing, *self.doubled)
        return frozenset(name for name in every if isinstance(name, str))

    def answered_of(self, total: int) -> int:
        """Return how many of so many lines are ever answered."""
        if self.answered is None:
            return total
        wanted = round(total * self.answered) if isinstance(self.answered, float) else self.answered
        return max(0, min(total, wanted))


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """What the provider allows of batches.

    ``enqueued_tokens`` is OpenAI's: prompt tokens of a model in batches that have not ended. One too many is
    created, and fails with ``token_limit_exceeded``. ``enqueued_requests`` is Anthropic's, refused at once (429).
    ``creations_per_hour`` holds for an account, on both. None for ``max_requests`` and ``max_bytes`` of a batch:
    what each documents, 50,000 and 200 MB, and 100,000 and 256 MB.
    """

    enqueued_tokens: int | None = None
    enqueued_requests: int | None = None
    creations_per_hour: int | None = None
    max_requests: int | None = None
    max_bytes: int | None = None
