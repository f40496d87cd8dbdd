"""The driver of SGLang's server, of versions from 0.5.4 on.

If the model's tokenizer is known here, token ids go in and come out of its own `/generate`, and text is made of them;
else messages and text travel. Each tenant's prompts get a cache of their own (`extra_key`). It reports what is wrong
with a request inside a stream that began well, and streams all ids anew with each part unless it was started otherwise.
Several choices of one request would let an unload hang for ever (sgl-project/sglang#36894).
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from engine.protocol import FinishReason
from gateway.backends.base import Feature
from gateway.backends.foreign.driver import AdapterWay, Driver, Framing, Pooled, Reader, Request, ServerInfo, adapter_of
from gateway.backends.foreign.drivers.generic import GenericDriver
from gateway.backends.foreign.drivers.openai import OpenAIDriver
from gateway.backends.foreign.drivers.sglang_adapters import (
    UNKNOWN_ADAPTER,
    ProvedSglangAdapters,
    SglangAdapters,
    name_of,
)
from gateway.backends.foreign.drivers.vllm import OF_TEXT, cache_salt_of, extra_fields
from gateway.backends.foreign.errors import NO_ERROR, text_of
from gateway.backends.foreign.reply import BadReply, Event, Part, ReportedUsage, ServerRefused
from gateway.backends.foreign.server import Server
from gateway.backends.foreign.versions import VersionRange
from gateway.backends.generation import Generation

OF_IDS: frozenset[Feature] = frozenset(
    {
        "token_ids",
        "returned_ids",
        "json_schema",
        "seed",
        "top_k",
        "min_p",
        "repetition_penalty",
        "min_tokens",
        "ignore_eos",
        "continue_message",
        "template_arguments",
        "text_style",
    }
)

TOO_LONG = "context length"
"""Words of the error for a prompt that is too long."""


class _Finish(msgspec.Struct, frozen=True):
    """The end of a choice."""

    type: Literal["stop", "length", "abort"]


class _Meta(msgspec.Struct, frozen=True):
    """The counts of a reply so far, and its end."""

    finish_reason: _Finish | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


class _Step(msgspec.Struct, frozen=True):
    """One event of a stream, with only the fields that are read."""

    output_ids: list[int] = []
    meta_info: _Meta | None = None
    error: msgspec.Raw = NO_ERROR


_decode = msgspec.json.Decoder(_Step).decode
_encode = msgspec.json.Encoder().encode


class SglangDriver:
    """The `Driver` of SGLang."""

    framing: Framing = "events"
    max_choices = 1
    tested: VersionRange | None = VersionRange("/get_server_info", "version", (0, 5, 4), (0, 5, 23))
    separates_caches = True

    def __init__(self, pooled: Pooled) -> None:
        self.takes_ids = pooled.has_tokenizer
        """True where token ids go in and come out."""
        self.adapters: AdapterWay | None = SglangAdapters(pooled.settings) if pooled.settings.adapter_folder else None
        self._vocab_size = pooled.model.capabilities.vocab_size
        self._chat = OpenAIDriver(pooled)
        self.generic: Driver | None = GenericDriver(
            pooled,
            max_choices=self.max_choices,
            extra=extra_fields,
            adapters=ProvedSglangAdapters(pooled.settings) if pooled.settings.adapter_folder else None,
            name_of=name_of,
            inspect=self.inspect,
        )

    def features(self) -> frozenset[Feature]:
        """Return the features of requests by token ids where the pool sends these, else those of requests by text."""
        return OF_IDS if self.takes_ids else OF_TEXT

    def request(self, generation: Generation, info: ServerInfo) -> Request:
        """Return a request for `/generate` by token ids, or by OpenAI's protocol where the pool sends text."""
        if not self.takes_ids:
            return self._chat.request(generation, info, extra_fields(generation))
        request = generation.request
        sampling = request.sampling
        parameters: dict[str, Any] = {
            "max_new_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k if sampling.top_k > 0 else -1,
            "min_p": sampling.min_p,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "repetition_penalty": sampling.repetition_penalty,
            "min_new_tokens": sampling.min_tokens,
            "ignore_eos": sampling.ignore_eos,
        }
        if request.n > 1:
            parameters["n"] = request.n
        if sampling.seed is not None:
            parameters["sampling_seed"] = sampling.seed
        if sampling.grammar is not None:
            is_any = sampling.grammar.kind == "json_object"
            parameters["json_schema"] = '{"type":"object"}' if is_any else sampling.grammar.source
        body = {"input_ids": request.prompt_token_ids, "sampling_params": parameters, "stream": True}
        body["extra_key"] = cache_salt_of(generation)
        if adapter := adapter_of(generation):
            body["lora_path"] = adapter
        return Request("/generate", _encode(body))

    def reader(self, generation: Generation) -> Reader:
        """Return a reader of `/generate`'s events, or of chunks where the pool sends text."""
        return StepReader(generation, self._vocab_size) if self.takes_ids else self._chat.reader(generation)

    async def inspect(self, server: Server, within_s: float) -> ServerInfo:
        """Return the served model and its length by the list of models, which shows no adapters."""
        return replace(await self._chat.inspect(server, within_s), adapters=None)


class StepReader:
    """Reads the events of SGLang's `/generate`."""

    def __init__(self, generation: Generation, vocab_size: int) -> None:
        self._num_choices = generation.request.n
        self._vocab_size = vocab_size
        self._num_seen = 0

    def read(self, data: bytes) -> Event:
        """Read one event of a reply with one choice, or `[DONE]`, which ends the reply."""
        if data == b"[DONE]":
            return Event(is_end=True)
        try:
            step = _decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise BadReply("an event is no step of a completion") from None
        if (error := bytes(step.error)) != b"null":
            raise _refusal_of(text_of(error))
        meta = step.meta_info
        if meta is None or self._num_choices > 1:
            raise BadReply("an event says nothing of its choice")
        reason: FinishReason | None = None
        if meta.finish_reason is not None:
            if meta.finish_reason.type == "abort":
                raise BadReply("a choice ended since the server failed")
            reason = meta.finish_reason.type
        ids = self._new_ids(step.output_ids, meta.completion_tokens)
        if ids and not 0 <= min(ids) <= max(ids) < self._vocab_size:
            raise BadReply("a token id is not of the vocabulary")
        usage = ReportedUsage(meta.prompt_tokens, meta.completion_tokens, meta.cached_tokens)
        return Event([Part(0, token_ids=ids, finish_reason=reason)], usage)

    def _new_ids(self, ids: list[int], num_tokens: int) -> list[int]:
        """Return the ids that are new. An event has all ids so far, or those that are new alone.

        num_tokens: the completion tokens so far, as the event counts them.
        """
        new = ids[self._num_seen :] if len(ids) == num_tokens else ids
        self._num_seen += len(new)
        return new


def _refusal_of(text: str) -> ServerRefused:
    """Return the error that an event within a stream holds: SGLang refuses wrong values of a request in this way."""
    if UNKNOWN_ADAPTER in text:
        return ServerRefused(404, text=text)
    return ServerRefused(400, "context_length_exceeded" if TOO_LONG in text else "", text=text)
