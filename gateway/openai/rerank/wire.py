"""Ranking as Cohere's and Jina's clients send and expect it, in the shape that both have: structs and bounds."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gateway.http.fields import Metadata, NumTokens

MAX_DOCUMENTS = 1000
MAX_TOTAL_TOKENS = 600_000
"""The most tokens of one request: the query counts with each document."""


class RerankText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A document that is an object."""

    text: str


class RerankRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of POST /v1/rerank."""

    model: Annotated[str, Meta(min_length=1, max_length=512)]
    query: Annotated[str, Meta(min_length=1)]
    """The text that documents are ranked for."""
    documents: Annotated[list[str | RerankText], Meta(min_length=1)]
    """The documents: texts, or objects with a text."""
    top_n: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    """The most results; left out, all documents are results."""
    return_documents: bool | None = None
    """True: each result has its document."""
    max_tokens_per_doc: NumTokens | None = None
    """The number of a document's first tokens that count; left out: as many as the model's context has room for."""
    instruction: Annotated[str, Meta(max_length=8192)] | None = None
    """An addition to Cohere's and Jina's API: what makes a document relevant, for models that take an instruction."""
    raw_scores: bool | None = None
    """An addition to Cohere's and Jina's API: True shows the model's own scores, which are not bounded by 0 and 1."""
    user: str | None = None
    metadata: Metadata | None = None
    priority: int | None = None


RERANK_NO_EFFECT: dict[str, tuple[Any, ...]] = {"priority": (0,)}
"""The values of fields this API does not serve that change nothing; any other value is refused by name."""


class RerankResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """A document with a score. Results are in the order of their scores, highest first."""

    index: int
    """The place of the document in the request, from 0."""
    relevance_score: float
    """The relevance of the document, between 0 and 1, where 0 is not relevant."""
    document: RerankText | None = None


class RerankUsage(msgspec.Struct, frozen=True):
    """The tokens of a request in Jina's shape."""

    prompt_tokens: int
    total_tokens: int


class RerankTokens(msgspec.Struct, frozen=True):
    """The tokens of a request in Cohere's shape."""

    input_tokens: int
    output_tokens: int = 0


class RerankMeta(msgspec.Struct, frozen=True):
    """The usage in Cohere's names."""

    billed_units: RerankTokens
    tokens: RerankTokens


class RerankReply(msgspec.Struct, frozen=True, kw_only=True):
    """The documents, the most relevant one first."""

    id: str
    object: Literal["list"] = "list"
    model: str
    results: list[RerankResult]
    usage: RerankUsage
    meta: RerankMeta
