"""POST /v1/embeddings."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import numpy as np
from litestar import Request, post
from litestar.handlers import HTTPRouteHandler
from litestar.response.base import ASGIResponse
from numpy.typing import NDArray

from gateway.content.idempotency import Idempotency
from gateway.domain.errors import InvalidRequest
from gateway.http.bodies import Bodies, decoded
from gateway.http.caller import Caller
from gateway.http.disconnect import unless_disconnected
from gateway.http.fields import refuse_unsupported
from gateway.http.request.call import call_of, note_user
from gateway.http.shape import shape
from gateway.openai.completions.prompts import place_of, prompts
from gateway.openai.embeddings.wire import (
    EMBEDDING_NO_EFFECT,
    MAX_INPUTS,
    MAX_NUMBERS,
    MAX_TOTAL_TOKENS,
    EmbeddingList,
    EmbeddingOut,
    EmbeddingsRequest,
    EmbeddingUsage,
)
from gateway.openai.shared import examples
from gateway.openai.shared.context import attach_run, context_of, show_cost
from gateway.openai.shared.idempotent import idempotent
from gateway.openai.shared.replies import json_response
from gateway.openai.shared.slices import encode_parts
from gateway.openai.shared.units import ExperimentFields
from gateway.pipeline.bounds import check_total
from gateway.pipeline.pipeline import Pipeline
from gateway.pipeline.requests import EmbeddingBounds, EmbeddingRequest, FieldNames

ENDPOINT = "/v1/embeddings"

SHAPE = shape(body=EmbeddingsRequest, reply=EmbeddingList, is_billed=True, example=examples.EMBEDDING)
_INPUT_TYPES: dict[str, Literal["query", "document"]] = {
    "query": "query",
    "search_query": "query",
    "document": "document",
    "passage": "document",
    "search_document": "document",
}
_DECODER = msgspec.json.Decoder(EmbeddingsRequest)


def embeddings(pipeline: Pipeline, bodies: Bodies, idempotency: Idempotency) -> HTTPRouteHandler:
    """Return the handler of POST /v1/embeddings."""

    @post("/embeddings", status_code=200, opt=SHAPE)
    @idempotent(idempotency, bodies)
    async def create_embeddings(request: Request[Any, Any, Any], caller: Caller) -> ASGIResponse:
        """Embed one text or several."""
        call = call_of(request.scope)
        wire = await decoded(_DECODER, await bodies.read(request, caller))
        fields = ExperimentFields(request.scope["headers"], caller, wire)
        context = context_of(call, caller, wire.model, ENDPOINT, experiment_fields=fields)
        note_user(call, wire.user)
        refuse_unsupported(wire, EMBEDDING_NO_EFFECT)
        inputs = prompts(wire.input, "input", MAX_INPUTS)
        _check_lengths(wire, inputs)
        asked = [embedding_request(wire, each, place_of(wire.input, index)) for index, each in enumerate(inputs)]
        run = await pipeline.embed(context, asked, bounds_of(wire))
        attach_run(call, run)
        results = await unless_disconnected(call, run.embed())
        show_cost(call, run, [usage for _, usage in results])
        is_normalized = run.generations[0].request.is_normalized
        data = await encode_parts(
            EmbeddingOut(index, _embedding_wire(wire, vector, is_normalized=is_normalized))
            for index, (vector, _) in enumerate(results)
        )
        num_tokens = sum(map(len, run.prompts))
        return json_response(EmbeddingList(data, wire.model, EmbeddingUsage(num_tokens, num_tokens)))

    return create_embeddings


def bounds_of(wire: EmbeddingsRequest) -> EmbeddingBounds:
    """Return the bounds on the embeddings of a request.

    Numbers in base64 take little room and little time, so that more of them are allowed.
    """
    return EmbeddingBounds(None if wire.encoding_format == "base64" else MAX_NUMBERS, MAX_TOTAL_TOKENS)


def embedding_request(wire: EmbeddingsRequest, prompt: str | list[int], place: int | None = None) -> EmbeddingRequest:
    """Return the pipeline's request for one input.

    place: the input's index in the list that the field `input` holds; None: the field holds this input alone.
    """
    return EmbeddingRequest(
        prompt=prompt,
        names=FieldNames("input", place),
        pooling=wire.pooling,
        prompt_name=wire.prompt_name,
        input_type=_INPUT_TYPES.get(wire.input_type or ""),
        dimensions=wire.dimensions,
        add_special_tokens=wire.add_special_tokens is not False,
        max_prompt_tokens=wire.truncate_prompt_tokens,
        keeps_first=wire.truncation_side == "right",
    )


def _check_lengths(wire: EmbeddingsRequest, inputs: Sequence[str | list[int]]) -> None:
    """Check the lengths of the inputs before anything is tokenized.

    Raises InvalidRequest: when an input is empty, or all token ids together are too many.
    """
    for index, each in enumerate(inputs):
        if not each:
            field = FieldNames("input", place_of(wire.input, index)).this_prompt
            raise InvalidRequest(
                f"Invalid value for '{field}': an input cannot be empty.", param=field, code="invalid_value"
            )
    check_total(
        sum(len(each) for each in inputs if not isinstance(each, str)), EmbeddingBounds(None, MAX_TOTAL_TOKENS), "input"
    )


def _embedding_wire(wire: EmbeddingsRequest, vector: bytes, *, is_normalized: bool) -> list[float] | str:
    values: NDArray[np.float32] = np.frombuffer(vector, dtype="<f4")
    if wire.dimensions is not None:
        values = _cut(values, wire.dimensions) if is_normalized else values[: wire.dimensions]
    if wire.encoding_format == "base64":
        return base64.b64encode(values.tobytes()).decode()
    numbers: list[float] = values.tolist()
    return numbers


def _cut(values: NDArray[np.float32], dimensions: int) -> NDArray[np.float32]:
    """Return the first `dimensions` values of an embedding, scaled to unit length again."""
    cut = values[:dimensions]
    norm = float(np.linalg.norm(cut))
    return cut / np.float32(norm) if norm else cut
