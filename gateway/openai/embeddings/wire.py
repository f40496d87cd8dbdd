"""Embeddings as OpenAI's clients send and expect them: structs and bounds."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gateway.http.fields import Metadata, NumTokens, TruncationSide

MAX_INPUTS = 2048
MAX_TOTAL_TOKENS = 300_000
"""The most tokens of all inputs of one request, OpenAI's own bound."""

MAX_NUMBERS = 1 << 22
"""The most numbers that a reply shows as JSON numbers, of some twenty bytes each."""


class EmbeddingsRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of POST /v1/embeddings."""

    model: Annotated[str, Meta(min_length=1, max_length=512)]
    input: str | Annotated[list[str | int | list[int]], Meta(min_length=1)]
    """A text, a list of texts, token ids, or lists of token ids."""
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    user: str | None = None
    metadata: Metadata | None = None
    pooling: Literal["mean", "last", "cls"] | None = None
    """An addition to OpenAI's API: `mean` embeds with the mean of the final hidden states, `last` with the last
    token's, `cls` with the first token's. Left out, it is what the model was trained for, or else `mean`."""
    prompt_name: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    """An addition to OpenAI's API: the name of the text that goes before each input. The model's
    `config_sentence_transformers.json` has the names and the texts."""
    input_type: Literal["query", "document", "passage", "search_query", "search_document"] | None = None
    """An addition to OpenAI's API: what the inputs are in a search. The model's prompt for it goes before each text, if
    it has one."""
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: NumTokens | None = None
    truncation_side: TruncationSide | None = None
    priority: int | None = None


EMBEDDING_NO_EFFECT: dict[str, tuple[Any, ...]] = {"priority": (0,)}
"""The values of fields this API does not serve that change nothing; any other value is refused by name."""


class EmbeddingOut(msgspec.Struct, frozen=True):
    """The embedding of one input."""

    index: int
    embedding: list[float] | str
    """Numbers, or 32-bit little-endian floats in base64."""
    object: Literal["embedding"] = "embedding"


class EmbeddingUsage(msgspec.Struct, frozen=True):
    """The tokens of the inputs."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(msgspec.Struct, frozen=True):
    """The embeddings of all inputs of a request, in the order of the inputs."""

    data: list[EmbeddingOut]
    model: str
    usage: EmbeddingUsage
    object: Literal["list"] = "list"
