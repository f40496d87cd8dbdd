"""The text, calls and log-probabilities that a backend yields, made from the token ids of one request on an engine.

Knows neither the link to an engine nor how usage is recorded.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

from engine.protocol import Delta, Final, TokenLogprobs
from gateway.backends.generation import Generation, Item, Piece, PromptTokens
from gateway.backends.text.calling_choice import CallingChoice, calling_choices
from gateway.backends.text.choices import Choice, prompt_tokens, style_after
from gateway.domain.errors import BackendFailed
from gateway.text.tokenizer import Tokenizer

Deltas = AsyncGenerator[list[Delta] | Final]
StopAt = Callable[[str, int, int], Awaitable[None]]
"""A function that ends a choice whose text is complete, as `EngineBackend.stop_at`."""


async def items_of(
    deltas: Deltas, generation: Generation, tokenizer: Tokenizer, stop_at: StopAt
) -> AsyncGenerator[Item]:
    """Yield the pieces of a request's choices as they come, then its usage.

    The log-probabilities of the prompt come first where they were asked for. Closing the generator closes `deltas`.

    Raises BackendFailed: when the engine ends the request before its choices are complete.
    """
    request = generation.request
    choices = _choices(generation, tokenizer)
    waits_for_prompt = request.sampling.num_prompt_logprobs is not None
    pieces: list[Piece] = []
    try:
        async for new in deltas:
            if isinstance(new, Final):
                if pieces := pieces + _end(choices, new):
                    yield pieces
                yield new.usage
                return
            pieces += await _pieces(choices, new, stop_at)
            if waits_for_prompt and (prompt := _prompt_logprobs(new)) is not None:
                waits_for_prompt = False
                text = generation.prompt_text
                yield PromptTokens(await prompt_tokens(tokenizer, request.prompt_token_ids, prompt, text=text))
            if pieces and not waits_for_prompt:
                yield pieces
                pieces = []
    finally:
        await deltas.aclose()


def _choices(generation: Generation, tokenizer: Tokenizer) -> Sequence[Choice | CallingChoice]:
    request, stop = generation.request, generation.stop
    style = style_after(request.prompt_token_ids, tokenizer, generation.style)
    min_tokens = request.sampling.min_tokens
    grammar = request.sampling.grammar
    thinking = None if grammar is None else grammar.thinking
    if generation.tools is not None:
        return calling_choices(
            request.n, tokenizer, generation.tools, stop, min_tokens=min_tokens, style=style, thinking=thinking
        )
    return [
        Choice(index, tokenizer, stop, min_tokens=min_tokens, style=style, thinking=thinking)
        for index in range(request.n)
    ]


async def _pieces(choices: Sequence[Choice | CallingChoice], deltas: list[Delta], stop_at: StopAt) -> list[Piece]:
    pieces = []
    for delta in deltas:
        choice = choices[delta.index]
        piece = choice.push(delta)
        if piece is not None:
            pieces.append(piece)
            if choice.num_kept_tokens is not None:
                await stop_at(delta.request_id, delta.index, choice.num_kept_tokens)
    return pieces


def _prompt_logprobs(deltas: list[Delta]) -> list[TokenLogprobs | None] | None:
    return next((delta.prompt_logprobs for delta in deltas if delta.prompt_logprobs is not None), None)


def _end(choices: Sequence[Choice | CallingChoice], final: Final) -> list[Piece]:
    """Return the last pieces of the choices that no delta has ended.

    Raises BackendFailed: when the engine did not complete the choices.
    """
    unended = [choice for choice in choices if choice.finish_reason is None]
    if unended and final.finish_reason not in ("stop", "length"):
        raise BackendFailed("The engine ended the request before the reply was complete. Send the request again.")
    return [choice.end(final.finish_reason) for choice in unended]
