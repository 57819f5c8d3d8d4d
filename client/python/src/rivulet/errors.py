# SPDX-License-Identifier: Apache-2.0
"""The exceptions that calls raise: one for each gRPC status, all derived from RivuletError.

A mistake that the client itself can detect (a wrong type, a number that does not fit) raises TypeError or ValueError
instead, before anything is sent. The message begins with the argument's name.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

if TYPE_CHECKING:
    from rivulet.replies import PartialGeneration

__all__ = [
    "Code", "RivuletError", "Aborted", "AlreadyExists", "Cancelled", "DataLoss", "DeadlineExceeded", "FailedPrecondition",
    "Internal", "InvalidArgument", "NotFound", "OutOfRange", "PermissionDenied", "ResourceExhausted", "Unauthenticated",
    "Unavailable", "Unimplemented", "Unknown",
]  # fmt: skip


class Code(enum.IntEnum):
    """The status codes of gRPC, with their numbers."""

    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class RivuletError(Exception):
    """A call that failed.

    message: for people; may change from release to release.
    reason: UPPER_SNAKE_CASE and stable, for programs to decide by, for example "TOKEN_OUT_OF_RANGE"; "" if the server
      gave none or no server answered.
    field: path of the wrong field in the request, with a oneof as a level of its own: "prompt.tokens[3]",
      "sampling.top_p"; "" if no field is wrong.
    request_id: the id of the request, as in the server's log; "" if the server gave none or no server answered.
    retry_delay: seconds after which to try again; None if the server gave none.
    metadata: further details by name. For an error that ends a reply, where to continue: "session_id" and
      "session_position" on a session, else "sent_tokens": for each sample, the number of tokens that were sent,
      separated by commas.
    partial: the part of the reply that was received before collect() failed; else None.
    """

    code: ClassVar[Code] = Code.UNKNOWN

    def __init__(
        self,
        message: str,
        reason: str = "",
        field: str = "",
        retry_delay: float | None = None,
        metadata: Mapping[str, str] | None = None,
        request_id: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason
        self.field = field
        self.retry_delay = retry_delay
        self.metadata = dict(metadata or {})
        self.request_id = request_id
        self.partial: PartialGeneration | None = None

    def __str__(self) -> str:
        request = f"request {self.request_id}" if self.request_id else ""
        said = [text for text in (self.reason, self.field, request) if text]
        return f"{self.message} ({', '.join(said)})" if said else self.message


class Cancelled(RivuletError):
    """The caller (for example by close() in another thread) or the server ended the call."""

    code = Code.CANCELLED


class Unknown(RivuletError):
    """An error with details but without a code: a bug of the server."""

    code = Code.UNKNOWN


class InvalidArgument(RivuletError):
    """A field of the request is invalid; `field` names it. Or the request is larger than the server accepts (MESSAGE_TOO_LARGE)."""

    code = Code.INVALID_ARGUMENT


class DeadlineExceeded(RivuletError):
    """The call did not complete within `timeout` seconds."""

    code = Code.DEADLINE_EXCEEDED


class NotFound(RivuletError):
    """No such model."""

    code = Code.NOT_FOUND


class AlreadyExists(RivuletError):
    """The thing to create exists already."""

    code = Code.ALREADY_EXISTS


class PermissionDenied(RivuletError):
    """The caller is not allowed to do this."""

    code = Code.PERMISSION_DENIED


class ResourceExhausted(RivuletError):
    """A limit is reached: for example the queue is full (`retry_delay` says when to try again), or a reply has more than the
    client's max_receive_bytes."""

    code = Code.RESOURCE_EXHAUSTED


class FailedPrecondition(RivuletError):
    """The request does not fit the current state, for example of a session or a snapshot."""

    code = Code.FAILED_PRECONDITION


class Aborted(RivuletError):
    """Another call was first, or the call cannot be repeated safely."""

    code = Code.ABORTED


class OutOfRange(RivuletError):
    """A value is beyond the model's positions or a session's end; `field` names it."""

    code = Code.OUT_OF_RANGE


class Unimplemented(RivuletError):
    """The server does not know this call: it is older than this client, is not a Rivulet server, or serves the call at
    another address."""

    code = Code.UNIMPLEMENTED


