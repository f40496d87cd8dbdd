"""The driver of any server with OpenAI's chat completions: a hosted provider, LM Studio, LMDeploy, Ray Serve LLM.

Text goes in and comes out. The protocol is OpenAI's of `/v1/chat/completions` and `/v1/completions`, always as a
stream, whose last chunk has the usage.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from engine.protocol import Grammar
from gateway.backends.base import Feature
from gateway.backends.foreign.driver import MAX_CHOICES, AdapterWay, Framing, Pooled, Request, ServerInfo
from gateway.backends.foreign.drivers.openai_chunks import ChunkReader
from gateway.backends.foreign.errors import text_of
from gateway.backends.foreign.reply import BadReply, ServerRefused, not_listed
from gateway.backends.foreign.server import Reply, Server
from gateway.backends.foreign.versions import VersionRange
from gateway.backends.generation import Generation
from gateway.domain.pools.foreign_settings import MAX_LEN
from gateway.text.conversation import Message
from gateway.text.tools.tool import ToolUse

FEATURES: frozenset[Feature] = frozenset({"json_schema", "tools", "seed"})
MAX_MODELS = 10_000

_NOTHING: Mapping[str, Any] = {}


class _Model(msgspec.Struct, frozen=True):
    """A model of the server's list, with only the fields that are read."""

    id: str = ""
    parent: str | None = None
    max_model_len: int | None = None


class _Models(msgspec.Struct, frozen=True):
    data: list[_Model] = []


_decode_models = msgspec.json.Decoder(_Models).decode
_encode = msgspec.json.Encoder().encode


class OpenAIDriver:
    """The `Driver` of servers with OpenAI's protocol."""

    framing: Framing = "events"
    max_choices = MAX_CHOICES
    tested: VersionRange | None = None
    takes_ids = False
    adapters: AdapterWay | None = None
    generic = None
    separates_caches = False

    def __init__(self, pooled: Pooled) -> None:
        self._settings = pooled.settings

    def features(self) -> frozenset[Feature]:
        """Return the features that any server of OpenAI's protocol has."""
        return FEATURES

    def request(
        self,
        generation: Generation,
        info: ServerInfo,
        extra: Mapping[str, Any] = _NOTHING,
        left_out: Collection[str] = (),
        model: str = "",
    ) -> Request:
        """Return the request for a generation.

        extra: fields of a server that has more than OpenAI's. left_out: fields that a server does not take. model: the
        name of another model than the pool's.
        """
        body = {**self.fields(generation), **extra}
        for name in left_out:
            body.pop(name, None)
        if name := model or self.model_of(info):
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
        """Return a reader of chunks."""
        return ChunkReader(generation)

    async def inspect(self, server: Server, within_s: float) -> ServerInfo:
        """Return the served model and its length from the server's list of models."""
        return self.info_of(await server.ask_whole("GET", "/v1/models", within_s=within_s))

    def info_of(self, reply: Reply) -> ServerInfo:
        """Return the facts in a list of models; adapters have a model as their parent.

        Raises ServerRefused: when the status is not 200.
        Raises BadReply: when the reply is no list of models, or does not list the wanted model.
        """
        if reply.status != 200:
            raise ServerRefused(reply.status, text=text_of(reply.body))
        try:
            models = [each for each in _decode_models(reply.body).data[:MAX_MODELS] if not each.parent]
        except (msgspec.DecodeError, RecursionError):
            raise BadReply("what it sends as its list of models is no such list") from None
        wanted = self._settings.served_model
        found = next((each for each in models if not wanted or each.id == wanted), None)
        if found is None:
            raise not_listed(wanted, [each.id for each in models])
        length = found.max_model_len
        return ServerInfo(found.id, min(length, MAX_LEN) if length is not None and length > 0 else None)


def _message(message: Message) -> Message:
    """Return a message as OpenAI's protocol has it: the arguments of calls are a text, and reasoning is left out."""
    message = {name: value for name, value in message.items() if name != "reasoning_content"}
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
