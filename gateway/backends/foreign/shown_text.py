"""Turns the parts of a server's reply into what readers get: pieces of text, or token ids that become text later.

Text is held back and cut where a stop string may begin.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from engine.protocol import Delta, Final, Usage
from gateway.backends.foreign.attempt import Attempt
from gateway.backends.foreign.reply import Part
from gateway.backends.generation import Generation, Item, Piece
from gateway.text.stop_strings import StopStrings

T_co = TypeVar("T_co", covariant=True)


class Shown(Protocol[T_co]):
    """The form in which a reply is given to its reader."""

    def parts(self, attempt: Attempt, parts: list[Part]) -> T_co | None:
        """Return an item for the client from parts of the reply; None if they show nothing yet."""

    def end(self, usage: Usage) -> T_co:
        """Return the item that ends the reply."""


class ShownIds:
    """A reply of token ids, given as deltas like those of our own engine."""

    def __init__(self, request_id: str) -> None:
        self._request_id = request_id

    def parts(self, attempt: Attempt, parts: list[Part]) -> list[Delta] | Final:
        """Return a delta for each part, with its token ids and the tokens of its choice so far."""
        return [
            Delta(
                self._request_id,
                part.token_ids,
                attempt.count(part.index),
                part.index,
                part.logprobs,
                part.finish_reason,
            )
            for part in parts
        ]

    def end(self, usage: Usage) -> list[Delta] | Final:
        """Return the final with the usage of all choices, as our own engine ends a reply."""
        return Final(self._request_id, "stop", usage)


class ShownText:
    """A reply of text, given as pieces; texts of one choice that came at once are one piece."""

    def __init__(self, generation: Generation) -> None:
        self._choices = [_Choice(index, generation.stop) for index in range(generation.request.n)]

    def parts(self, attempt: Attempt, parts: list[Part]) -> Item | None:
        """Return the text that no stop string holds back, and note the length of a choice that one has ended."""
        prompt_tokens = attempt.billed_prompt_tokens
        if len(parts) > 1:
            parts = _joined(parts)
        pieces = []
        for part in parts:
            index = part.index
            choice = self._choices[index]
            piece = choice.push(part, attempt.count(index), prompt_tokens)
            if piece is not None:
                pieces.append(piece)
                if choice.is_stopped:
                    attempt.stopped_at[index] = attempt.count(index)
        return pieces or None

    def end(self, usage: Usage) -> Item:
        """Return the usage, which ends a reply of text."""
        return usage


class _Choice:
    """One completion on its way to its client.

    The server was asked to stop at stop strings too; the completion of a server that does not is cut here.
    """

    def __init__(self, index: int, stop: tuple[str, ...]) -> None:
        self.is_stopped = False
        """True once a stop string has ended the choice here."""
        self._index = index
        self._stop = StopStrings(stop) if stop else None
        self._has_ended = False
        self._has_answer = False
        """True once text or a call has begun."""

    def push(self, part: Part, num_tokens: int, prompt_tokens: int | None) -> Piece | None:
        """Take a part, and return the piece that it adds; None where nothing is to be shown yet.

        num_tokens: the tokens of the choice so far.
        prompt_tokens: the tokens of the prompt, if the server has told them.
        """
        if self._has_ended:
            return None
        text, reason, stop = part.text, part.finish_reason, self._stop
        # Later reasoning is left out, as that of our own engine is: the call may go on, and so may the text.
        reasoning = "" if self._has_answer else part.reasoning
        self._has_answer = self._has_answer or bool(part.calls or part.text.strip())
        if stop is not None:
            text = stop.push(text) if text else ""
            if stop.found:
                self.is_stopped = self._has_ended = True
                return Piece(
                    self._index,
                    text,
                    finish_reason="stop",
                    num_tokens=num_tokens,
                    prompt_tokens=prompt_tokens,
                    stop_string=stop.matched,
                    reasoning=reasoning,
                )
        if reason is not None:
            self._has_ended = True
            if stop is not None:
                text += stop.finish()
        elif not (text or part.calls or reasoning):
            return None
        return Piece(self._index, text, [], reason, part.calls, [], num_tokens, prompt_tokens, reasoning=reasoning)


def _joined(parts: list[Part]) -> list[Part]:
    """Return parts; parts that follow each other in one choice and bring nothing but text are joined.

    The last of the joined parts may end the choice.
    """
    found: list[Part] = []
    texts, reasoning = list[str](), list[str]()
    for part, following in zip(parts, [*parts[1:], None], strict=True):
        texts.append(part.text)
        reasoning.append(part.reasoning)
        if (
            following is not None
            and following.index == part.index
            and not (part.calls or part.finish_reason or following.calls)
            and not (following.reasoning and any(texts))
        ):
            continue
        found.append(Part(part.index, "".join(texts), "".join(reasoning), part.calls, finish_reason=part.finish_reason))
        texts.clear()
        reasoning.clear()
    return found
