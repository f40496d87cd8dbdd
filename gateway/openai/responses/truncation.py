"""`truncation: auto`: the oldest turns of a conversation are left out until the rest fits the model's context."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from gateway.backends.base import Message
from gateway.domain.errors import InvalidRequest
from gateway.openai.responses.tools import ResponseTools
from gateway.pipeline.context import RequestContext
from gateway.pipeline.pipeline import Pipeline
from gateway.pipeline.requests import Conversation
from gateway.text.options import Rendering

BYTES_PER_MESSAGE = 16
"""The number of bytes by which a message counts for more than its text: a template also writes its role."""

GUESSES, CLOSE = 4, 200
"""GUESSES: the most times that the number of turns is guessed from the texts' lengths. CLOSE: guessing ends once a
count differs from the allowed tokens by less than one part in so many. The search then goes on in doubling steps, since
lengths may mislead."""

OUTPUT_TOKENS = 16
"""The number of tokens to keep free for the answer where the request does not bound it."""


def without_oldest(messages: Sequence[Message], num_turns: int) -> list[Message]:
    """Return a conversation without its oldest turns.

    System messages stay; a turn begins with what the user says, so that calls and their results go together.
    """
    starts = turn_starts(messages)
    if not num_turns or not starts:
        return list(messages)
    end = starts[num_turns]
    return [message for place, message in enumerate(messages) if place >= end or message["role"] == "system"]


def turn_starts(messages: Sequence[Message]) -> list[int]:
    """Return the indices of the messages with which turns begin.

    A turn begins at the first message that is not the system's, and at each of the user's.
    """
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
    charge: Callable[[int], None],
) -> list[Message]:
    """Return a conversation without its oldest turns, as few as have to go for the rest to fit.

    The last turn stays: if the last turn alone is too long, the pipeline refuses the request later.

    max_output_tokens: the tokens that the reply needs; None: the request asks for no number. charge: called with the
    size in bytes of each shortened conversation that is tokenized to try whether it fits, so that the project pays for
    this work as if it had sent each of them.

    Raises ModelNotFound: when the caller may use no such model.
    """
    num_tool_bytes = len(msgspec.json.encode(tools.use))
    sizes = [num_tool_bytes + each for each in _sizes(messages)]

    async def room(num_turns: int) -> int:
        """Return the tokens that are left in the context without the num_turns oldest turns; negative: too many."""
        shortened = Conversation(without_oldest(messages, num_turns), tools.use, rendering)
        try:
            num_tokens, most = await pipeline.tokens.count_and_limit(context, shortened, "input")
        except InvalidRequest as error:
            if error.param != "model":
                raise
            raise InvalidRequest(
                f"{error} So nothing can be left out to fit.", param="truncation", code=error.code
            ) from None
        counts.append((sizes[num_turns], num_tokens))
        return most - num_tokens - (max_output_tokens or OUTPUT_TOKENS)

    counts: list[tuple[int, int]] = []
    least, most = 1, max(0, len(sizes) - 1)
    if not most or (left := await room(0)) >= 0:
        return list(messages)
    allowed = counts[0][1] + left
    step = 1
    while least < most:  # the fewest turns that have to go lie between them
        if len(counts) <= GUESSES and abs(left) > allowed // CLOSE:
            size, num_tokens = counts[-1]
            wanted = size * allowed // max(1, num_tokens)
            tried = next((turns for turns in range(least, most) if sizes[turns] <= wanted), most - 1)
        else:  # near the last guess, in steps that double
            away = min(step, (most - least + 1) // 2)
            tried = most - away if left >= 0 else least + away - 1
            step *= 2
        charge(sizes[tried])
        left = await room(tried)
        if left >= 0:
            most = tried
        else:
            least = tried + 1
    return without_oldest(messages, least)


def _sizes(messages: Sequence[Message]) -> list[int]:
    """Return a conversation's sizes in bytes: with all turns, without the oldest one, and so on."""
    starts = set(turn_starts(messages))
    total = sum(_size(message) for message in messages if message["role"] == "system")
    sizes = []
    for place in range(len(messages) - 1, -1, -1):
        if messages[place]["role"] != "system":
            total += _size(messages[place])
        if place in starts:
            sizes.append(total)
    return sizes[::-1]


def _size(message: Message) -> int:
    text = f"{message['content']}{message.get('tool_calls', '')}"
    return BYTES_PER_MESSAGE + len(text.encode("utf-8", "surrogatepass"))
