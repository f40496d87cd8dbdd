"""Answers lines of batches with the handlers of their endpoints.

A line has the same fields, refusals and replies as if it had come over HTTP. A line cannot be streamed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from litestar import Request
from litestar.response.base import ASGIResponse

from gateway.batches.runner import LineReply
from gateway.content.background_responses import BackgroundResponses
from gateway.content.idempotency import Idempotency
from gateway.content.stored_chats import StoredChats
from gateway.content.stored_responses import StoredResponses
from gateway.domain.batches.line import ATTEMPTS_PER_BEGIN, BatchLine
from gateway.domain.errors import GatewayError, InvalidRequest
from gateway.domain.tenancy.principal import Principal
from gateway.domain.tracing import names
from gateway.domain.tracing.span import Attributes
from gateway.http.bodies import Bodies
from gateway.http.request.call import Call
from gateway.observability.tracing.trace import BeginTrace, context_without_spans
from gateway.openai.chat import handler as chat
from gateway.openai.completions import handler as completions
from gateway.openai.embeddings import handler as embeddings
from gateway.openai.rerank import handler as rerank
from gateway.openai.responses import handler as responses
from gateway.openai.responses.background.follow import Followers
from gateway.openai.responses.state import EarlierItems
from gateway.pipeline.model_call import CANCELLED
from gateway.pipeline.pipeline import Pipeline

Answer = Callable[..., Awaitable[ASGIResponse]]


class _Unpaced(Bodies):
    """Reads bodies that come from a file, whose bytes do not count against a project's pace."""

    async def read(self, request: Request[Any, Any, Any], caller: Principal) -> bytes:
        return await request.body()


class _Details(msgspec.Struct):
    cached_tokens: int = 0


class _Usage(msgspec.Struct):
    """The usage of a reply, with the field names of all endpoints."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    input_tokens_details: _Details | None = None


class _Reply(msgspec.Struct):
    usage: _Usage | None = None


class _RefusedFields(msgspec.Struct):
    """The fields that must not be in the body of a batch line."""

    stream: Any = None
    background: Any = None
    conversation: Any = None


_REPLY, _REFUSED = msgspec.json.Decoder(_Reply), msgspec.json.Decoder(_RefusedFields)


class Lines:
    """The runner of lines, one per gateway process."""

    def __init__(
        self,
        pipeline: Pipeline,
        idempotency: Idempotency,
        chats: StoredChats,
        stored: StoredResponses,
        earlier: EarlierItems,
        background: BackgroundResponses,
        begin_trace: BeginTrace = context_without_spans,
    ) -> None:
        """Prepare to run lines of batches. begin_trace: begins the trace of each line."""
        bodies = _Unpaced()
        self._pipeline = pipeline
        self._begin_trace = begin_trace
        self._answers: dict[str, Answer] = {
            chat.ENDPOINT: chat.chat_completions(pipeline, bodies, idempotency, chats).fn,
            completions.ENDPOINT: completions.completions(pipeline, bodies, idempotency).fn,
            embeddings.ENDPOINT: embeddings.embeddings(pipeline, bodies, idempotency).fn,
            rerank.ENDPOINT: rerank.rerank(pipeline, bodies, idempotency).fn,
            responses.ENDPOINT: responses.responses(
                pipeline, bodies, idempotency, stored, earlier, background, Followers(background)
            ).fn,
        }

    async def run(
        self, principal: Principal, endpoint: str, body: bytes, request_id: str, line: BatchLine
    ) -> LineReply:
        """Answer a line with the handler of its endpoint, as `LineRunner` demands.

        Raises GatewayError: when the line is refused or fails.
        """
        _check_alone(body)
        call = Call(request_id, time.perf_counter_ns(), batch=line, trace=self._begin_trace("", "internal"))
        error, is_our_fault = "", True
        try:
            response = await self._answers[endpoint](_LineRequest(body, endpoint, call), principal)
        except asyncio.CancelledError:
            error = CANCELLED
            self.disown(request_id, line)
            raise
        except GatewayError as refusal:
            error, is_our_fault = refusal.code or str(refusal.status), refusal.status >= 500
            raise
        finally:
            if call.on_end is not None:
                call.on_end()
            if call.trace.trace is not None:
                attributes: Attributes = {
                    names.REQUEST_ID: request_id,
                    names.TENANT: principal.project_id,
                    names.API_KEY_ID: principal.api_key_id,
                    names.BATCH: line.batch_id,
                }
                call.trace.trace.finish(names.BATCH_LINE, attributes, error, is_our_fault=is_our_fault)
        reply = bytes(response.body)
        usage = _REPLY.decode(reply).usage or _Usage()
        details = usage.prompt_tokens_details or usage.input_tokens_details or _Details()
        return LineReply(
            status=response.status_code,
            body=reply,
            input_tokens=usage.prompt_tokens or usage.input_tokens,
            cached_tokens=details.cached_tokens,
            output_tokens=usage.completion_tokens or usage.output_tokens,
        )

    def disown(self, request_id: str, line: BatchLine) -> None:
        """Ensure that nobody is billed for the usage of a line that is about to be aborted."""
        first = line.first_attempt
        self._pipeline.disown(request_id, range(first, first + ATTEMPTS_PER_BEGIN))


def _check_alone(body: bytes) -> None:
    """Check that a line asks for a whole reply at once and changes nothing that others read, since it may run twice.

    Raises InvalidRequest: when the line asks for a stream, for background work or to add to a conversation.
    """
    try:
        asked = _REFUSED.decode(body)
    except msgspec.MsgspecError:
        return  # the handler says what is wrong
    for is_wrong, param, message in (
        (asked.stream is True, "stream", "be streamed"),
        (asked.background is True, "background", "run in the background"),
        (asked.conversation is not None, "conversation", "add to a conversation"),
    ):
        if is_wrong:
            raise InvalidRequest(f"A request of a batch cannot {message}.", param=param, code="unsupported_value")


class _LineRequest(Request[Any, Any, Any]):
    """A request for a batch line, whose whole body is available."""

    def __init__(self, whole: bytes, endpoint: str, call: Call) -> None:
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(whole))]
        scope: dict[str, Any] = {
            "type": "http",
            "method": "POST",
            "path": endpoint,
            "query_string": b"",
            "headers": headers,
            "state": {"call": call},
        }
        super().__init__(scope)  # type: ignore[arg-type]
        self._whole = whole

    async def body(self) -> bytes:
        return self._whole
