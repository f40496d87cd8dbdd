"""The options that chat and text completions share, from wire structs to the pipeline's request."""

from __future__ import annotations

from gateway.api.chat_wire import ChatCompletionRequest
from gateway.api.completions_wire import CompletionRequest
from gateway.errors import InvalidRequest
from gateway.pipeline import Conversation, TextRequest


def text_request(
    request: ChatCompletionRequest | CompletionRequest,
    *,
    request_id: str,
    endpoint: str,
    prompt: Conversation | str | list[int],
    max_tokens: int | None,
) -> TextRequest:
    """Null and absent mean the default."""
    stop = (request.stop,) if isinstance(request.stop, str) else tuple(request.stop or ())
    modern = isinstance(request, ChatCompletionRequest) and request.max_completion_tokens is not None
    return TextRequest(
        request_id=request_id,
        endpoint=endpoint,
        model=request.model,
        prompt=prompt,
        stream=bool(request.stream),
        max_tokens=max_tokens,
        max_tokens_field="max_completion_tokens" if modern else "max_tokens",
        min_tokens=request.min_tokens or 0,
        temperature=1.0 if request.temperature is None else request.temperature,
        top_p=1.0 if request.top_p is None else request.top_p,
        top_k=max(0, request.top_k or 0),
        seed=request.seed,
        stop=stop,
        stop_token_ids=tuple(request.stop_token_ids or ()),
        ignore_eos=bool(request.ignore_eos),
    )


def include_usage(request: ChatCompletionRequest | CompletionRequest) -> bool:
    """Whether the stream's last chunk brings the usage. Raises InvalidRequest for options that cannot be honoured."""
    options = request.stream_options
    if options is None:
        return False
    if not request.stream:
        raise InvalidRequest(
            "The 'stream_options' parameter is only allowed when 'stream' is enabled.", param="stream_options"
        )
    if options.include_obfuscation:
        raise InvalidRequest(
            "Stream obfuscation is not supported.",
            param="stream_options.include_obfuscation",
            code="unsupported_value",
        )
    return bool(options.include_usage)
