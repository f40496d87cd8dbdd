"""Any server with OpenAI's chat completions: a hosted provider, LM Studio, LMDeploy, Ray Serve LLM, another Lorikeet.

Text in, text out. The protocol is OpenAI's of `/v1/chat/completions` and `/v1/completions`, always as a stream, whose
end is the usage.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from engine.protocol import FinishReason, Grammar
from gateway.backends.base import Feature
from gateway.backends.foreign.driver import MAX_CHOICES, AdapterWay, Framing, Pooled, Request, ServerInfo
from gateway.backends.foreign.errors import NO_ERROR, check_event, text_of
from gateway.backends.foreign.reply import BadReply, Event, Part, ReplyRefused, ReportedUsage, ServerRefused
from gateway.backends.foreign.server import Reply, Server
from gateway.backends.generation import Generation
from gateway.domain.pools.foreign_settings import MAX_LEN
from gateway.text.conversation import Message
from gateway.text.tools.parser import CallDelta
from gateway.text.tools.tool import MAX_PARALLEL_CALLS, ToolUse

FEATURES: frozenset[Feature] = frozenset({"json_schema", "tools", "seed"})
MAX_MODELS = 10_000

_FINISH: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "stop",
    "function_call": "stop",
    "eos_token": "stop",
    "stop_sequence": "stop",
}
"""Reasons that servers give for the end of a choice. Any other one refuses the reply or is a failure."""

_FAILURES = frozenset({"error", "abort"})
"""Reasons by which servers say that they failed."""


_NOTHING: Mapping[str, Any] = {}


class _Model(msgspec.Struct, frozen=True):
    id: str = ""
    parent: str | None = None
    max_model_len: int | None = None


class _Models(msgspec.Struct, frozen=True):
    data: list[_Model] = []


class _Function(msgspec.Struct, frozen=True):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct, frozen=True):
    index: int = 0
    function: _Function | None = None


class _Delta(msgspec.Struct, frozen=True):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct, frozen=True):
    index: int = 0
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class _Details(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class _CompletionDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int | None = None


class Usage(msgspec.Struct, frozen=True):
    """The usage as a chunk has it."""

    prompt_tokens: int = 0
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _CompletionDetails | None = None


class _Chunk(msgspec.Struct, frozen=True):
    choices: list[_Choice] = []
    usage: Usage | None = None
    error: msgspec.Raw = NO_ERROR


_decode_chunk = msgspec.json.Decoder(_Chunk).decode
_decode_models = msgspec.json.Decoder(_Models).decode
_encode = msgspec.json.Encoder().encode


class OpenAIDriver:
    """`Driver` of servers with OpenAI's protocol."""

    framing: Framing = "events"
    max_choices = MAX_CHOICES
    takes_ids = False
    adapters: AdapterWay | None = None

    def __init__(self, pooled: Pooled) -> None:
        self._settings = pooled.settings

    def features(self) -> frozenset[Feature]:
        return FEATURES

    def request(
        self,
        generation: Generation,
        info: ServerInfo,
        extra: Mapping[str, Any] = _NOTHING,
        left_out: Collection[str] = (),
    ) -> Request:
        """Return the request for a generation. extra: fields of a server that has more than OpenAI's. left_out: fields
        that a server does not take."""
        body = {**self.fields(generation), **extra}
        for name in left_out:
            body.pop(name, None)
        if name := self.model_of(info):
            body["model"] = name
        conversation = generation.conversation
        if conversation is None:
            body["prompt"] = generation.prompt_text
            return Request("/v1/completions", _encode(body))
        body["messages"] = [_message(each) for each in conversation.messages]
        if conversation.tools is not None:
            body |= _tools(conversation.tools)
        return Request("/v1/chat/completions", _encode(body))

    def model_of(self, info: ServerInfo) -> str:
        """Return the name of the model in requests; "" where the server has no name for it."""
        return self._settings.served_model or info.served_model

    def fields(self, generation: Generation) -> dict[str, Any]:
        """Return the fields of a request beside its prompt and its model."""
        request = generation.request
        sampling = request.sampling
        body: dict[str, Any] = {
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
        }
        if request.n > 1:
            body["n"] = request.n
        if generation.stop:
            body["stop"] = list(generation.stop)
        if sampling.presence_penalty:
            body["presence_penalty"] = sampling.presence_penalty
        if sampling.frequency_penalty:
            body["frequency_penalty"] = sampling.frequency_penalty
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        if sampling.grammar is not None:
            body["response_format"] = _format(sampling.grammar)
        return body

    def reader(self, generation: Generation) -> ChunkReader:
        return ChunkReader(generation)

    async def inspect(self, server: Server, within_s: float) -> ServerInfo:
        return self.info_of(await server.whole("GET", "/v1/models", within_s=within_s))

    def info_of(self, reply: Reply) -> ServerInfo:
        """Return the facts in a list of models; adapters have a model as their parent. Raises as `inspect`."""
        if reply.status != 200:
            raise ServerRefused(reply.status, text=text_of(reply.body))
        try:
            models = [each for each in _decode_models(reply.body).data[:MAX_MODELS] if not each.parent]
        except (msgspec.DecodeError, RecursionError):
            raise BadReply("its list of models is none") from None
        wanted = self._settings.served_model
        found = next((each for each in models if not wanted or each.id == wanted), None)
        if found is None:
            raise BadReply("it does not list the model" if wanted else "it lists no model")
        length = found.max_model_len
        return ServerInfo(found.id, min(length, MAX_LEN) if length is not None and length > 0 else None)


