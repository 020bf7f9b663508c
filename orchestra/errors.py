"""Every exception that orchestra raises.

::

    OrchestraError
    ├── ConfigError                a wrong or missing setting; names the file, the key and the remedy
    ├── InputError                 a request or an input file that cannot be used; nothing was sent
    │   └── UnknownModelError      no entry of [models] and no provider answers to this name
    ├── AdmissionError             the budget did not let the call through; nothing was sent
    │   ├── AdmissionTimeout       its timeout or deadline would pass (or passed) while it waited
    │   ├── QueueFull              the bounded waiting queue of its class is full
    │   └── BudgetExceeded         it can never fit the limit, or that of a day is used up for longer than it waits
    │       └── PriceUnknown       a limit in dollars holds, and no price is configured for the model
    ├── CallError                  a call that was sent, or tried to be
    │   ├── ProviderError          the provider answered with an error: status, code, retry_after
    │   ├── ConnectionFailed       no usable answer came: refused, reset, timed out, or not the endpoint's format
    │   ├── CallTimeout            no answer within the timeout that the caller gave its HTTP request
    │   │   └── DeadlineExceeded   its own timeout or deadline passed while it was being answered
    │   ├── StreamInterrupted      a stream broke after content had been shown, so it may not be retried
    │   └── AllRoutesFailed        every route of the model was tried; `attempts` tells each one's end
    ├── LocalEngineError           the in-process engine could not load or answer
    └── JobError                   a bulk job that cannot go on
        └── JobLocked              another process is running it
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "AdmissionError",
    "AdmissionTimeout",
    "AllRoutesFailed",
    "BudgetExceeded",
    "CallError",
    "CallTimeout",
    "ConfigError",
    "ConnectionFailed",
    "DeadlineExceeded",
    "InputError",
    "JobError",
    "JobLocked",
    "LocalEngineError",
    "OrchestraError",
    "PriceUnknown",
    "ProviderError",
    "QueueFull",
    "StreamInterrupted",
    "UnknownModelError",
]


class OrchestraError(Exception):
    """Base of every exception that orchestra raises.

    ``timed_out`` tells whether a bound of the caller's ended the call: its timeout, its deadline, or that of its
    HTTP request.
    """

    timed_out: bool = False


class ConfigError(OrchestraError):
    """A setting is wrong or missing. The message names the place and the remedy."""


class InputError(OrchestraError):
    """A request or an input file cannot be used. Nothing was sent.

    ``param`` names the offending field in the request's own dialect, where there is one, and ``code`` is what that
    dialect calls the fault (``context_length_exceeded``).
    """

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class UnknownModelError(InputError):
    """No route answers to the model's name."""


class AdmissionError(OrchestraError):
    """The budget did not admit the call. Nothing was sent.

    ``expected_wait`` is the wait in seconds that admission would have taken, or ``None`` if it never would.
    """

    def __init__(self, message: str, *, expected_wait: float | None = None) -> None:
        super().__init__(message)
        self.expected_wait = expected_wait


class AdmissionTimeout(AdmissionError):
    """The call's timeout or deadline would pass, or passed, while it waited for its turn.

    ``timed_out`` is False where it would have passed for certain, so that the call was refused before it had.
    """

    def __init__(self, message: str, *, expected_wait: float | None = None, timed_out: bool = True) -> None:
        super().__init__(message, expected_wait=expected_wait)
        self.timed_out = timed_out


class QueueFull(AdmissionError):
    """The bounded waiting queue of the call's class is full."""


class BudgetExceeded(AdmissionError):
    """The call can never fit the configured limit; or a limit of a day, or in dollars, is used up for longer than
    the call may wait, and then ``expected_wait`` says for how long."""


class PriceUnknown(BudgetExceeded):
    """A limit in dollars holds for the call, and what it costs is not known. The message names the missing key."""


class CallError(OrchestraError):
    """A call that was sent, or that we tried to send, and that has no usable answer."""


class ProviderError(CallError):
    """The provider answered with an error.

    ``status`` is the HTTP status, ``code`` the provider's own code, ``retry_after`` its demanded wait in
    seconds, ``body`` the answer as it came.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int,
        code: str | None = None,
        retry_after: float | None = None,
        body: bytes = b"",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.retry_after = retry_after
        self.body = body


class ConnectionFailed(CallError):
    """No usable answer came: refused, reset, timed out, or a body that is not the endpoint's format.

    ``sent`` is False only where nothing can have reached the provider.
    """

    def __init__(self, message: str, *, sent: bool, timed_out: bool = False) -> None:
        super().__init__(message)
        self.sent = sent
        self.timed_out = timed_out


class CallTimeout(CallError):
    """No answer came within the timeout that the caller gave its HTTP request."""

    timed_out = True


class DeadlineExceeded(CallTimeout):
    """The call's own timeout or deadline passed while it was being answered."""


class StreamInterrupted(CallError):
    """A stream broke after content had reached the caller: a retry would show it twice."""

    def __init__(self, message: str, *, timed_out: bool = False) -> None:
        super().__init__(message)
        self.timed_out = timed_out


class AllRoutesFailed(CallError):
    """Every route of the model was tried. ``attempts`` holds (route, error) in the order tried."""

    def __init__(self, message: str, *, attempts: Sequence[tuple[str, Exception]] = ()) -> None:
        super().__init__(message)
        self.attempts = tuple(attempts)
        last = attempts[-1][1] if attempts else None
        self.timed_out = isinstance(last, OrchestraError) and last.timed_out


class LocalEngineError(OrchestraError):
    """The in-process engine could not load, or could not answer."""


class JobError(OrchestraError):
    """A bulk job cannot go on."""


class JobLocked(JobError):
    """Another process is running this job."""
