"""The driver of llama.cpp's own server (`llama-server`), of builds from late 2025 on.

If the model's tokenizer is known here, token ids go in and text comes out: a stream of llama.cpp leaves out ids of
tokens that are a part of a character, so ids do not come back. Else its OpenAI-compatible chat is used. Either way it
reports how many tokens it has made.
"""

from __future__ import annotations

from typing import Any

import msgspec

from engine.protocol import FinishReason, Grammar
from gateway.backends.base import Feature
from gateway.backends.foreign.driver import (
    MAX_CHOICES,
    AdapterWay,
    Driver,
    Framing,
    Pooled,
    Reader,
    Request,
    ServerInfo,
    adapter_of,
)
from gateway.backends.foreign.drivers.generic import GenericDriver
from gateway.backends.foreign.drivers.llamacpp_adapters import (
    PATH,
    LlamaCppAdapters,
    places_in,
    proof_of,
    scales_of,
)
from gateway.backends.foreign.drivers.openai import OpenAIDriver
from gateway.backends.foreign.drivers.openai_chunks import ChunkReader
from gateway.backends.foreign.errors import NO_ERROR, check_event, text_of
from gateway.backends.foreign.reply import BadReply, Event, Part, ReportedUsage, ServerRefused
from gateway.backends.foreign.server import Server
from gateway.backends.foreign.versions import NOT_FOUND, OK, VersionRange
from gateway.backends.generation import Generation
from gateway.domain.pools.foreign_settings import MAX_LEN, UNKNOWN_LEN

OF_TEXT: frozenset[Feature] = frozenset(
    {"json_schema", "tools", "seed", "top_k", "min_p", "repetition_penalty", "ignore_eos"}
)
OF_IDS: frozenset[Feature] = frozenset(
    {
        "token_ids",
        "logit_bias",
        "json_schema",
        "seed",
        "top_k",
        "min_p",
        "repetition_penalty",
        "ignore_eos",
        "continue_message",
        "template_arguments",
    }
)

_STOP_TYPES: dict[str, FinishReason] = {"eos": "stop", "word": "stop", "limit": "length"}


class _Settings(msgspec.Struct, frozen=True):
    """The settings of a server, with only the fields that are read."""

    n_ctx: int = 0
    """The length of the context in tokens."""


class _Props(msgspec.Struct, frozen=True):
    """The properties of a server, with only the fields that are read."""

    default_generation_settings: _Settings
    total_slots: int = 1
    """The number of requests that the server computes at once."""


class _Timings(msgspec.Struct, frozen=True):
    """The timings of a reply, with only the fields that are read."""

    cache_n: int = 0
    """The tokens of the prompt that came out of the cache."""


class _Step(msgspec.Struct, frozen=True):
    """One event of a stream, with only the fields that are read."""

    content: str
    index: int = 0
    stop: bool = False
    stop_type: str = ""
    tokens_predicted: int = 0
    """The tokens of the choice so far."""
    tokens_evaluated: int = 0
    """The tokens of the prompt."""
    timings: _Timings | None = None


class _MaybeError(msgspec.Struct, frozen=True):
    error: msgspec.Raw = NO_ERROR


_decode_step = msgspec.json.Decoder(_Step).decode
_decode_error = msgspec.json.Decoder(_MaybeError).decode
_decode_props = msgspec.json.Decoder(_Props).decode
_encode = msgspec.json.Encoder().encode


