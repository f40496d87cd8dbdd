"""Bounds of the numbers of a request: the model's context and vocabulary, and its tenant's own.

Every refusal names the field as the client calls it. Pure; knows no backend.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from engine.protocol import GenerateRequest
from gateway.domain.errors import InvalidRequest
from gateway.limits.rules import Sizes
from gateway.pipeline.requests import EmbeddingBounds, EmbeddingRequest, TextRequest

MAX_LOGPROB_VALUES = 1 << 22
"""The most log-probabilities of one HTTP request, alternatives included.

More would be hundreds of megabytes of JSON.
"""


def completion_bound(context: int, sizes: Sizes, num_prompt_tokens: int, request: TextRequest, default: int) -> int:
    """Return the most tokens to generate, such that prompt and completion fit the context and the tenant's bounds.

    context: the tokens of the model's context. default: the most tokens where neither the request nor the adapter's
    owner sets a bound.

    Raises InvalidRequest: when the prompt, or the prompt with the wanted completion, is larger than these bounds allow.
    """
    check_prompt(sizes, num_prompt_tokens, request.names.this_prompt)
    left, min_tokens = context - num_prompt_tokens, request.sampling.min_tokens
    needed = 1 if request.max_tokens is None or request.clips_max_tokens else request.max_tokens
    if left < min(needed, 1):
        raise too_long(context, num_prompt_tokens, request.names.this_prompt)
    if left < needed:
        raise too_long(context, num_prompt_tokens, request.names.this_prompt, needed, request.names.max_tokens)
    allowed = left
    if sizes.completion is not None:
        allowed = min(allowed, sizes.completion)
    if sizes.total is not None:
        allowed = min(allowed, sizes.total - num_prompt_tokens)
    if needed > allowed:
        raise InvalidRequest(
            _longer_than(allowed, request, sizes), param=request.names.max_tokens, code="completion_too_long"
        )
    max_tokens = request.max_tokens
    if max_tokens is None:
        max_tokens = min(max(request.usual_max_tokens or default, min_tokens), allowed)
    elif request.clips_max_tokens:
        max_tokens = min(max_tokens, allowed)
    if min_tokens > max_tokens:
        raise InvalidRequest(
            f"'min_tokens' must be at most {max_tokens}, the most tokens this request may generate.",
            param="min_tokens",
            code="invalid_value",
        )
    return max_tokens


def _longer_than(allowed: int, request: TextRequest, sizes: Sizes) -> str:
    whose = "this project's completions" if sizes.total is None else "this project's requests"
    if request.max_tokens is None:
        return f"The prompt leaves no token for the completion: the size of {whose} is limited. Shorten the prompt."
    return f"'{request.names.max_tokens}' must be at most {allowed}: the size of {whose} is limited."


def check_prompt(sizes: Sizes, num_tokens: int, field: str) -> None:
    """Check the size of a prompt.

    sizes: the tenant's bounds. field: the client's name of the prompt.

    Raises InvalidRequest: for a prompt that is larger than its tenant's may be.
    """
    allowed = min((size for size in (sizes.prompt, sizes.total) if size is not None), default=num_tokens)
    if num_tokens > allowed:
        raise InvalidRequest(
            f"'{field}' has {num_tokens} tokens; a prompt of this project may have at most {allowed}.",
            param=field,
            code="prompt_too_long",
        )


def too_long(
    context: int,
    num_tokens: int,
    prompt_field: str,
    asked: int | None = None,
    asked_field: str | None = None,
    *,
    is_at_least: bool = False,
) -> InvalidRequest:
    """Return the error for a prompt of num_tokens tokens that is too long, alone or with the wanted completion.

    is_at_least: True: the prompt has at least num_tokens tokens, since it was not read to its end. context: the tokens
    of the model's context. asked, asked_field: the tokens that the request wants of the completion, and the client's
    name of that number; None where the prompt alone is too long.
    """
    count = f"at least {num_tokens}" if is_at_least else str(num_tokens)
    where = f"'{prompt_field}'" if prompt_field.endswith("]") else f"the {prompt_field}"
    more = f" and asks for {asked} more in the completion" if asked else ""
    return InvalidRequest(
        f"This model's maximum context length is {context} tokens. However, your request has {count} tokens in "
        f"{where}{more}.",
        param=asked_field or prompt_field,
        code="context_length_exceeded",
    )


def check_ids(field: str, token_ids: Collection[int], vocab_size: int) -> None:
    """Check that token ids are of the model's vocabulary.

    Raises InvalidRequest: when an id is not in the vocabulary; the error names the id and its place in the list.
    """
    if not token_ids or 0 <= min(token_ids) <= max(token_ids) < vocab_size:
        return
    for index, token_id in enumerate(token_ids):
        if not 0 <= token_id < vocab_size:
            raise InvalidRequest(
                f"Invalid token id {token_id} in '{field}': token ids must be from 0 to {vocab_size - 1}.",
                param=f"{field}[{index}]" if isinstance(token_ids, Sequence) else field,
                code="invalid_value",
            )


def check_at_most(field: str, value: int, bound: int) -> None:
    """Check that the number in a field is at most its bound.

    Raises InvalidRequest: when the number is larger than the bound.
    """
    if value > bound:
        raise InvalidRequest(f"'{field}' must be at most {bound} with this model.", param=field, code="invalid_value")


def check_dimensions(dimensions: int | None, size: int, sizes: tuple[int, ...]) -> None:
    """Check the size that a client wants of an embedding.

    size: the size of the model's embeddings.
    sizes: the sizes that the model was trained to have its embeddings shortened to; () for none.
    dimensions: None: the client wants the whole embedding.

    Raises InvalidRequest: for a size that would cut off a part of what the embedding says.
    """
    if dimensions is None or dimensions == size or dimensions in sizes:
        return
    if not sizes:
        allowed = (
            f"{size} or left out with this model: it was not trained to have its embeddings shortened (Matryoshka)"
        )
    elif len(sizes) == size:
        allowed = f"at most {size} with this model"
    else:
        allowed = f"one of {', '.join(map(str, sizes))} with this model"
    raise InvalidRequest(f"'dimensions' must be {allowed}.", param="dimensions", code="invalid_value")


def num_logprob_values(request: GenerateRequest) -> int:
    """Return the most log-probabilities that may have to be shown of a request's prompt and completions."""
    sampling, num_values = request.sampling, 0
    if sampling.num_logprobs is not None:
        num_values += sampling.max_tokens * (1 + sampling.num_logprobs)
    if sampling.num_prompt_logprobs is not None:
        num_values += len(request.prompt_token_ids) * (1 + sampling.num_prompt_logprobs)
    return num_values * request.n


