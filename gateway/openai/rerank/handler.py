"""POST /v1/rerank; Cohere's clients ask for /v2/rerank, and some for /rerank."""

from __future__ import annotations

import math
import struct
from typing import Any

import msgspec
from litestar import Request, post
from litestar.handlers import HTTPRouteHandler
from litestar.response.base import ASGIResponse

from gateway.content.idempotency import Idempotency
from gateway.domain.errors import InvalidRequest
from gateway.http.bodies import Bodies, decoded
from gateway.http.caller import Caller
from gateway.http.disconnect import unless_disconnected
from gateway.http.fields import refuse_unsupported
from gateway.http.request.call import call_of, note_user
from gateway.http.shape import shape
from gateway.openai.rerank.wire import (
    MAX_DOCUMENTS,
    MAX_TOTAL_TOKENS,
    RERANK_NO_EFFECT,
    RerankMeta,
    RerankReply,
    RerankRequest,
    RerankResult,
    RerankText,
    RerankTokens,
    RerankUsage,
)
from gateway.openai.shared import examples
from gateway.openai.shared.context import attach_run, context_of, show_cost
from gateway.openai.shared.idempotent import idempotent
from gateway.openai.shared.replies import json_response
from gateway.openai.shared.units import ExperimentFields
from gateway.pipeline.pipeline import Pipeline
from gateway.pipeline.requests import EmbeddingBounds, FieldNames, RankRequest

ENDPOINT = "/v1/rerank"

SHAPE = shape(body=RerankRequest, reply=RerankReply, is_billed=True, example=examples.RERANK)
_DECODER = msgspec.json.Decoder(RerankRequest)
_NAMES = FieldNames(prompt="query")


def rerank(
    pipeline: Pipeline,
    bodies: Bodies,
    idempotency: Idempotency,
    *,
    path: str = "/rerank",
    operation: str = "rank_documents",
) -> HTTPRouteHandler:
    """Return the route that ranks documents. Clients of Cohere and of others ask at paths of their own.

    path: the path of the route. operation: the name of the operation in the API's document.
    """

    @post(path, operation_id=operation, status_code=200, opt=SHAPE)
    @idempotent(idempotency, bodies)
    async def rank_documents(request: Request[Any, Any, Any], caller: Caller) -> ASGIResponse:
        """Rank documents by how relevant they are for a query."""
        call = call_of(request.scope)
        wire = await decoded(_DECODER, await bodies.read(request, caller))
        fields = ExperimentFields(request.scope["headers"], caller, wire)
        context = context_of(call, caller, wire.model, ENDPOINT, experiment_fields=fields)
        note_user(call, wire.user)
        refuse_unsupported(wire, RERANK_NO_EFFECT)
        documents = _documents(wire)
        asked = [
            RankRequest(
                query=wire.query,
                document=document,
                names=_NAMES,
                max_document_tokens=wire.max_tokens_per_doc,
                instruction=wire.instruction,
            )
            for document in documents
        ]
        run = await pipeline.embed(context, asked, EmbeddingBounds(None, MAX_TOTAL_TOKENS))
        attach_run(call, run)
        results = await unless_disconnected(call, run.embed())
        show_cost(call, run, [usage for _, usage in results])
        scores = [struct.unpack("<f", vector)[0] for vector, _ in results]
        num_tokens = sum(map(len, run.prompts))
        counted = RerankTokens(num_tokens)
        return json_response(
            RerankReply(
                id=context.request_id,
                model=wire.model,
                results=_ranked(wire, documents, scores),
                usage=RerankUsage(num_tokens, num_tokens),
                meta=RerankMeta(counted, counted),
            )
        )

    return rank_documents


def _documents(wire: RerankRequest) -> list[str]:
    """Return the texts of the documents.

    Raises InvalidRequest: for too many documents, or an empty one.
    """
    if len(wire.documents) > MAX_DOCUMENTS:
        raise InvalidRequest(
            f"'documents' may hold at most {MAX_DOCUMENTS} documents.", param="documents", code="invalid_value"
        )
    documents = [each if isinstance(each, str) else each.text for each in wire.documents]
    for index, document in enumerate(documents):
        if not document:
            raise InvalidRequest(
                f"Invalid value for 'documents[{index}]': a document cannot be empty.",
                param=f"documents[{index}]",
                code="invalid_value",
            )
    return documents


def _ranked(wire: RerankRequest, documents: list[str], scores: list[float]) -> list[RerankResult]:
    """Return the results, the highest score first; documents of one score stay in their order."""
    order = sorted(range(len(scores)), key=lambda index: -scores[index])
    return [
        RerankResult(
            index,
            scores[index] if wire.raw_scores else _probability(scores[index]),
            RerankText(documents[index]) if wire.return_documents else None,
        )
        for index in order[: wire.top_n]
    ]


def _probability(score: float) -> float:
    """Return the logistic function of a score, without overflow."""
    if score >= 0:
        return 1 / (1 + math.exp(-score))
    return math.exp(score) / (1 + math.exp(score))
