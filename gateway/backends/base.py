"""The one interface of everything that makes tokens.

The pipeline never asks which kind of backend it talks to.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Literal, Protocol, get_args

import msgspec

from engine.config.model import Task
from engine.protocol import AdapterProbe, EngineStats, GenerateRequest, Usage
from gateway.backends.generation import Generation, Item
from gateway.backends.usage import Acknowledged
from gateway.domain.errors import GatewayError
from gateway.domain.routing.breaker import BreakerState
from gateway.text.conversation import Message as Message
from gateway.text.options import USUAL, Rendering
from gateway.text.tokenizer import Tokenizer
from gateway.text.tools.tool import Tool

Feature = Literal[
    "token_ids",
    "returned_ids",
    "logit_bias",
    "stop_token_ids",
    "allowed_token_ids",
    "logprobs",
    "prompt_logprobs",
    "json_schema",
    "grammar",
    "embeddings",
    "tools",
    "continue_message",
    "template_arguments",
    "text_style",
    "top_k",
    "min_p",
    "repetition_penalty",
    "min_tokens",
    "ignore_eos",
    "seed",
]
"""Something that a request may ask for and that not every backend can do.

token_ids: prompts may be token ids and are counted exactly, since the model's tokenizer is known here. returned_ids:
replies may show the token ids of prompts and completions. json_schema: completions that are JSON, with or without a
schema. grammar: completions that match a regular expression, a choice or a grammar. continue_message: a chat that goes
on in the midst of its last message. template_arguments: fields that the chat template reads. text_style: special tokens
and stop strings are shown. Each other feature is the field of its name.
"""

ALL_FEATURES: frozenset[Feature] = frozenset(get_args(Feature))


class Capabilities(msgspec.Struct, frozen=True):
    """The bounds of a backend; a request beyond them is refused before the backend is asked."""

    max_model_len: int
    """The longest prompt and completion together, in tokens."""
    vocab_size: int
    """The number of token ids, which are 0 to vocab_size - 1."""
    max_choices: int
    """The most choices of one request."""
    max_in_flight: int
    """The most choices that the backend runs and keeps waiting."""
    embedding_size: int
    """Numbers in an embedding."""
    longest_token_bytes: int
    """Bytes of text in the longest token."""
    embedding_sizes: tuple[int, ...] = ()
    """The numbers that an embedding may be shortened to, embedding_size among them; () is embedding_size alone."""
    fingerprint: str = ""
    """The digest of all that a seeded answer depends on beside its request, such as weights and software; "" where the
    server names none."""
    max_running: int = 1
    """The most choices that the backend runs at once."""
    block_size: int = 16
    """Tokens in a block of the KV cache."""
    task: Task = Task()
    """The task that the model was made for. Only a model for text completes, and only a model for ranking ranks."""
    features: frozenset[Feature] = ALL_FEATURES
    """The features that a request may use beyond text, a temperature, top_p, penalties and stop strings."""


class PreparedPrompt(msgspec.Struct, frozen=True):
    """A prompt as token ids, or where the tokenizer is not known here, as a number of tokens.

    The number is exact, or an upper bound.
    """

    token_ids: list[int]
    """Empty where the tokenizer is not known."""
    num_tokens: int
    """The number of tokens, which every later limit uses: exact where there are ids, else an upper bound."""
    num_first_tokens: int = 0
    """The number of tokens in the first of a pair of texts, for a model that tells segments apart; 0 for others."""


Fit = Callable[[str], str]
"""A function that shortens a rendered prompt before it is tokenized, or raises InvalidRequest."""


def unchanged(text: str) -> str:
    """Return the text unchanged: there is no bound on its length."""
    return text


class ServerState(msgspec.Struct, frozen=True):
    """The state of a server of another maker, as one gateway judges it."""

    breaker: BreakerState
    """The circuit breaker. `open`: no request is sent for a while, since the server failed. `half-open`: the next
    request is a trial."""
    open_for_s: float
    """Seconds until the next request is sent as a trial; 0 where the breaker is not open."""
    num_false_usages: int
    """The number of the server's latest reports of usage that cannot be true."""
    distrusted_for_s: float
    """Seconds for which the server gets no requests, since too many of its usages cannot be true; 0 for none."""
    version: str = ""
    """The version that the server says it has; "" where it says none."""
    is_tried: bool = True
    """False if the driver was not tried with the version: the server is asked by a generic protocol then."""
    has_adapters: bool = False
    """True if adapters of tenants answer at the server."""
    separates_caches: bool = False
    """True if the prompts of each tenant have a cache of their own at the server."""


