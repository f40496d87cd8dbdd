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
from msgspec import UNSET

from gateway.content.idempotency import Idempotency
from gateway.domain.errors import InvalidRequest
from gateway.http.bodies import Bodies, decoded
from gateway.http.caller import Caller
from gateway.http.disconnect import unless_disconnected
from gateway.http.fields import refuse_unsupported
from gateway.http.request.call import call_of, note_user
from gateway.http.shape import shape
from gateway.http.sse import open_stream
from gateway.openai.completions.prompts import place_of, prompts
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
from gateway.openai.shared.context import attach_run, context_of, show_cost
from gateway.openai.shared.grammar import requested_grammar
from gateway.openai.shared.idempotent import idempotent
from gateway.openai.shared.logprobs import TokenBytes, prompt_logprobs, token_namer, whole_text_logprobs
from gateway.openai.shared.obfuscation import Obfuscated
from gateway.openai.shared.options import (
    check_prompt_logprobs,
    continuous_usage,
    given_options,
    include_obfuscation,
    include_usage,
    sampling_params,
    stop_strings,
    text_style,
)
from gateway.openai.shared.replies import json_response, reply_id
from gateway.openai.shared.slices import encode_parts
from gateway.openai.shared.units import ExperimentFields
from gateway.openai.shared.usage import UsageSoFar, usage_out
from gateway.pipeline.collected import Answer, Collected
from gateway.pipeline.pipeline import Pipeline
from gateway.pipeline.requests import FieldNames, TextRequest
from gateway.pipeline.run import Run

ENDPOINT = "/v1/completions"

SHAPE = shape(
    body=CompletionRequest, reply=TextCompletion, event=TextCompletion, is_billed=True, example=examples.COMPLETION
)
_DECODER = msgspec.json.Decoder(CompletionRequest)


def completions(pipeline: Pipeline, bodies: Bodies, idempotency: Idempotency) -> HTTPRouteHandler:
    """Return the handler of POST /v1/completions."""

    @post("/completions", status_code=200, opt=SHAPE)
    @idempotent(idempotency, bodies)
    async def create_completion(request: Request[Any, Any, Any], caller: Caller) -> ASGIResponse:
        """Continue one text or several, whole or as a stream."""
        call = call_of(request.scope)
        wire = await decoded(_DECODER, await bodies.read(request, caller))
        fields = ExperimentFields(request.scope["headers"], caller, wire)
        context = context_of(call, caller, wire.model, ENDPOINT, stream=wire.stream, experiment_fields=fields)
        note_user(call, wire.user)
        with_usage = include_usage(wire)
        _check(wire)
        given = prompts(wire.prompt, "prompt", MAX_PROMPTS)
        asked = [_text_request(wire, each, place_of(wire.prompt, index)) for index, each in enumerate(given)]
        run = await pipeline.complete(context, asked)
        attach_run(call, run)
        shown = [
            ShownPrompt(_echo(run, index) if wire.echo else "", token_ids)
            for index, token_ids in enumerate(run.prompts)
        ]
        reply = partial(
            TextCompletion,
            id=reply_id("cmpl", run.vote_id),
            created=int(time.time()),
            model=wire.model,
            system_fingerprint=run.fingerprint,
        )
        if wire.stream:
            events = CompletionEvents(
                reply,
                wire.n or 1,
                shown,
                with_usage=with_usage,
                with_token_ids=bool(wire.return_token_ids),
                to_bytes=None
                if wire.logprobs is None
                else token_namer(run.token_bytes, by_id=wire.return_tokens_as_token_ids),
                so_far=UsageSoFar(run.prompt_tokens) if continuous_usage(wire) else None,
            )
            encoder = Obfuscated(events, events.empty) if include_obfuscation(wire) else events
            return await open_stream(request, run.merged(), encoder)
        collected = await unless_disconnected(call, run.collect())
        show_cost(call, run, [each.usage for each in collected])
        choices = await _choices(wire, collected, shown, run.token_bytes)
        return json_response(reply(choices=choices, usage=usage_out([each.usage for each in collected])))

    return create_completion