class ChunkReader:
    """Reads the chunks of one reply."""

    def __init__(self, generation: Generation) -> None:
        self._num_choices = generation.request.n
        tools = generation.tools
        self._names = frozenset[str]() if tools is None else tools.callable_names
        self._num_calls = [0] * self._num_choices

    def read(self, data: bytes) -> Event:
        if data == b"[DONE]":
            return Event(is_end=True)
        try:
            chunk = _decode_chunk(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise BadReply("an event is no chunk") from None
        check_event(chunk.error)
        return Event([self._part(each) for each in chunk.choices], reported_usage(chunk.usage))

    def _part(self, choice: _Choice) -> Part:
        if not 0 <= choice.index < self._num_choices:
            raise BadReply("a chunk is of a choice that was not asked for")
        reason = finish_of(choice.finish_reason)
        delta = choice.delta
        if delta is None:
            return Part(choice.index, choice.text or "", finish_reason=reason)
        hidden = delta.reasoning_content or delta.reasoning
        return Part(
            choice.index,
            delta.content or "",
            len(hidden.encode(errors="replace")) if hidden else 0,
            self._calls(choice.index, delta.tool_calls) if delta.tool_calls else (),
            finish_reason=reason,
        )

    def _calls(self, index: int, calls: list[_Call]) -> tuple[CallDelta, ...]:
        """Return the calls that a chunk begins or goes on with, each checked against the tools that may be called."""
        found = []
        for call in calls:
            function = call.function or _Function()
            known = self._num_calls[index]
            if call.index == known and function.name:
                if function.name not in self._names or known >= MAX_PARALLEL_CALLS:
                    raise ReplyRefused("it calls a tool that it may not call")
                self._num_calls[index] = known + 1
                found.append(CallDelta(call.index, function.name, function.arguments or ""))
            elif known > 0 and call.index == known - 1:
                found.append(CallDelta(call.index, None, function.arguments or ""))
            else:
                raise BadReply("its calls are not in order")
        return tuple(found)


def finish_of(reason: str | None) -> FinishReason | None:
    """Return the end of a choice as this gateway knows it; None where it goes on.

    Raises BadReply: where the server says that it failed.
    Raises ReplyRefused: for any other reason that is not known, such as a filter's.
    """
    if reason is None:
        return None
    found = _FINISH.get(reason)
    if found is None and reason in _FAILURES:
        raise BadReply("a choice ended since the server failed")
    if found is None:
        raise ReplyRefused("a choice ended for a reason that is not known")
    return found


def reported_usage(usage: Usage | None) -> ReportedUsage | None:
    """Return the usage that a chunk reports, if it reports one."""
    if usage is None or usage.completion_tokens is None:
        return None
    cached, made = usage.prompt_tokens_details, usage.completion_tokens_details
    return ReportedUsage(
        usage.prompt_tokens,
        usage.completion_tokens,
        (cached.cached_tokens or 0) if cached else 0,
        (made.reasoning_tokens or 0) if made else 0,
    )


def _message(message: Message) -> Message:
    """Return a message as OpenAI's protocol has it: the arguments of calls are a text."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    shown = []
    for call in calls:
        function = call["function"]
        arguments = function["arguments"]
        text = arguments if isinstance(arguments, str) else _encode(arguments).decode()
        shown.append(call | {"function": function | {"arguments": text}})
    return message | {"tool_calls": shown, "content": message.get("content") or None}


def _tools(use: ToolUse) -> dict[str, Any]:
    """Return the fields that name the tools which may be called."""
    callable_tools = use.callable_tools
    if not use.must_call:
        choice: Any = "auto"
    elif len(callable_tools) == 1:
        choice = {"type": "function", "function": {"name": callable_tools[0].name}}
    else:
        choice = "required"
    fields: dict[str, Any] = {"tools": [tool.described() for tool in callable_tools], "tool_choice": choice}
    if use.max_calls == 1:
        fields["parallel_tool_calls"] = False
    return fields


def _format(grammar: Grammar) -> dict[str, Any]:
    if grammar.kind == "json_object":
        return {"type": "json_object"}
    schema = {"name": "reply", "schema": msgspec.json.decode(grammar.source), "strict": True}
    return {"type": "json_schema", "json_schema": schema}
