"""The error tree. Each error knows its wire code and whether trying again can help.

AstrolabeError
├── UsageError                 a person gave a wrong option or file; one line, exit status 2
├── EngineLost                 a worker's engine broke for good; exit status 1
├── RequestError               goes to the requester as an `error` event and result
│   ├── BadRequest             a field or the body breaks the protocol
│   ├── PromptTooLong          more prompt tokens than the model has room for
│   ├── DuplicateId            this request id is already taken
│   ├── ModelNotFound          no instance serves this model
│   ├── Overloaded             a bounded queue is full; carries retry_after_ms
│   ├── DeadlineExceeded       `deadline_ms` passed before the answer was complete
│   ├── Cancelled              a cancel reached the request
│   ├── EngineFailed           the engine broke while it worked on the request
│   └── WorkerLost             crashed too often, on whatever instance
└── BusError                   the bus did not do what was asked
    ├── BusUnavailable         no connection, or no acknowledgement in time: outcome unknown
    ├── BusMisconfigured       server or stream cannot carry this stack; start-up stops
    ├── NoResponders           nobody listens on that subject
    ├── RequestTimeout         somebody listens, nobody answered in time
    ├── ServiceFailed          the service answered with an error
    │   └── ServiceRefused     the error is about what was asked, not about the service
    ├── MessageTooLarge        headers + payload exceed the server's max_payload
    ├── QueueFull              a bounded stream refused the message
    └── SequenceConflict       another writer was first
"""

from typing import ClassVar


class AstrolabeError(Exception):
    """Base of everything that Astrolabe raises on purpose."""


class UsageError(AstrolabeError):
    """A wrong option, file or setting; the message names it and fits one line."""


class EngineLost(AstrolabeError):
    """The engine will serve nobody any more; whoever supervises the worker starts it anew."""


class RequestError(AstrolabeError):
    """The request ends here with an `error` result."""

    code: ClassVar[str] = "internal_error"

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        limit: int | float | str | None = None,
        retry_after_ms: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.limit = limit
        self.retry_after_ms = retry_after_ms


class BadRequest(RequestError):
    """The body or one of its fields breaks the protocol; `field` and `limit` say which."""

    code = "bad_request"


class PromptTooLong(RequestError):
    """The prompt leaves no room for an answer in the model's context."""

    code = "prompt_too_long"


class DuplicateId(RequestError):
    """Another request of this client has the same id."""

    code = "duplicate_id"


class ModelNotFound(RequestError):
    """No instance serves the model that was asked for."""

    code = "model_not_found"


class Overloaded(RequestError):
    """A bounded queue is full; `retry_after_ms` says when to come back."""

    code = "overloaded"


class DeadlineExceeded(RequestError):
    """The request's own deadline passed."""

    code = "deadline_exceeded"


class Cancelled(RequestError):
    """The client cancelled the request."""

    code = "cancelled"


class EngineFailed(RequestError):
    """The engine reported an error for this request."""

    code = "engine_failed"


class WorkerLost(RequestError):
    """Too many workers died with this request in their hands."""

    code = "worker_lost"


class BusError(AstrolabeError):
    """Something on the bus went wrong."""


class BusUnavailable(BusError):
    """Not connected, or no acknowledgement in time. The message may have been stored."""


class BusMisconfigured(BusError):
    """The server lacks what the stack needs; the message says what to change."""


class NoResponders(BusError):
    """Nobody subscribes to the request's subject."""


class RequestTimeout(BusError):
    """No reply within the timeout."""


class ServiceFailed(BusError):
    """The service replied with an error of its own."""


class ServiceRefused(ServiceFailed):
    """The service is well, and will never answer this question."""


class MessageTooLarge(BusError):
    """Refused before the wire: the server would close the connection for it."""

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(f"message of {size_bytes} bytes is over max_payload {limit_bytes}")
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes


class QueueFull(BusError):
    """The stream's bound on messages, bytes or messages per subject refused the message."""


class SequenceConflict(BusError):
    """The subject's last sequence was not the expected one: somebody else wrote first."""
