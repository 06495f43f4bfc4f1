"""What is wrong with a request, as a status, a kind and a sentence."""

from __future__ import annotations

import errno

from sluice.encoders.foundation.errors import (
    ConfigError,
    DataError,
    SluiceError,
    UnknownDocumentError,
)

FULL = (errno.ENOSPC, errno.EDQUOT)
RETRY = 5  # seconds after which a service that stops, or that starts, may answer


class Fault(Exception):
    """A request that is not answered: ``param`` names the field, ``retry_after`` is in seconds."""

    def __init__(
        self,
        status: int,
        kind: str,
        message: str,
        *,
        param: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.kind, self.message = status, kind, message
        self.param, self.retry_after = param, retry_after


def invalid(message: str, param: str | None = None) -> Fault:
    """Return the fault of a request with a wrong value."""
    return Fault(400, "invalid_request", message, param=param)


def too_large(message: str, param: str | None = None) -> Fault:
    """Return the fault of a request with too much in it."""
    return Fault(413, "too_large", message, param=param)


def overloaded(message: str, retry_after: int) -> Fault:
    """Return the fault of a request that finds the queue full, or that comes too often."""
    return Fault(429, "overloaded", message, retry_after=retry_after)


def late(message: str) -> Fault:
    """Return the fault of a request whose time was over before its turn."""
    return Fault(504, "deadline_exceeded", message, param="deadline_ms")


def stopping() -> Fault:
    """Return the fault of a request to a service that is shutting down."""
    return Fault(503, "stopping", "the service is stopping; try again later", retry_after=RETRY)


def not_written(error: OSError) -> Fault:
    """Return the fault of a change that the disk did not take: 507 where it is full, else 500."""
    why = error.strerror or str(error)
    is_full = error.errno in FULL or (error.errno is None and "disk full" in why)  # numpy's
    remedy = "free some space" if is_full else "mend this"
    text = f"the documents could not be written ({why}): nothing was changed; {remedy}"
    return Fault(507 if is_full else 500, "not_written", f"{text}, and send it again")


def fault_of(error: BaseException) -> Fault | None:
    """Return the fault that the library's error is, None for a failure of the service itself."""
    if isinstance(error, Fault):
        return error
    if isinstance(error, UnknownDocumentError):
        return Fault(404, "not_found", str(error), param="id")
    if isinstance(error, ConfigError | DataError):
        return invalid(str(error))
    if isinstance(error, SluiceError):
        return Fault(503, "unavailable", str(error))
    return None
