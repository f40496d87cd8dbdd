"""POST /v1/completions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
from litestar import Request, post
from litestar.handlers import HTTPRouteHandler
from litestar.response.base import ASGIResponse

from gateway.api.admission import admit
from gateway.api.caller import Caller
from gateway.api.completions_stream import CompletionEvents
from gateway.api.completions_wire import (
    COMPLETION_NO_EFFECT,
    DEFAULT_MAX_TOKENS,
    MAX_PROMPTS,
    CompletionChoice,
    CompletionRequest,
    TextCompletion,
)
from gateway.api.disconnect import unless_gone
from gateway.api.envelope import call_of
from gateway.api.fields import decode, refuse_unsupported
from gateway.api.grammar import requested_grammar
from gateway.api.logprobs import TokenBytes, text_logprobs
from gateway.api.merge import all_of, merged
from gateway.api.options import given_options, include_usage, sampling_params, stop_strings
from gateway.api.prompts import prompts
from gateway.api.replies import Answer, Collected, collect, json_response, reply_id, row_id
from gateway.api.shape import shape
from gateway.api.sse import open_stream
from gateway.api.usage import usage_out
from gateway.errors import InvalidRequest
from gateway.pipeline import Pipeline, Prepared
from gateway.requests import FieldNames, TextRequest

ENDPOINT = "/v1/completions"

_DECODER = msgspec.json.Decoder(CompletionRequest)


def completions(pipeline: Pipeline) -> HTTPRouteHandler:
    @post("/completions", status_code=200, opt=shape(body=CompletionRequest, reply=TextCompletion))
    async def create_completion(request: Request[Any, Any, Any], caller: Caller) -> ASGIResponse:
        call = call_of(request.scope)
        wire = decode(_DECODER, await request.body())
        call.model = wire.model
        with_usage = include_usage(wire)
        _check(wire)
        asked = [
            _text_request(wire, prompt, row_id(call.request_id, index))
            for index, prompt in enumerate(prompts(wire.prompt, "prompt", MAX_PROMPTS))
        ]
        route = await pipeline.route(caller, wire.model)
        good = [await pipeline.prepare(caller, route, each) for each in asked]
        prepared = await admit(pipeline, request, caller, good)
        echoes = [_echo(pipeline, wire, each, index) for index, each in enumerate(prepared)]
        to_bytes = None if wire.logprobs is None else pipeline.tokenizer(prepared[0]).token_bytes
        reply = partial(
            TextCompletion, id=reply_id("cmpl", call.request_id), created=int(time.time()), model=wire.model
        )
        if wire.stream:
            events = CompletionEvents(reply, wire.n or 1, echoes, with_usage=with_usage, to_bytes=to_bytes)
            return await open_stream(request, events.of(merged([pipeline.run(each) for each in prepared])))
        jobs = [collect(pipeline.run(each), each.request.n) for each in prepared]
        collected = await unless_gone(request.receive, all_of(jobs))
        choices = _choices(collected, echoes, wire.n or 1, to_bytes)
        return json_response(reply(choices=choices, usage=usage_out([each.usage for each in collected])))

    return create_completion


def _check(wire: CompletionRequest) -> None:
    """What only several fields together make wrong. Raises InvalidRequest."""
    refuse_unsupported(wire, COMPLETION_NO_EFFECT)
    num_choices, num_candidates = wire.n or 1, wire.best_of or wire.n or 1
    if num_candidates < num_choices:
        raise InvalidRequest(f"'best_of' must be at least 'n' ({num_choices}).", param="best_of", code="invalid_value")
    if wire.stream and num_candidates > num_choices:
        raise InvalidRequest(
            "Results with 'best_of' greater than 'n' cannot be streamed.", param="best_of", code="invalid_value"
        )
    if wire.max_tokens == 0 and not wire.echo:
        raise InvalidRequest("'max_tokens' may be 0 only with 'echo'.", param="max_tokens", code="invalid_value")
    if wire.max_tokens == 0 and num_candidates > 1:
        raise InvalidRequest("Several choices need 'max_tokens' above 0.", param="max_tokens", code="invalid_value")


def _text_request(wire: CompletionRequest, prompt: str | list[int], request_id: str) -> TextRequest:
    grammar, grammar_field = requested_grammar(None, wire.structured_outputs)
    num_choices, num_candidates = wire.n or 1, wire.best_of or wire.n or 1
    chooses = num_candidates > num_choices  # by log-probabilities, whether they are shown or not
    num_prompt_logprobs = wire.logprobs if wire.echo else None
    if wire.max_tokens == 0:  # the engine is asked for something at least
        num_prompt_logprobs = wire.logprobs or 0
    return TextRequest(
        request_id=request_id,
        endpoint=ENDPOINT,
        prompt=prompt,
        names=FieldNames(prompt="prompt", n="best_of" if chooses else "n", grammar=grammar_field),
        stream=bool(wire.stream),
        sampling=sampling_params(
            wire,
            num_logprobs=0 if chooses and wire.logprobs is None else wire.logprobs,
            num_prompt_logprobs=num_prompt_logprobs,
            grammar=grammar,
        ),
        given=given_options(wire),
        max_tokens=wire.max_tokens,
        usual_max_tokens=DEFAULT_MAX_TOKENS,
        n=num_candidates,
        stop=stop_strings(wire),
    )


def _echo(pipeline: Pipeline, wire: CompletionRequest, prepared: Prepared, index: int) -> str:
    """A prompt as it is shown before its choices; "" where the client did not ask for that."""
    if not wire.echo:
        return ""
    if isinstance(wire.prompt, str):
        return wire.prompt
    prompt = wire.prompt[index]
    return prompt if isinstance(prompt, str) else pipeline.tokenizer(prepared).decode(prepared.request.prompt_token_ids)


def _choices(
    collected: Sequence[Collected], echoes: Sequence[str], num_choices: int, to_bytes: TokenBytes | None
) -> list[CompletionChoice]:
    """Each prompt's choices, the likeliest of its candidates where there are more."""
    choices: list[CompletionChoice] = []
    for each, echo in zip(collected, echoes, strict=True):
        answers = each.answers
        if len(answers) > num_choices:
            answers = sorted(answers, key=_mean_logprob, reverse=True)[:num_choices]
        for answer in answers:
            logprobs = None
            if to_bytes is not None:
                prompt = text_logprobs(each.prompt_tokens, to_bytes)
                logprobs = prompt.followed_by(text_logprobs(answer.tokens, to_bytes, len(echo)))
            choices.append(CompletionChoice(len(choices), echo + answer.text, answer.finish_reason, logprobs))
    return choices


def _mean_logprob(answer: Answer) -> float:
    """Per token; an answer without any comes last."""
    logprobs = [token.logprobs.logprob for token in answer.tokens if token.logprobs is not None]
    return sum(logprobs) / len(logprobs) if logprobs else -float("inf")
