"""POST /v1/embeddings."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import msgspec
import numpy as np
from litestar import Request, post
from litestar.handlers import HTTPRouteHandler
from litestar.response.base import ASGIResponse
from numpy.typing import NDArray

from gateway.api.admission import admit
from gateway.api.caller import Caller
from gateway.api.disconnect import unless_gone
from gateway.api.embeddings_wire import MAX_INPUTS, EmbeddingList, EmbeddingOut, EmbeddingsRequest, EmbeddingUsage
from gateway.api.envelope import call_of
from gateway.api.fields import decode
from gateway.api.merge import all_of
from gateway.api.prompts import prompts
from gateway.api.replies import json_response, row_id
from gateway.api.shape import shape
from gateway.pipeline import Pipeline
from gateway.requests import EmbeddingRequest, FieldNames

ENDPOINT = "/v1/embeddings"

_DECODER = msgspec.json.Decoder(EmbeddingsRequest)


def embeddings(pipeline: Pipeline) -> HTTPRouteHandler:
    @post("/embeddings", status_code=200, opt=shape(body=EmbeddingsRequest, reply=EmbeddingList))
    async def create_embeddings(request: Request[Any, Any, Any], caller: Caller) -> ASGIResponse:
        call = call_of(request.scope)
        wire = decode(_DECODER, await request.body())
        call.model = wire.model
        inputs = prompts(wire.input, "input", MAX_INPUTS)
        route = await pipeline.route(caller, wire.model)
        good = []
        for index, prompt in enumerate(inputs):
            asked = EmbeddingRequest(
                request_id=row_id(call.request_id, index),
                endpoint=ENDPOINT,
                prompt=prompt,
                names=FieldNames(prompt="input"),
                pooling=wire.pooling or "mean",
                dimensions=wire.dimensions,
            )
            good.append(await pipeline.prepare_embedding(caller, route, asked))
            await asyncio.sleep(0)  # the streams of others go on while thousands of inputs are tokenized
        prepared = await admit(pipeline, request, caller, good)
        results = await unless_gone(request.receive, all_of([pipeline.embed(each) for each in prepared]))
        num_tokens = sum(usage.prompt_tokens for _, usage in results)
        data = [EmbeddingOut(index, _shown(wire, vector)) for index, (vector, _) in enumerate(results)]
        return json_response(EmbeddingList(data, wire.model, EmbeddingUsage(num_tokens, num_tokens)))

    return create_embeddings


def _shown(wire: EmbeddingsRequest, vector: bytes) -> list[float] | str:
    values: NDArray[np.float32] = np.frombuffer(vector, dtype="<f4")
    if wire.dimensions is not None:
        values = _cut(values, wire.dimensions)
    if wire.encoding_format == "base64":
        return base64.b64encode(values.tobytes()).decode()
    numbers: list[float] = values.tolist()
    return numbers


def _cut(values: NDArray[np.float32], dimensions: int) -> NDArray[np.float32]:
    """The first dimensions, of unit length again."""
    cut = values[:dimensions]
    norm = float(np.linalg.norm(cut))
    return cut / np.float32(norm) if norm else cut
