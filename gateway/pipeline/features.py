"""Refuse fields that the driver of a pool's replicas cannot serve, by the client's names. Pure; knows no driver."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.backends.base import ALL_FEATURES, Feature
from gateway.domain.errors import InvalidRequest
from gateway.pipeline.requests import Conversation, TextRequest
from gateway.text.options import TextStyle


def check_features(request: TextRequest, features: frozenset[Feature]) -> None:
    """Check that a backend with these features can do all that a request asks for: nothing is left out in silence.

    Raises InvalidRequest: when a field asks for more; the error names the first one.
    """
    if features == ALL_FEATURES:
        return
    for feature, field in _needed_features(request):
        if feature not in features:
            raise InvalidRequest(
                f"'{field}' is not supported with this model: the server that runs the model cannot do it.",
                param=field,
                code="unsupported_parameter",
            )


def _needed_features(request: TextRequest) -> Iterator[tuple[Feature, str]]:
    """Yield the features that a request needs beyond those of every backend, each with the field that needs it."""
    sampling, names = request.sampling, request.names
    if isinstance(request.prompt, list):
        yield "token_ids", names.prompt
    if isinstance(request.prompt, Conversation):
        yield from _asked_of_template(request.prompt)
    if request.max_prompt_tokens is not None:
        yield "token_ids", "truncate_prompt_tokens"
    if request.style.with_token_ids:
        yield "returned_ids", "return_token_ids"
    if sampling.stop_token_ids:
        yield "stop_token_ids", "stop_token_ids"
    if sampling.allowed_token_ids:
        yield "allowed_token_ids", "allowed_token_ids"
    if sampling.logit_bias:
        yield "logit_bias", "logit_bias"
    if sampling.num_logprobs is not None:
        yield "logprobs", names.logprobs
    if sampling.num_prompt_logprobs is not None or request.max_tokens == 0:
        yield "prompt_logprobs", names.logprobs if request.max_tokens else names.max_tokens
    if sampling.grammar is not None:
        is_json = sampling.grammar.kind in ("json_schema", "json_object")
        yield "json_schema" if is_json else "grammar", names.grammar or "response_format"
    yield from _asked_of_style(request.style)
    if sampling.top_k not in (0, -1):
        yield "top_k", "top_k"
    if sampling.min_p:
        yield "min_p", "min_p"
    if sampling.repetition_penalty != 1.0:
        yield "repetition_penalty", "repetition_penalty"
    if sampling.min_tokens:
        yield "min_tokens", "min_tokens"
    if sampling.ignore_eos:
        yield "ignore_eos", "ignore_eos"
    if sampling.seed is not None:
        yield "seed", "seed"


def _asked_of_template(conversation: Conversation) -> Iterator[tuple[Feature, str]]:
    rendering = conversation.rendering
    if conversation.tools is not None:
        yield "tools", "tools"
        for tool in conversation.tools.callable_tools:
            if tool.input_lark:  # no server that renders the conversation itself is told of it
                yield "token_ids", tool.label
    if rendering.continue_final_message:
        yield "continue_message", "continue_final_message"
    if not (rendering.add_generation_prompt or rendering.continue_final_message):
        yield "continue_message", "add_generation_prompt"
    if rendering.add_special_tokens:
        yield "template_arguments", "add_special_tokens"
    for argument in rendering.arguments:
        if not (argument.is_usual or argument.is_optional):
            yield "template_arguments", argument.field


def _asked_of_style(style: TextStyle) -> Iterator[tuple[Feature, str]]:
    if style.include_stop:
        yield "text_style", "include_stop_str_in_output"
    if style.with_special:
        yield "text_style", "skip_special_tokens"
