"""POST /v1/embeddings."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from litestar import Request, post
from litestar.handlers import HTTPRouteHandler
from litestar.response.base import ASGIResponse
from numpy.typing import NDArray

from gateway.content.idempotency import Idempotency
from gateway.content.request_log import RequestContents
from gateway.domain.errors import InvalidRequest
from gateway.http.disconnect import unless_gone
from gateway.http.envelope import call_of, tell_user
from gateway.http.fields import decode, refuse_unsupported
from gateway.http.shape import shape
from gateway.openai.completions.prompts import prompts
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
from gateway.openai.shared.admission import admit
from gateway.openai.shared.caller import Caller
from gateway.openai.shared.idempotent import idempotent
from gateway.openai.shared.logged import listen, prompts_said
from gateway.openai.shared.merge import all_of
from gateway.openai.shared.replies import json_response, row_id
from gateway.openai.shared.slices import encoded
from gateway.pipeline.pipeline import Pipeline
from gateway.pipeline.requests import EmbeddingRequest, FieldNames

ENDPOINT = "/v1/embeddings"

SHAPE = shape(body=EmbeddingsRequest, reply=EmbeddingList, is_billed=True, example=examples.EMBEDDING)
_DECODER = msgspec.json.Decoder(EmbeddingsRequest)


def embeddings(pipeline: Pipeline, idempotency: Idempotency, contents: RequestContents) -> HTTPRouteHandler:
    @post("/embeddings", status_code=200, opt=SHAPE)
    @idempotent(idempotency)
    async def create_embeddings(request: Request[Any, Any, Any], caller: Caller) -> ASGIResponse:
        """Embed a text, or several."""
        call = call_of(request.scope)
        wire = decode(_DECODER, await request.body())
        call.model = wire.model
        tell_user(call, wire.user)
        refuse_unsupported(wire, EMBEDDING_NO_EFFECT)
        inputs = prompts(wire.input, "input", MAX_INPUTS)
        _check_lengths(inputs)
        route = await pipeline.route(caller, wire.model)
        check_numbers(wire, len(inputs), pipeline.model_of(route)[1].embedding_size)
        good, num_tokens = [], 0
        for index, prompt in enumerate(inputs):
            asked = EmbeddingRequest(
                request_id=row_id(call.request_id, index),
                endpoint=ENDPOINT,
                prompt=prompt,
                names=FieldNames(prompt="input"),
                pooling=wire.pooling or "mean",
                dimensions=wire.dimensions,
                add_special_tokens=wire.add_special_tokens is not False,
                max_prompt_tokens=wire.truncate_prompt_tokens,
            )
            good.append(await pipeline.prepare_embedding(caller, route, asked))
            num_tokens += len(good[-1].request.prompt_token_ids)
            _check_total(num_tokens)
            await asyncio.sleep(0)  # the streams of others go on while thousands of inputs are tokenized
        prepared = await admit(pipeline, request, caller, good)
        if caller.log_content_days:
            listen(contents, call, caller, ENDPOINT, prompts_said(inputs, pipeline.tokenizer(prepared[0])))
        results = await unless_gone(request.receive, all_of([pipeline.embed(each) for each in prepared]))
        data = await encoded(EmbeddingOut(index, _shown(wire, vector)) for index, (vector, _) in enumerate(results))
        return json_response(EmbeddingList(data, wire.model, EmbeddingUsage(num_tokens, num_tokens)))

    return create_embeddings


def _check_lengths(inputs: Sequence[str | list[int]]) -> None:
    """What can be told before anything is tokenized. Raises InvalidRequest."""
    for index, each in enumerate(inputs):
        if not each:
            raise InvalidRequest(
                f"Invalid value for 'input[{index}]': an input cannot be empty.", param="input", code="invalid_value"
            )
    _check_total(sum(len(each) for each in inputs if not isinstance(each, str)))


def check_numbers(wire: EmbeddingsRequest, num_inputs: int, size: int) -> None:
    """size: of this model's embeddings. Raises InvalidRequest."""
    num_numbers = num_inputs * min(wire.dimensions or size, size)
    if wire.encoding_format != "base64" and num_numbers > MAX_NUMBERS:
        raise InvalidRequest(
            f"These inputs come to {num_numbers} numbers; one request may have at most {MAX_NUMBERS}, unless "
            "'encoding_format' is 'base64'.",
            param="input",
            code="invalid_value",
        )


def _check_total(num_tokens: int) -> None:
    if num_tokens > MAX_TOTAL_TOKENS:
        raise InvalidRequest(
            f"The inputs of one request may have at most {MAX_TOTAL_TOKENS} tokens in all.",
            param="input",
            code="max_tokens_per_request",
        )


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