def _check(wire: CompletionRequest) -> None:
    """Check fields that are wrong only in combination.

    Raises InvalidRequest: when `best_of`, `n`, `stream`, `echo`, `logprobs` and `max_tokens` contradict each other.
    """
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
        raise InvalidRequest("'max_tokens' may be 0 only if 'echo' is true.", param="max_tokens", code="invalid_value")
    if wire.max_tokens == 0 and num_candidates > 1:
        raise InvalidRequest(
            "'max_tokens' must be above 0 when several choices are asked for.", param="max_tokens", code="invalid_value"
        )


def _num_choices(wire: CompletionRequest) -> tuple[int, int]:
    """Return the number of choices that are shown for each prompt, and the number that are generated.

    The likeliest of the generated choices are shown.
    """
    num_choices = wire.n or 1
    return num_choices, wire.best_of or num_choices


def _text_request(wire: CompletionRequest, prompt: str | list[int], place: int | None) -> TextRequest:
    """Return the pipeline's request for one prompt.

    place: the prompt's index in the list that the field `prompt` holds; None: the field holds this prompt alone.
    """
    grammar, grammar_field = requested_grammar(None, wire.structured_outputs)
    num_choices, num_candidates = _num_choices(wire)
    chooses = num_candidates > num_choices  # by log-probabilities, whether they are shown or not
    num_prompt_logprobs = wire.logprobs if wire.echo else None
    if wire.prompt_logprobs is not None:
        num_prompt_logprobs = wire.prompt_logprobs
    elif wire.max_tokens == 0:  # the engine is asked for something at least
        num_prompt_logprobs = wire.logprobs or 0
    return TextRequest(
        prompt=prompt,
        names=FieldNames(
            prompt="prompt",
            index=place,
            n="best_of" if chooses else "n",
            grammar=grammar_field,
            logprobs=_logprobs_field(wire),
        ),
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
        keeps_first=wire.truncation_side == "right",
    )


def _echo(run: Run, index: int) -> str:
    """Return the text of a prompt that is shown before its choices (`echo`).

    A prompt is shown as the client wrote it, or else as the text of its tokens, special ones included.
    """
    text = run.prompt_texts[index]
    return run.decode(run.prompts[index]) if text is None else text


def _logprobs_field(wire: CompletionRequest) -> str:
    """Return the name of the field for which log-probabilities are needed: those to show, or to choose by."""
    if wire.logprobs is not None:
        return "logprobs"
    return "best_of" if wire.prompt_logprobs is None else "prompt_logprobs"


async def _choices(
    wire: CompletionRequest, collected: Sequence[Collected], prompts: Sequence[ShownPrompt], to_bytes: TokenBytes
) -> list[CompletionChoice]:
    """Return each prompt's choices: the likeliest of its candidates, where it has more than are to be shown.

    Each choice is encoded as JSON already, so that encoding the reply only copies bytes (`encode_parts`).
    """
    choices: list[CompletionChoice] = []
    names = token_namer(to_bytes, by_id=wire.return_tokens_as_token_ids)
    for each, prompt in zip(collected, prompts, strict=True):
        answers, num_choices = each.answers, wire.n or 1
        if len(answers) > num_choices:
            answers = sorted(answers, key=_mean_logprob, reverse=True)[:num_choices]
        of_prompt = UNSET if wire.prompt_logprobs is None else await prompt_logprobs(each.prompt_tokens, to_bytes)
        echoed_tokens = each.prompt_tokens if wire.echo and wire.logprobs is not None else []
        echoed = await whole_text_logprobs(echoed_tokens, names)
        for answer in answers:
            logprobs = None
            if wire.logprobs is not None:
                logprobs = echoed.followed_by(await whole_text_logprobs(answer.tokens, names, len(prompt.echo)))
            choice = CompletionChoice(
                len(choices),
                prompt.echo + answer.text,
                answer.finish_reason,
                logprobs,
                of_prompt,
                prompt.token_ids if wire.return_token_ids else UNSET,
                answer.token_ids if wire.return_token_ids else UNSET,
            )
            choices += await encode_parts([choice])
    return choices


def _mean_logprob(answer: Answer) -> float:
    """Return the mean log-probability per token of a choice; a choice without any ranks last."""
    logprobs = [token.logprobs.logprob for token in answer.tokens if token.logprobs is not None]
    return sum(logprobs) / len(logprobs) if logprobs else -float("inf")
