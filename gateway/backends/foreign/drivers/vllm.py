"""The driver of vLLM's OpenAI server, from version 0.11 on, and of servers that have its fields, such as Lorikeet.

If the model's tokenizer is known here, token ids go in and come out (`return_token_ids`), and text is made of them;
else messages and text travel. Each tenant's prompts get a cache of their own (`cache_salt`), and each chunk reports the
usage so far, so that a broken stream has an exact count. vLLM passes over unknown fields in silence, so that none but
its own is sent.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
from msgspec.structs import replace

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
from gateway.backends.foreign.drivers.openai import OpenAIDriver
from gateway.backends.foreign.drivers.openai_chunks import Usage as ChunkUsage
from gateway.backends.foreign.drivers.openai_chunks import check_parts, finish_of, reported_usage
from gateway.backends.foreign.drivers.vllm_adapters import VllmAdapters
from gateway.backends.foreign.errors import NO_ERROR, check_event
from gateway.backends.foreign.reply import AnotherModel, BadReply, Event, Part
from gateway.backends.foreign.server import Server
from gateway.backends.foreign.versions import VersionRange
from gateway.backends.generation import Generation

SAMPLING: frozenset[Feature] = frozenset({"seed", "top_k", "min_p", "repetition_penalty", "min_tokens", "ignore_eos"})
OF_TEXT: frozenset[Feature] = SAMPLING | {"json_schema", "tools"}
OF_IDS: frozenset[Feature] = SAMPLING | {
    "token_ids",
    "returned_ids",
    "logit_bias",
    "json_schema",
    "continue_message",
    "template_arguments",
    "text_style",
}


class _Choice(msgspec.Struct, frozen=True):
    """One choice of a chunk."""

    index: int = 0
    token_ids: list[int] | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct, frozen=True):
    """One chunk of a stream, with only the fields that are read."""

    model: str = ""
    choices: list[_Choice] = []
    usage: ChunkUsage | None = None
    error: msgspec.Raw = NO_ERROR


_decode = msgspec.json.Decoder(_Chunk).decode
_encode = msgspec.json.Encoder().encode


class VllmDriver:
    """The `Driver` of vLLM."""

    framing: Framing = "events"
    max_choices = MAX_CHOICES
    tested: VersionRange | None = VersionRange("/version", "version", (0, 11), (0, 32))
    separates_caches = True

    def __init__(self, pooled: Pooled) -> None:
        self.takes_ids = pooled.has_tokenizer
        """True where token ids go in and come out."""
        self._vocab_size = pooled.model.capabilities.vocab_size
        self._adapters = VllmAdapters(pooled.settings) if pooled.settings.adapter_folder else None
        self.adapters: AdapterWay | None = self._adapters
        self._chat = OpenAIDriver(pooled)
        proved = VllmAdapters(pooled.settings, has_to_differ=True) if pooled.settings.adapter_folder else None
        self.generic: Driver | None = GenericDriver(pooled, extra=extra_fields, adapters=proved, inspect=self.inspect)

    def features(self) -> frozenset[Feature]:
        """Return the features of requests by token ids where the pool sends these, else those of requests by text."""
        return OF_IDS if self.takes_ids else OF_TEXT

    def request(self, generation: Generation, info: ServerInfo) -> Request:
        """Return a request by token ids, or by text where the pool sends text, with the fields of vLLM."""
        extra = extra_fields(generation)
        if not self.separates_caches:
            del extra["cache_salt"]
        if not self.takes_ids:
            return self._chat.request(generation, info, extra)
        request = generation.request
        # Stop strings are found here, in the text that is made here.
        body = self._chat.fields(replace(generation, stop=())) | extra
        body |= {
            "model": adapter_of(generation) or self._chat.model_of(info),
            "prompt": request.prompt_token_ids,
            "return_token_ids": True,
        }
        if request.sampling.logit_bias:
            body["logit_bias"] = {str(token_id): bias for token_id, bias in request.sampling.logit_bias.items()}
        return Request("/v1/completions", _encode(body))

    def reader(self, generation: Generation) -> Reader:
        """Return a reader of chunks with token ids, or of chunks with text where the pool sends text."""
        return IdReader(generation, self._vocab_size) if self.takes_ids else self._chat.reader(generation)

    async def inspect(self, server: Server, within_s: float) -> ServerInfo:
        """Return the served model, its length and the adapters that the server lists beside it."""
        reply = await server.ask_whole("GET", "/v1/models", within_s=within_s)
        info = self._chat.info_of(reply)
        return info if self._adapters is None else replace(info, adapters=self._adapters.adapters_in(reply.body))


class IdReader:
    """Reads the chunks of a completion with token ids."""

    def __init__(self, generation: Generation, vocab_size: int) -> None:
        self._num_choices = generation.request.n
        self._vocab_size = vocab_size
        self._adapter = adapter_of(generation)

    def read(self, data: bytes) -> Event:
        """Read one chunk with token ids, or `[DONE]`, which ends the reply."""
        if data == b"[DONE]":
            return Event(is_end=True)
        try:
            chunk = _decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise BadReply("an event is no chunk") from None
        check_event(chunk.error)
        check_parts(chunk.choices, self._num_choices)
        if self._adapter and chunk.choices and chunk.model != self._adapter:
            raise AnotherModel("its reply is of another model than the adapter that was asked for")
        return Event([self._part(each) for each in chunk.choices], reported_usage(chunk.usage))

    def _part(self, choice: _Choice) -> Part:
        if not 0 <= choice.index < self._num_choices:
            raise BadReply("a chunk is of a choice that was not asked for")
        ids = choice.token_ids or []
        if ids and not 0 <= min(ids) <= max(ids) < self._vocab_size:
            raise BadReply("a token id is not of the vocabulary")
        return Part(choice.index, token_ids=ids, finish_reason=finish_of(choice.finish_reason))


def cache_salt_of(generation: Generation) -> str:
    """Return the name of the cache of a generation's tenant, which tells nothing of the tenant."""
    return hashlib.sha256(f"lorikeet {generation.request.tenant}".encode()).hexdigest()[:32]


def extra_fields(generation: Generation) -> dict[str, Any]:
    """Return the fields that vLLM has beside OpenAI's."""
    sampling = generation.request.sampling
    fields: dict[str, Any] = {
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "cache_salt": cache_salt_of(generation),
    }
    if sampling.top_k > 0:
        fields["top_k"] = sampling.top_k
    if sampling.min_p:
        fields["min_p"] = sampling.min_p
    if sampling.repetition_penalty != 1.0:
        fields["repetition_penalty"] = sampling.repetition_penalty
    if sampling.min_tokens:
        fields["min_tokens"] = sampling.min_tokens
    if sampling.ignore_eos:
        fields["ignore_eos"] = True
    return fields