def check_logprobs(num_values: int, field: str) -> None:
    """Check how many log-probabilities all prompts of an HTTP request ask for with this field.

    num_values: the log-probabilities of all prompts together.

    Raises InvalidRequest: when the log-probabilities are more than `MAX_LOGPROB_VALUES`.
    """
    if num_values > MAX_LOGPROB_VALUES:
        raise InvalidRequest(
            f"'{field}' asks for up to {num_values} log-probabilities; one request may ask for {MAX_LOGPROB_VALUES}. "
            "Ask for fewer tokens, choices, prompts or alternatives.",
            param=field,
            code="invalid_value",
        )


def check_numbers(asked: Sequence[EmbeddingRequest], size: int, bounds: EmbeddingBounds) -> None:
    """Check the total of numbers in the embeddings of one request. size: the size of the model's embeddings.

    Raises InvalidRequest: when the embeddings have more numbers than `bounds.max_numbers`.
    """
    num_numbers = sum(min(each.dimensions or size, size) for each in asked)
    if bounds.max_numbers is not None and num_numbers > bounds.max_numbers:
        raise InvalidRequest(
            f"The embeddings of these inputs have {num_numbers} numbers; a reply may have at most "
            f"{bounds.max_numbers}, unless 'encoding_format' is 'base64'. Send fewer inputs.",
            param=asked[0].names.prompt,
            code="invalid_value",
        )


def check_total(num_tokens: int, bounds: EmbeddingBounds, field: str) -> None:
    """Check the total of tokens in the texts of one request, so far or in all.

    Raises InvalidRequest: when the texts have more tokens than `bounds.max_tokens`.
    """
    if num_tokens > bounds.max_tokens:
        raise InvalidRequest(
            f"The inputs of one request may have at most {bounds.max_tokens} tokens in total. Send fewer inputs.",
            param=field,
            code="max_tokens_per_request",
        )