class Internal(RivuletError):
    """A bug of the server, or a reply that violates the API."""

    code = Code.INTERNAL


class Unavailable(RivuletError):
    """The target cannot be reached, drains (reason "DRAINING"), or its backend failed. Try again, or use another
    server."""

    code = Code.UNAVAILABLE


class DataLoss(RivuletError):
    """Stored data is damaged, or client and server disagree about a session's tokens."""

    code = Code.DATA_LOSS


class Unauthenticated(RivuletError):
    """Credentials are missing or bad."""

    code = Code.UNAUTHENTICATED


# gRPC's own message if a server refuses a message; it begins with "CLIENT: " if this client refuses a reply.
_REQUEST_TOO_LARGE = re.compile(r"(?!.*CLIENT: ).*message larger than max", re.DOTALL)
# gRPC's own message if a server with TLS closes a connection without TLS, or without the client's certificate.
_CONNECTION_CLOSED = re.compile(r".*failed to connect.*Socket closed", re.DOTALL)

_CLASSES: dict[int, type[RivuletError]] = {cls.code: cls for cls in RivuletError.__subclasses__()}


def lost(error: BaseException) -> bool:
    """Whether the server may not have answered a call with this error, or the session has moved to another server: "Lost
    replies" in client/README.md."""
    return isinstance(error, Unavailable) or (isinstance(error, RivuletError) and error.reason == "SESSION_MOVED")


def leaves_replica(error: RivuletError) -> bool:
    """Whether the replica refers the call to another replica: it drains, or the session has moved."""
    return error.reason in ("DRAINING", "SESSION_MOVED")


def from_status(code: int, message: str, metadata: Any) -> RivuletError:
    """The exception of a gRPC status and its trailing metadata (pairs of key and value, or None)."""
    details = status_pb2.Status()
    for key, value in metadata or ():
        if key == "grpc-status-details-bin":
            try:
                details.ParseFromString(value)
            except DecodeError:  # a proxy wrote its own details; code and message still hold
                details.Clear()
    return _detailed(code, message, details)


def from_wire(status: status_pb2.Status) -> RivuletError:
    """The exception of an error that came in a message."""
    return _detailed(status.code, status.message, status)


def _detailed(code: int, message: str, details: status_pb2.Status) -> RivuletError:
    # Our servers attach details to each of their errors, so a balancer or the network ended this call.
    if not details.details and code in (Code.UNKNOWN, Code.INTERNAL):
        return Unavailable(f"the call ended without a status of the server, which may be gone: {message}")
    if not details.details and code == Code.RESOURCE_EXHAUSTED and _REQUEST_TOO_LARGE.match(message):
        return InvalidArgument(
            f"the request is larger than the server takes at once (its setting max-message-mib): {message}", "MESSAGE_TOO_LARGE"
        )
    if not details.details and code == Code.UNAVAILABLE and _CONNECTION_CLOSED.match(message):
        message += " (does the server speak TLS? then give the client tls, or rivulet-gateway --tls-ca, with a certificate if the server asks for one)"
    reason, field, retry_delay, request_id = "", "", None, ""
    metadata: dict[str, str] = {}
    info, request, retry = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
    identity = error_details_pb2.RequestInfo()
    for detail in details.details:
        if detail.Unpack(info):
            reason, metadata = info.reason, dict(info.metadata)
        elif detail.Unpack(request) and request.field_violations:
            field = request.field_violations[0].field
        elif detail.Unpack(retry):
            retry_delay = retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9
        elif detail.Unpack(identity):
            request_id = identity.request_id
    return _CLASSES.get(code, Unknown)(message, reason, field, retry_delay, metadata, request_id)


def from_call(call: Any, timeout: float | None = None) -> RivuletError:
    """The exception of a grpc.RpcError, or of any object with code(), details() and trailing_metadata(). `timeout`: the
    timeout of the call, in seconds."""
    code, message = call.code().value[0], call.details() or ""
    if code == Code.DEADLINE_EXCEEDED and timeout is not None:
        said = "" if message in ("", "Deadline Exceeded") else f": {message}"  # gRPC's own message
        message = f"the call did not end within its timeout of {timeout:g} s{said}"
    return from_status(code, message, call.trailing_metadata())