class Health(msgspec.Struct, frozen=True):
    """The state of a backend."""

    ready: bool
    """True if the backend takes requests."""
    detail: str
    """The reason why the backend is not ready, in words that anybody may read."""
    stats: EngineStats | None = None
    """The statistics of the last heartbeat; None where there is none."""
    endpoint: str = ""
    """The address of the engine, for operators only."""
    engine_id: str = ""
    """The id of the process that sent `stats`."""
    reason: str = ""
    """The reason why the backend is not ready, in words for operators alone; "" where `detail` says all."""
    server: ServerState | None = None
    """The state of a server of another maker; None for an engine of our own."""


def _do_nothing() -> None:
    """Do nothing: the attempt was never sent, so there is no usage to record."""


class Unanswered(Exception):
    """The error when a backend did not answer a request, and another one may be asked.

    The usage of the attempt is not recorded yet: the catcher records it, by exactly one call of `settle` or
    `supersede`.
    """

    def __init__(
        self,
        error: GatewayError,
        kind: Literal["absent", "full", "died", "failed"],
        *,
        was_sent: bool = False,
        settle: Callable[[], None] = _do_nothing,
        supersede: Callable[[], None] = _do_nothing,
    ) -> None:
        super().__init__(error.message)
        self.error = error
        """The error that the client gets where the request is not tried again."""
        self.kind = kind
        """The kind of the failure.

        absent: the backend was not there, and the request was not sent.
        full: the backend had no room.
        died: the backend died, or left, under the request.
        failed: the backend failed at this request before the first item.
        """
        self.was_sent = was_sent
        """True if the backend may have worked on the request."""
        self.settle = settle
        """The function that records the known usage of the attempt and bills it: the client gets no other answer."""
        self.supersede = supersede
        """The function that records the attempt as the operator's own: another attempt replaces it, and is billed."""


class Model(Protocol):
    """A base model, independent of any backend: its tokenizer and its bounds."""

    @property
    def capabilities(self) -> Capabilities:
        """The model's task and limits."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the base model."""

    def prepare_chat(
        self,
        messages: list[Message],
        tools: Sequence[Tool] = (),
        rendering: Rendering = USUAL,
        fit: Fit = unchanged,
        owner: str = "",
    ) -> PreparedPrompt:
        """Render the chat template and tokenize the messages that fit.

        owner: the project whose tokenized turns may be remembered. messages: the conversation. tools: the tools that
        the model may call. rendering: the request's choices about the template. fit: returns the messages that go into
        the prompt, where not all fit.

        Raises InvalidRequest: for a conversation that the template refuses, with param="messages".
        """

    def prepare_text(self, prompt: str | list[int], field: str, *, add_special_tokens: bool = True) -> PreparedPrompt:
        """Tokenize a plain prompt, or check ids against the vocabulary.

        add_special_tokens: False: the tokenizer adds no tokens of its own, such as one for the beginning of a text.
        field: the name of the request's field that holds the prompt.

        Raises InvalidRequest: when an id is not in the vocabulary; the error names `field`.
        """


class Backend(Acknowledged, Protocol):
    """Generation over one base model. Usage goes to the `UsageSink` it was made with."""

    @property
    def capabilities(self) -> Capabilities:
        """The bounds of the backend."""

    def generate(self, generation: Generation) -> AsyncGenerator[Item]:
        """Yield the pieces that came since the last item, together, then exactly one Usage.

        Closing the generator early aborts the request; its usage reaches the sink all the same.

        Raises InvalidRequest: when the backend refuses the request, before the first item.
        Raises BackendFailed: when the backend fails at the request after the first item.
        Raises Unanswered: when the backend is not there, has no room or fails at the request, before the first item, or
        dies under the request.
        """

    async def embed(self, request: GenerateRequest, trace: str = "") -> tuple[bytes, Usage]:
        """Return the embedding or the score of a prompt, whichever the request asks for, in fp32, little-endian.

        trace: the span that the request belongs to, as W3C's `traceparent` has it; "" for none.

        Raises as `generate`.
        """

    async def load(self, key: str) -> None:
        """Make an adapter resident, and keep it there until it is unloaded.

        key: the key of the adapter's content (`adapters.ref`).

        Raises InvalidRequest: when the adapter does not fit; the message is the reason.
        Raises Overloaded, BackendFailed: when the backend cannot tell now.
        """

    async def probe(self, key: str) -> AdapterProbe:
        """Try an adapter with a short generation, and the base model with another. The adapter is resident afterwards.

        Raises InvalidRequest: when the adapter cannot be served; the error has the reason.
        Raises Overloaded or BackendFailed: when it cannot be tried now.
        """

    async def unload(self, key: str) -> None:
        """Take an adapter off the device."""

    async def unpin(self, key: str) -> None:
        """Let an adapter that `load` made resident be evicted like any other."""

    def resident(self) -> frozenset[str]:
        """Content keys of the adapters that are on the device now."""

    def health(self) -> Health:
        """Return the state of the backend now."""

    def cut_off(self) -> None:
        """Refuse new requests, and abort the running ones: their readers get ShuttingDown."""

    async def drain(self) -> None:
        """Refuse new requests; return when the running ones have ended."""
