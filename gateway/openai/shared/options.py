"""Converts the options that completions of every API share from wire structs to the pipeline's request."""

from __future__ import annotations

from engine.protocol import Grammar, SamplingParams
from gateway.domain.adapters.defaults import SAMPLING
from gateway.domain.errors import InvalidRequest
from gateway.openai.shared.common_wire import CommonFields, SamplingFields
from gateway.text.options import TextStyle


def sampling_params(
    request: SamplingFields,
    *,
    num_logprobs: int | None,
    num_prompt_logprobs: int | None = None,
    grammar: Grammar | None = None,
) -> SamplingParams:
    """Return the sampling parameters of a request. Fields that are null or absent have their defaults.

    max_tokens is 0: the pipeline sets it.

    num_logprobs, num_prompt_logprobs: the number of most likely tokens for each token of the completion and of the
    prompt; None: no log-probabilities.

    Raises InvalidRequest: when both a grammar and `allowed_token_ids` bound the tokens.
    """
    if grammar is not None and request.allowed_token_ids:
        raise InvalidRequest(
            "'allowed_token_ids' cannot be used together with a response format or structured outputs.",
            param="allowed_token_ids",
            code="invalid_parameter_combination",
        )
    return SamplingParams(
        max_tokens=0,
        temperature=1.0 if request.temperature is None else request.temperature,
        top_p=1.0 if request.top_p is None else request.top_p,
        top_k=max(0, request.top_k or 0),
        min_p=request.min_p or 0.0,
        seed=request.seed,
        min_tokens=request.min_tokens or 0,
        stop_token_ids=tuple(request.stop_token_ids or ()),
        ignore_eos=bool(request.ignore_eos),
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        repetition_penalty=1.0 if request.repetition_penalty is None else request.repetition_penalty,
        logit_bias=request.logit_bias or {},
        allowed_token_ids=tuple(request.allowed_token_ids or ()),
        num_logprobs=num_logprobs,
        num_prompt_logprobs=num_prompt_logprobs,
        grammar=grammar,
    )


def given_options(request: SamplingFields) -> frozenset[str]:
    """Return the names of the sampling options that the client set; a zero counts as set, null does not."""
    return frozenset(name for name in SAMPLING if getattr(request, name) is not None)


def stop_strings(request: SamplingFields) -> tuple[str, ...]:
    """Return the stop strings of a request."""
    return (request.stop,) if isinstance(request.stop, str) else tuple(request.stop or ())


def text_style(request: CommonFields, *, follows_prompt: bool) -> TextStyle:
    """Return the rules for turning tokens into text. follows_prompt: whether the answer continues the prompt."""
    return TextStyle(
        include_stop=bool(request.include_stop_str_in_output),
        with_special=request.skip_special_tokens is False,
        with_token_ids=bool(request.return_token_ids),
        follows_prompt=follows_prompt,
    )


def refuse_beside_tools(request: SamplingFields) -> None:
    """Refuse fields that limit which tokens are generated, together with tools.

    Raises InvalidRequest: when the request has `allowed_token_ids`.
    """
    if request.allowed_token_ids:
        raise InvalidRequest(
            "'allowed_token_ids' cannot be used together with tools.",
            param="allowed_token_ids",
            code="invalid_parameter_combination",
        )


def check_prompt_logprobs(request: CommonFields, *, shown_otherwise: bool = False) -> None:
    """Check that a reply has a place for the prompt's log-probabilities.

    shown_otherwise: True: `echo` and `logprobs` of the request already show them, in OpenAI's form.

    Raises InvalidRequest: when the reply has no place for them.
    """
    if request.prompt_logprobs is None:
        return
    if request.stream or shown_otherwise:
        other = "'stream'" if request.stream else "'echo' and 'logprobs'"
        raise InvalidRequest(
            f"'prompt_logprobs' cannot be used together with {other}.",
            param="prompt_logprobs",
            code="invalid_parameter_combination",
        )


def include_usage(request: CommonFields) -> bool:
    """Tell whether the stream's last chunk includes the usage.

    Raises InvalidRequest: when the request has stream options and is not streamed.
    """
    options = request.stream_options
    if options is None:
        return False
    if not request.stream:
        raise InvalidRequest(
            "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
            param="stream_options",
            code="invalid_parameter_combination",
        )
    return bool(options.include_usage)


def continuous_usage(request: CommonFields) -> bool:
    """Tell whether every chunk of the stream includes the usage so far.

    vLLM has this field. It may be set with or without `include_usage`, which asks for the usage in the last chunk.
    """
    return request.stream_options is not None and bool(request.stream_options.continuous_usage_stats)


def include_obfuscation(request: CommonFields) -> bool:
    """Tell whether events are padded.

    OpenAI's default is yes; here it is no, since most clients are on the operator's own network, and padding adds a
    sixth to what a stream sends.
    """
    return request.stream_options is not None and bool(request.stream_options.include_obfuscation)
