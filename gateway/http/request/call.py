"""One HTTP request as all rooms on its way see it: what is known of it so far, for its log line and its counts."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping

import msgspec
from litestar.types import Scope

from gateway.domain.batches.line import BatchLine
from gateway.domain.errors import GatewayError
from gateway.http.error_body import OPENAI, Dialect
from gateway.observability.tracing.trace import UNTRACED, Traced


class Call(msgspec.Struct):
    """One HTTP request. Its handler sets organization, tenant and model as soon as it knows them."""

    request_id: str
    """The `x-request-id` of the reply."""
    started_ns: int
    """The time at which the request came, in nanoseconds of a monotonic clock."""
    address: str = ""
    """The client's address."""
    is_https: bool = False
    """True if the client's own connection is encrypted."""
    status: int = 0
    """The status of the reply; 0 before the reply begins."""
    organization: str = ""
    tenant: str = ""
    """The id of the project."""
    api_key_id: str = ""
    model: str = ""
    """The model id as the client wrote it."""
    user: str = ""
    """The digest of the user that the client names (`note_user`)."""
    safety_identifier: str = ""
    """The digest of the safety identifier that the client names."""
    error: str | None = None
    """The code of the error; None for none."""
    is_clients_error: bool = False
    """True if a streamed reply ended with an error that is the client's own."""
    refusal: GatewayError | None = None
    """The error that was raised before a reply began."""
    client_gone: bool = False
    """True once the client has disconnected."""
    is_cut_off: bool = False
    """True if this gateway is stopping and no longer waits for the request."""
    headers: tuple[tuple[str, str], ...] = ()
    """Further headers of the reply."""
    num_admitted: int = 0
    """The number of prompts that an engine may have worked on."""
    fields: Mapping[str, str | float] = {}
    """More fields of the log line."""
    trace: Traced = UNTRACED
    """The trace that the request belongs to."""
    outlives_client: bool = False
    """True where the work goes on after the client has left."""
    batch: BatchLine | None = None
    """The line of a batch that is answered as if it were a request; None for a request over HTTP."""
    on_end: Callable[[], None] | None = None
    """The function that is called once the reply is over, however it ended."""
    dialect: Dialect = OPENAI
    """The API whose replies the client expects."""
    is_body_counted: bool = False
    """True once the bytes of the body are counted against the project's pace."""
    on_disconnect: Callable[[], None] | None = None
    """The function that cancels the work for the client."""

    @property
    def elapsed_ms(self) -> float:
        """The milliseconds since the request began."""
        return (time.perf_counter_ns() - self.started_ns) / 1e6

    def leave(self) -> None:
        """Record that the client has disconnected, and cancel the work for it."""
        self.client_gone = True
        if self.on_disconnect is not None:
            self.on_disconnect()


def call_of(scope: Scope) -> Call:
    """Return the call that a request's scope belongs to."""
    call: Call = scope["state"]["call"]
    return call


def note_user(call: Call, user: str | None, safety_identifier: str | None = None) -> None:
    """Record the end user of a request for its log line, as the first 64 bits of SHA-256 in hex.

    The name itself may be an address or a number that is nobody's business; who knows the name finds the requests.

    user, safety_identifier: the two fields of a request that name its end user; None where absent.
    """
    call.user = _digest(user)
    call.safety_identifier = _digest(safety_identifier)


def _digest(name: str | None) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:16] if name else ""
