"""POST /v1/completions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
from litestar import Request, post
from litestar.handlers import HTTPRouteHandler
from litestar.response.base import ASGIResponse
from msgspec import UNSET

from gateway.content.idempotency import Idempotency
from gateway.content.request_log import RequestContents
from gateway.domain.errors import InvalidRequest
from gateway.http.disconnect import unless_gone
from gateway.http.envelope import call_of, tell_user
from gateway.http.fields import decode, refuse_unsupported
from gateway.http.shape import shape
from gateway.http.sse import open_stream
from gateway.openai.completions.prompts import prompts
from gateway.openai.completions.stream import CompletionEvents, ShownPrompt
from gateway.openai.completions.wire import (
    COMPLETION_NO_EFFECT,
    DEFAULT_MAX_TOKENS,
    MAX_PROMPTS,
    CompletionChoice,
    CompletionRequest,
    TextCompletion,
)
from gateway.openai.shared import examples
from gateway.openai.shared.admission import admit
from gateway.openai.shared.caller import Caller
from gateway.openai.shared.grammar import requested_grammar
from gateway.openai.shared.idempotent import idempotent
from gateway.openai.shared.logged import listen, overheard, prompts_said
from gateway.openai.shared.logprobs import TokenBytes, prompt_logprobs, whole_text_logprobs
from gateway.openai.shared.merge import all_of, merged
from gateway.openai.shared.obfuscation import obfuscated
from gateway.openai.shared.options import (
    check_prompt_logprobs,
    given_options,
    include_obfuscation,
    include_usage,
    sampling_params,
    stop_strings,
    text_style,
)
from gateway.openai.shared.replies import (
    Answer,
    Collected,
    collect,
    fingerprint,
    json_response,
    reply_id,
    row_id,
)
from gateway.openai.shared.slices import encoded
from gateway.openai.shared.usage import usage_out
from gateway.pipeline.bounds import check_logprobs, num_logprob_values
from gateway.pipeline.pipeline import Pipeline, Prepared
from gateway.pipeline.requests import FieldNames, TextRequest

ENDPOINT = "/v1/completions"

SHAPE = shape(
    body=CompletionRequest, reply=TextCompletion, event=TextCompletion, is_billed=True, example=examples.COMPLETION
)
_DECODER = msgspec.json.Decoder(CompletionRequest)


def completions(pipeline: Pipeline, idempotency: Idempotency, contents: RequestContents) -> HTTPRouteHandler:
    @post("/completions", status_code=200, opt=SHAPE)
    @idempotent(idempotency)
    async def create_completion(request: Request[Any, Any, Any], caller: Caller) -> ASGIResponse:
        """Continue a text, or several, whole or as a stream."""
        call = call_of(request.scope)
        wire = decode(_DECODER, await request.body())
        call.model = wire.model
        tell_user(call, wire.user)
        with_usage = include_usage(wire)
        _check(wire)
        given = prompts(wire.prompt, "prompt", MAX_PROMPTS)
        asked = [_text_request(wire, each, row_id(call.request_id, index)) for index, each in enumerate(given)]
        route = await pipeline.route(caller, wire.model)
        good, num_logprobs = [], 0
        for each in asked:
            good.append(await pipeline.prepare(caller, route, each))
            num_logprobs += num_logprob_values(good[-1].request)
            check_logprobs(num_logprobs, _logprobs_field(wire))
            await asyncio.sleep(0)  # the streams of others go on while many prompts are tokenized
        prepared = await admit(pipeline, request, caller, good)
        shown = [
            ShownPrompt(_echo(pipeline, wire, each, index), each.request.prompt_token_ids)
            for index, each in enumerate(prepared)
        ]
        tokenizer = pipeline.tokenizer(prepared[0])
        to_bytes, runs = tokenizer.token_bytes, [pipeline.run(each) for each in prepared]
        if caller.log_content_days:
            heard = listen(contents, call, caller, ENDPOINT, prompts_said(given, tokenizer))
            runs = [overheard(run, heard, index * prepared[index].request.n) for index, run in enumerate(runs)]
        reply = partial(
            TextCompletion,
            id=reply_id("cmpl", call.request_id),
            created=int(time.time()),
            model=wire.model,
            system_fingerprint=fingerprint(prepared[0]),
        )
        if wire.stream:
            events = CompletionEvents(
                reply,
                wire.n or 1,
                shown,
                with_usage=with_usage,
                with_token_ids=bool(wire.return_token_ids),
                to_bytes=None if wire.logprobs is None else to_bytes,
            )
            stream = events.of(merged(runs))
            return await open_stream(request, obfuscated(stream, events.empty) if include_obfuscation(wire) else stream)
        jobs = [collect(run, each.request.n) for run, each in zip(runs, prepared, strict=True)]
        collected = await unless_gone(request.receive, all_of(jobs))
        choices = await _choices(wire, collected, shown, to_bytes)
        return json_response(reply(choices=choices, usage=usage_out([each.usage for each in collected])))

    return create_completion


def _check(wire: CompletionRequest) -> None:
    """What only several fields together make wrong. Raises InvalidRequest."""
    refuse_unsupported(wire, COMPLETION_NO_EFFECT)
    check_prompt_logprobs(wire, shown_otherwise=bool(wire.echo) and wire.logprobs is not None)
    num_choices, num_candidates = _num_choices(wire)
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


def _num_choices(wire: CompletionRequest) -> tuple[int, int]:
    """Of each prompt, those that are shown, and the candidates that these are chosen from."""
    num_choices = wire.n or 1
    return num_choices, wire.best_of or num_choices


def _text_request(wire: CompletionRequest, prompt: str | list[int], request_id: str) -> TextRequest:
    grammar, grammar_field = requested_grammar(None, wire.structured_outputs)
    num_choices, num_candidates = _num_choices(wire)
    chooses = num_candidates > num_choices  # by log-probabilities, whether they are shown or not
    num_prompt_logprobs = wire.logprobs if wire.echo else None
    if wire.prompt_logprobs is not None:
        num_prompt_logprobs = wire.prompt_logprobs
    elif wire.max_tokens == 0:  # the engine is asked for something at least
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
        style=text_style(wire, follows_prompt=True),
        add_special_tokens=wire.add_special_tokens is not False,
        max_prompt_tokens=wire.truncate_prompt_tokens,
    )


def _echo(pipeline: Pipeline, wire: CompletionRequest, prepared: Prepared, index: int) -> str:
    """A prompt as it is shown before its choices; "" where the client did not ask for that."""
    if not wire.echo:
        return ""
    prompt = wire.prompt if isinstance(wire.prompt, str) else wire.prompt[index]
    if isinstance(prompt, str) and wire.truncate_prompt_tokens is None:
        return prompt
    return pipeline.tokenizer(prepared).decode(prepared.request.prompt_token_ids)


def _logprobs_field(wire: CompletionRequest) -> str:
    """What asks for log-probabilities; candidates are chosen by them."""
    if wire.logprobs is not None:
        return "logprobs"
    return "best_of" if wire.prompt_logprobs is None else "prompt_logprobs"


async def _choices(
    wire: CompletionRequest, collected: Sequence[Collected], prompts: Sequence[ShownPrompt], to_bytes: TokenBytes
) -> list[CompletionChoice]:
    """Each prompt's choices, the likeliest of its candidates where there are more. Each is encoded, see `slices`."""
    choices: list[CompletionChoice] = []
    for each, prompt in zip(collected, prompts, strict=True):
        answers, num_choices = each.answers, wire.n or 1
        if len(answers) > num_choices:
            answers = sorted(answers, key=_mean_logprob, reverse=True)[:num_choices]
        of_prompt = UNSET if wire.prompt_logprobs is None else await prompt_logprobs(each.prompt_tokens, to_bytes)
        echoed_tokens = each.prompt_tokens if wire.echo and wire.logprobs is not None else []
        echoed = await whole_text_logprobs(echoed_tokens, to_bytes)
        for answer in answers:
            logprobs = None
            if wire.logprobs is not None:
                logprobs = echoed.followed_by(await whole_text_logprobs(answer.tokens, to_bytes, len(prompt.echo)))
            choice = CompletionChoice(
                len(choices),
                prompt.echo + answer.text,
                answer.finish_reason,
                logprobs,
                of_prompt,
                prompt.token_ids if wire.return_token_ids else UNSET,
                answer.token_ids if wire.return_token_ids else UNSET,
            )
            choices += await encoded([choice])
    return choices


def _mean_logprob(answer: Answer) -> float:
    """Per token; an answer without any comes last."""
    logprobs = [token.logprobs.logprob for token in answer.tokens if token.logprobs is not None]
    return sum(logprobs) / len(logprobs) if logprobs else -float("inf")