class LlamaCppDriver:
    """The `Driver` of llama.cpp's server."""

    framing: Framing = "events"
    max_choices = MAX_CHOICES
    tested: VersionRange | None = VersionRange("/props", "build_info", (6900,))
    separates_caches = False
    takes_ids = False

    def __init__(self, pooled: Pooled) -> None:
        self._has_tokenizer = pooled.has_tokenizer
        self.adapters: AdapterWay | None = LlamaCppAdapters() if pooled.settings.preloaded_adapters else None
        self._chat = OpenAIDriver(pooled)
        self.generic: Driver | None = LlamaCppText(pooled, self.adapters)

    def features(self) -> frozenset[Feature]:
        """Return the features of requests by token ids where there is a tokenizer, else those of text."""
        return OF_IDS if self._has_tokenizer else OF_TEXT

    def request(self, generation: Generation, info: ServerInfo) -> Request:
        """Return a request for `/completion` by token ids, or by OpenAI's protocol where there is no tokenizer."""
        if not self._has_tokenizer:
            return self._chat.request(generation, info, _extra(generation, info) | {"lora": []})
        request, digest = generation.request, adapter_of(generation)
        sampling = request.sampling
        body: dict[str, Any] = {
            "prompt": request.prompt_token_ids,
            "n_predict": sampling.max_tokens,
            "stream": True,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "cache_prompt": True,
            "lora": scales_of(info, digest),
            **_extra(generation, info),
        }
        if request.n > 1:
            body["n"] = request.n
        if generation.stop:
            body["stop"] = list(generation.stop)
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        if sampling.logit_bias:
            body["logit_bias"] = list(sampling.logit_bias.items())
        if sampling.grammar is not None:
            body["json_schema"] = _schema(sampling.grammar)
        return Request("/completion", _encode(body), proof_of(info) if digest else None)

    def reader(self, generation: Generation) -> Reader:
        """Return a reader of `/completion`'s events, or of chunks without a tokenizer."""
        return StepReader(generation) if self._has_tokenizer else self._chat.reader(generation)

    async def inspect(self, server: Server, within_s: float) -> ServerInfo:
        """Return the length of a slot's context, the number of slots, and the server's adapters where they are used."""
        reply = await server.ask_whole("GET", "/props", within_s=within_s)
        if reply.status != 200:
            raise ServerRefused(reply.status, text=text_of(reply.body))
        try:
            props = _decode_props(reply.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise BadReply("it is no llama.cpp server") from None
        length = props.default_generation_settings.n_ctx
        info = ServerInfo("", min(length, MAX_LEN) if length > 0 else None, min(max(1, props.total_slots), MAX_LEN))
        if self.adapters is None:
            return info
        reply = await server.ask_whole("GET", PATH, within_s=within_s)
        if reply.status != 200:
            raise ServerRefused(reply.status, text=text_of(reply.body))
        places = places_in(reply.body)
        return msgspec.structs.replace(info, adapters=frozenset(filter(None, places)), places=places)


class LlamaCppText(GenericDriver):
    """The `Driver` of text alone, for builds that were not tried, and for others beside such builds in a pool.

    A server of an untried build that has adapters is not asked: nothing shows that it leaves them out of a reply, and
    anybody can change the scales for requests that name no adapter.
    """

    def __init__(self, pooled: Pooled, adapters: AdapterWay | None) -> None:
        super().__init__(pooled, adapters=adapters, inspect=self._without_adapters)

    def request(self, generation: Generation, info: ServerInfo) -> Request:
        """Return a request by OpenAI's protocol with each adapter's scale; one for an adapter has a `Proof`."""
        digest = adapter_of(generation)
        scales = scales_of(info, digest)
        asked = self._chat.request(generation, info, {"lora": scales} if scales else {})
        return Request(asked.path, asked.body, proof_of(info) if digest else None)

    def reader(self, generation: Generation) -> ChunkReader:
        """Return a reader of chunks that checks no model's name."""
        return self._chat.reader(generation)  # a reply names the file of the model, whatever adapter made it

    async def _without_adapters(self, server: Server, within_s: float) -> ServerInfo:
        """Return the facts about a server of a build that was not tried. Raises as `Driver.inspect`."""
        info = await self._chat.inspect(server, within_s)
        reply = await server.ask_whole("GET", PATH, within_s=within_s)
        if reply.status == NOT_FOUND:
            return info  # a build from before requests could choose
        if reply.status != OK:
            raise ServerRefused(reply.status, text=text_of(reply.body))
        if places_in(reply.body):
            raise BadReply("the server has adapters, and its version may apply them to requests that ask for none")
        return info


class StepReader:
    """Reads the events of llama.cpp's `/completion`."""

    def __init__(self, generation: Generation) -> None:
        self._predicted = [0] * generation.request.n
        self._num_left = generation.request.n

    def read(self, data: bytes) -> Event:
        """Read one event, whose choice is one of those asked for; the last choice to stop ends the reply."""
        try:
            step = _decode_step(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise _error_in(data) from None
        if not 0 <= step.index < len(self._predicted):
            raise BadReply("an event is of a choice that was not asked for")
        self._predicted[step.index] = step.tokens_predicted
        cached = step.timings.cache_n if step.timings is not None else 0
        usage = ReportedUsage(step.tokens_evaluated, sum(self._predicted), cached)
        reason = None
        if step.stop:
            reason = _STOP_TYPES.get(step.stop_type)
            if reason is None:
                raise BadReply("a choice ended for a reason that is not known")
            self._num_left -= 1
        return Event([Part(step.index, step.content, finish_reason=reason)], usage, self._num_left <= 0)


def _extra(generation: Generation, info: ServerInfo) -> dict[str, Any]:
    """Return the fields of sampling that both routes of llama.cpp have beyond OpenAI's.

    All of them are sent, since llama.cpp's own defaults differ: top_k 40 and min_p 0.05.
    """
    sampling = generation.request.sampling
    return {
        "top_k": max(0, sampling.top_k),
        "min_p": sampling.min_p,
        "repeat_penalty": sampling.repetition_penalty,
        "repeat_last_n": info.max_model_len or UNKNOWN_LEN,
        "ignore_eos": sampling.ignore_eos,
    }


def _schema(grammar: Grammar) -> Any:
    return {"type": "object"} if grammar.kind == "json_object" else msgspec.json.decode(grammar.source)


def _error_in(data: bytes) -> Exception:
    """Return the exception for an event that is no step: the server's own error, or BadReply if it is not one."""
    try:
        check_event(_decode_error(data).error)
    except ServerRefused as refused:
        return refused
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    return BadReply("an event is no step of a completion")
