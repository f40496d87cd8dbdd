"""`truncation: auto`: the oldest turns of a conversation are left out until the rest fits the model's context."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.backends.base import Message
from gateway.domain.errors import InvalidRequest
from gateway.openai.responses.tools import ResponseTools
from gateway.pipeline.context import RequestContext
from gateway.pipeline.pipeline import Pipeline
from gateway.pipeline.requests import Conversation
from gateway.text.options import Rendering

OUTPUT_TOKENS = 16
"""The tokens for which there must be room beside the prompt where the request does not say how many it wants."""


def without_oldest(messages: Sequence[Message], num_turns: int) -> list[Message]:
    """Return a conversation without its oldest turns. System messages stay; a turn begins with what the user says, so
    that calls and their results go together."""
    starts = turn_starts(messages)
    if not num_turns or not starts:
        return list(messages)
    end = starts[num_turns]
    return [message for place, message in enumerate(messages) if place >= end or message["role"] == "system"]


def turn_starts(messages: Sequence[Message]) -> list[int]:
    """Return the places at which turns begin: of the first message that is not the system's, and of each of the
    user's."""
    first = next((place for place, message in enumerate(messages) if message["role"] != "system"), len(messages))
    later = [place for place in range(first + 1, len(messages)) if messages[place]["role"] == "user"]
    return [first, *later] if first < len(messages) else []


async def truncated(
    pipeline: Pipeline,
    context: RequestContext,
    messages: Sequence[Message],
    tools: ResponseTools,
    rendering: Rendering,
    max_output_tokens: int | None,
) -> list[Message]:
    """Return a conversation without as many of its oldest turns as it takes to fit. The last turn stays: where that
    alone is too long, the request will be refused.

    Raises ModelNotFound: when the caller may use no such model.
    Raises InvalidRequest: when the chat template refuses the messages, or the model's tokens are not known here.
    """

    async def fits(num_turns: int) -> bool:
        kept = Conversation(without_oldest(messages, num_turns), tools.use, rendering)
        try:
            num_tokens, most = await pipeline.tokens.counted(context, kept, "input")
        except InvalidRequest as error:
            if error.param != "model":
                raise
            raise InvalidRequest(
                f"{error} So nothing can be left out to fit.", param="truncation", code=error.code
            ) from None
        return num_tokens + (max_output_tokens or OUTPUT_TOKENS) <= most

    least, most = 1, max(0, len(turn_starts(messages)) - 1)
    if not most or await fits(0):
        return list(messages)
    while least < most:  # the fewest turns that have to go lie between them
        middle = (least + most) // 2
        if await fits(middle):
            most = middle
        else:
            least = middle + 1
    return without_oldest(messages, least)
