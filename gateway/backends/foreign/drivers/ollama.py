"""The driver of Ollama, from version 0.5 on, by its own `/api/chat` and `/api/generate`: text, a line for each part.

The length of the context is sent with each request, since Ollama would take a short one and cut prompts to it in
silence. It leaves out the prompt's count where it found the prompt in its cache: our own count is taken then.
"""

from __future__ import annotations

from typing import Any

import msgspec

from engine.protocol import FinishReason
from gateway.backends.base import Feature
from gateway.backends.foreign.driver import AdapterWay, Driver, Framing, Pooled, Request, ServerInfo, adapter_of
from gateway.backends.foreign.drivers.ollama_adapters import LATEST, OllamaAdapters, adapters_among
from gateway.backends.foreign.errors import NO_ERROR, check_event, text_of
from gateway.backends.foreign.reply import (
    AnotherModel,
    BadReply,
    Event,
    Part,
    ReportedUsage,
    ServerRefused,
    not_listed,
)
from gateway.backends.foreign.server import Server
from gateway.backends.foreign.versions import VersionRange
from gateway.backends.generation import Generation
from gateway.domain.pools.foreign_settings import UNKNOWN_LEN

FEATURES: frozenset[Feature] = frozenset({"json_schema", "seed", "top_k", "min_p", "repetition_penalty"})
MAX_MODELS = 10_000

_DONE: dict[str, FinishReason] = {"stop": "stop", "length": "length"}


class _Model(msgspec.Struct, frozen=True):
    """A model of the server's list."""

    name: str = ""


class _Models(msgspec.Struct, frozen=True):
    models: list[_Model]


class _Message(msgspec.Struct, frozen=True):
    """The part of a message that is new."""

    content: str = ""
    thinking: str | None = None


class _Line(msgspec.Struct, frozen=True):
    """One line of a stream, with only the fields that are read."""

    model: str = ""
    message: _Message | None = None
    response: str = ""
    done: bool = False
    done_reason: str = ""
    prompt_eval_count: int = 0
    eval_count: int | None = None
    error: msgspec.Raw = NO_ERROR


_decode_line = msgspec.json.Decoder(_Line).decode
_decode_models = msgspec.json.Decoder(_Models).decode
_encode = msgspec.json.Encoder().encode


class OllamaDriver:
    """The `Driver` of Ollama."""

    takes_ids = False
    framing: Framing = "lines"
    max_choices = 1
    tested: VersionRange | None = VersionRange("/api/version", "version", (0, 5), (0, 12))
    separates_caches = False

    def __init__(self, pooled: Pooled) -> None:
        self._settings = pooled.settings
        self.adapters: AdapterWay | None = None
        if pooled.settings.upload_adapters and pooled.content is not None:
            options = {"num_ctx": self._length}
            self.adapters = OllamaAdapters(pooled.content, pooled.settings.served_model, options)
        # By OpenAI's routes it would not be told the length of the context, and cut prompts in silence.
        self.generic: Driver | None = None if self.adapters is None else OllamaDriver(pooled.without_adapters())

    def features(self) -> frozenset[Feature]:
        """Return the features that Ollama's own routes have."""
        return FEATURES

    def request(self, generation: Generation, info: ServerInfo) -> Request:
        """Return a request for `/api/chat`, or for `/api/generate` where there is a prompt instead of messages."""
        sampling = generation.request.sampling
        options: dict[str, Any] = {
            "num_ctx": self._length,
            "num_predict": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": max(0, sampling.top_k),
            "min_p": sampling.min_p,
            "repeat_penalty": sampling.repetition_penalty,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
        }
        if sampling.seed is not None:
            options["seed"] = sampling.seed
        if generation.stop:
            options["stop"] = list(generation.stop)
        model = adapter_of(generation) or self._settings.served_model or info.served_model
        body: dict[str, Any] = {"model": model, "stream": True}
        body |= {"options": options, "truncate": False, "shift": False}
        if sampling.grammar is not None:
            is_any = sampling.grammar.kind == "json_object"
            body["format"] = "json" if is_any else msgspec.json.decode(sampling.grammar.source)
        if generation.conversation is None:
            return Request("/api/generate", _encode(body | {"prompt": generation.prompt_text, "raw": True}))
        return Request(
            "/api/chat", _encode(body | {"messages": [_plain_message(m) for m in generation.conversation.messages]})
        )

    def reader(self, generation: Generation) -> LineReader:
        """Return a reader of the reply's lines."""
        return LineReader(generation)

    async def inspect(self, server: Server, within_s: float) -> ServerInfo:
        """Return the model that the settings name, or else the first one, and the adapters among Ollama's models."""
        reply = await server.ask_whole("GET", "/api/tags", within_s=within_s)
        if reply.status != 200:
            raise ServerRefused(reply.status, text=text_of(reply.body))
        try:
            names = [each.name for each in _decode_models(reply.body).models[:MAX_MODELS]]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise BadReply("it is no server of Ollama") from None
        wanted = self._settings.served_model
        if not names or (wanted and wanted not in names and f"{wanted}:latest" not in names):
            raise not_listed(wanted, names)
        adapters = frozenset[str]() if self.adapters is None else adapters_among(names)
        return ServerInfo(wanted or names[0], self._length, adapters=adapters)

    @property
    def _length(self) -> int:
        """The length of the context that Ollama is asked for."""
        return self._settings.max_model_len or UNKNOWN_LEN


class LineReader:
    """Reads the lines of one reply."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self._adapter = adapter_of(generation)

    def read(self, data: bytes) -> Event:
        """Read one line."""
        try:
            line = _decode_line(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise BadReply("a line is no part of a reply") from None
        check_event(line.error)
        if self._adapter and line.model.removesuffix(LATEST) != self._adapter:
            raise AnotherModel("it answers with another model than the adapter that was asked for")
        message = line.message or _Message(line.response)
        thinking = message.thinking or ""
        if not line.done:
            return Event([Part(0, message.content, thinking)])
        reason = _DONE.get(line.done_reason)
        if reason is None:
            raise BadReply("a choice ended for a reason that is not known")
        usage = None
        if line.eval_count is not None:
            usage = ReportedUsage(self._generation.prompt_tokens_by(line.prompt_eval_count), line.eval_count)
        return Event([Part(0, message.content, thinking, finish_reason=reason)], usage, is_end=True)


def _plain_message(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message with its text alone, as Ollama takes it."""
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(part.get("text", "") for part in content if isinstance(part, dict))
    return {"role": message["role"], "content": content or ""}
