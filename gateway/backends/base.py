"""The one interface the pipeline knows. It never asks which kind of backend it talks to.

A backend's streams speak the engine protocol's `Delta` and `Final`: token ids where `Capabilities.token_ids`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Protocol

import msgspec

from engine.protocol import AdapterProbe, Delta, EngineStats, Final, GenerateRequest
from gateway.backends.usage import Acknowledged
from gateway.text.options import USUAL, Rendering
from gateway.text.tools.tool import Tool

Message = dict[str, Any]


class Capabilities(msgspec.Struct, frozen=True):
    """What a backend can do; what it cannot is refused before it is asked. Token ids are in 0..vocab_size - 1.

    max_choices: the most choices of one request. max_in_flight: the most choices that it runs and keeps waiting.
    embedding_size: numbers in an embedding. fingerprint: as in `engine.protocol.Welcome`.
    """

    exact_counts: bool
    token_ids: bool
    lora: bool
    sampling: frozenset[str]
    logprobs: bool
    grammar: bool
    abort: bool
    max_model_len: int
    vocab_size: int
    max_choices: int
    max_in_flight: int
    embedding_size: int
    fingerprint: str = ""


class PreparedPrompt(msgspec.Struct, frozen=True):
    """A prompt as ids, with the number every later limit uses. num_tokens is exact where Capabilities.exact_counts."""

    token_ids: list[int]
    num_tokens: int


class Health(msgspec.Struct, frozen=True):
    """detail: why it is not ready, in words that anybody may read. endpoint: where it is, for operators alone.
    engine_id: of the process whose stats these are."""

    ready: bool
    detail: str
    stats: EngineStats | None = None
    endpoint: str = ""
    engine_id: str = ""


class Backend(Acknowledged, Protocol):
    """Generation over one base model. Usage goes to the `UsageSink` it was made with."""

    @property
    def capabilities(self) -> Capabilities: ...

    def prepare_chat(
        self, messages: list[Message], tools: Sequence[Tool] = (), rendering: Rendering = USUAL
    ) -> PreparedPrompt:
        """Render the chat template and tokenize. Raises InvalidRequest, of messages param="messages"."""

    def prepare_text(self, prompt: str | list[int], field: str, *, add_special_tokens: bool = True) -> PreparedPrompt:
        """Tokenize a plain prompt, or check ids against the vocabulary. Raises InvalidRequest(param=field)."""

    def generate(self, request: GenerateRequest) -> AsyncGenerator[list[Delta] | Final]:
        """The deltas that came since the last item, then exactly one Final. Closing the iterator early aborts the
        request; its usage reaches the sink all the same.

        Raises Overloaded when nothing can take it, BackendFailed when the backend dies under it.
        """

    async def stop_at(self, request_id: str, index: int, num_kept_tokens: int) -> None:
        """The text of a choice is complete after num_kept_tokens of its tokens (a stop string): end it, discard the
        rest."""

    async def load(self, key: str) -> None:
        """Make an adapter resident, and keep it there until it is unloaded; key: of its content (`adapters.ref`).

        Raises InvalidRequest with the reason it does not fit, Overloaded or BackendFailed when that can't be told.
        """

    async def probe(self, key: str) -> AdapterProbe:
        """Try an adapter: a short generation with it and one without. It is resident then, as after a first request.

        Raises InvalidRequest with the reason why it can't be served, Overloaded or BackendFailed when that can't be
        told now.
        """

    async def unload(self, key: str) -> None: ...

    async def unpin(self, key: str) -> None:
        """What `load` made resident may be evicted like any other adapter."""

    def resident(self) -> frozenset[str]:
        """Content keys of the adapters that are on the device now."""

    def health(self) -> Health: ...

    def cut_off(self) -> None:
        """Take no new request, and abort the running ones: their readers get ShuttingDown."""

    async def drain(self) -> None:
        """Take no new request; return when the running ones have ended."""
