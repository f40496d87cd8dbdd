"""Every way a request is refused or fails: one hierarchy with status, type, code and the parameter at fault.

Handlers raise these and never catch them; `gateway.http.errors` renders them in OpenAI's shape, once.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import msgspec

MAX_ECHO_CHARS = 100

ENGINE_UNAVAILABLE = "engine_unavailable"
"""The code of an `Overloaded` error when no engine is there, as opposed to too much load."""

SHUTTING_DOWN = "server_shutting_down"

CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
"""The code of an `InvalidRequest` whose prompt and completion are too long for the model."""

REFUSED_BY_SERVER = "refused_by_server"
"""The code of an `InvalidRequest` that a server of another maker refused for an unknown reason."""


def shortened(text: str) -> str:
    """Return a client's own text, cut to the length at which error messages repeat it."""
    return text if len(text) <= MAX_ECHO_CHARS else f"{text[:MAX_ECHO_CHARS]}..."


class GatewayError(Exception):
    """The base of all errors that clients get.

    message: names what to change, for the client, and never holds a secret.
    should_retry: True or False where the status does not tell a client whether to send the same request again.
    param: the field of the request at fault; None: none. code: the code of the error; None: that of its class.
    retry_after_s: seconds after which the client may try again; None: not known.
    """

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    """Headers of the reply."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
        should_retry: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code if code is not None else type(self).code
        self.retry_after_s = retry_after_s
        self.should_retry = should_retry


class InvalidRequest(GatewayError):
    """The error for a wrong request; param names the field."""

    status = 400
    type = "invalid_request_error"


class BodyTooLarge(InvalidRequest):
    """The error for a request's body that is larger than its route takes."""

    status = 413
    code = "request_too_large"


class UnsupportedCoding(InvalidRequest):
    """The error for a request's body with a content coding, such as gzip, which is not decoded (RFC 9110, 15.5.16)."""

    status = 415
    code = "unsupported_content_encoding"
    headers = (("accept-encoding", "identity"),)

    def __init__(self, coding: str) -> None:
        super().__init__(f"The body has the content coding '{coding}': send it as it is, without Content-Encoding.")


class InvalidApiKey(GatewayError):
    """The error for a request without a key, or with one that is not valid."""

    status = 401
    type = "invalid_request_error"
    code = "invalid_api_key"


class InvalidCredentials(GatewayError):
    """The error for a login that failed or has ended."""

    status = 401
    type = "invalid_request_error"
    code = "invalid_credentials"


class PermissionDenied(GatewayError):
    """The error for an authenticated caller that lacks the permission for its request."""

    status = 403
    type = "permission_error"
    code = "insufficient_permissions"


class Suspended(PermissionDenied):
    """The error for a good key that is suspended, or whose project or organization is."""

    code = "suspended"


class ProviderKeyMissing(PermissionDenied):
    """The error when a pool's servers are asked with the project's own key, and the project has none."""

    code = "provider_key_missing"

    def __init__(self, pool: str) -> None:
        super().__init__(
            f"The model '{pool}' is asked with a provider's key of your own, and this project has none for it. Set one "
            "in the settings of the project.",
            param="model",
        )


class ProviderKeyRefused(PermissionDenied):
    """The error when the server of another maker refuses the project's own key."""

    code = "provider_key_refused"

    def __init__(self, pool: str, hint: str) -> None:
        which = f" that ends in '{hint}'" if hint else ""
        super().__init__(
            f"The provider behind the model '{pool}' refuses this project's own key{which}. Set another one in the "
            "settings of the project.",
            param="model",
        )


class TooManyAttempts(GatewayError):
    """The error for too many guesses of a password, before anybody is authenticated."""

    status = 429
    type = "requests"
    code = "rate_limit_exceeded"


class NotFound(GatewayError):
    """The error for an object that does not exist, or that the caller may not know of."""

    status = 404
    type = "invalid_request_error"
    code = "not_found"


class ModelNotFound(NotFound):
    """The error for a model that the caller may not use.

    The bytes of the reply are the same whether another tenant has the model or nobody has.
    """

    code = "model_not_found"

    def __init__(self, model: str) -> None:
        super().__init__(
            f"The model `{shortened(model)}` does not exist or you do not have access to it.", param="model"
        )


class Conflict(GatewayError):
    """The error when the present state of the object does not allow this change."""

    status = 409
    type = "invalid_request_error"
    code = "conflict"


class LimitReached(GatewayError):
    """The error for a request that a limit of the tenant refuses.

    limit: the refusing limit, for programs. headers: headers of the reply with the state of the tenant's limits.
    """

    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"

    def __init__(
        self,
        message: str,
        *,
        limit: msgspec.Struct | None = None,
        headers: tuple[tuple[str, str], ...] = (),
        **options: Any,
    ) -> None:
        super().__init__(message, **options)
        self.limit = limit
        self.headers = headers


class QuotaExceeded(LimitReached):
    """The error when the budget of a day or a month is used up: trying again soon is no use."""

    type = "insufficient_quota"
    code = "insufficient_quota"


class UploadsPaused(LimitReached):
    """The error when the next adapter has to wait, because many of the project's were refused in a row."""

    code = "adapter_uploads_paused"

    def __init__(self, num_refused: int, wait_s: float) -> None:
        super().__init__(
            f"The last {num_refused} adapters of this project were refused, so the next can be added in "
            f"{math.ceil(wait_s)} s. The project's list of adapter imports says why each was refused. The pauses end "
            "with the first adapter that is accepted.",
            retry_after_s=wait_s,
        )


class Overloaded(GatewayError):
    """The error when no engine can take the request now; it may be sent again."""

    status = 503
    type = "server_error"
    code = "server_is_overloaded"


class NoReplicaYet(Overloaded):
    """The error when a pool's first replica did not start in time, or too many requests wait for it already.

    Nothing of the request was sent.
    """

    code = ENGINE_UNAVAILABLE


class ShuttingDown(GatewayError):
    """The error when the gateway stops before the request has ended; the client may send it to another gateway."""

    status = 503
    type = "server_error"
    code = SHUTTING_DOWN

    def __init__(self) -> None:
        super().__init__("The server is shutting down and ended the request early.", retry_after_s=1.0)


class BackendFailed(GatewayError):
    """The error when the engine died or failed while it worked on the request."""

    status = 502
    type = "server_error"
    code = "backend_failed"


class ContentUnreadable(GatewayError):
    """The error for stored content under a key that this gateway does not have, or that was tampered with."""

    status = 503
    type = "server_error"
    code = "content_unreadable"

    def __init__(self) -> None:
        super().__init__(
            "The stored content cannot be decrypted on this server; the operator's log says why.", should_retry=False
        )


class ReadTooSlowly(GatewayError):
    """The error for a client that left too much of a stream unread; sent as the last event of the stream."""

    status = 408
    type = "invalid_request_error"
    code = "stream_read_too_slowly"


class ClientGone(GatewayError):
    """The error for a request whose client has disconnected; the status, nginx's 499, is for the log alone."""

    status = 499
    code = "client_disconnected"


class DeadlinePassed(GatewayError):
    """The error when the request did not end within the time that its caller gave it."""

    status = 504
    code = "deadline_exceeded"


class FileUnavailable(GatewayError):
    """The error when the content of a file is missing, or its store does not answer."""

    status = 503
    type = "server_error"
    code = "file_unavailable"

    def __init__(self) -> None:
        super().__init__("The content of the file cannot be read at the moment; the operator's log says why.")
