"""The events of streamed text completions: the choices of every prompt in one stream."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec

from engine.protocol import Usage
from gateway.backends.generation import Item, Piece
from gateway.http.sse import DONE, TextEvent, event
from gateway.openai.completions.wire import CompletionChoice, TextCompletion
from gateway.openai.shared.logprobs import TextLogprobs, TokenBytes, text_logprobs, whole_text_logprobs
from gateway.openai.shared.usage import UsageSoFar, usage_of_chunks, usage_out


class ShownPrompt(msgspec.Struct, frozen=True):
    """A prompt as the reply shows it."""

    echo: str
    """The prompt's text; "" where it is not to be shown."""
    token_ids: list[int]


class CompletionEvents:
    """The encoder of one reply's chunks.

    chunk: the fields that all chunks have in common. to_bytes: None where no log-probabilities are to be shown.
    """

    def __init__(
        self,
        chunk: partial[TextCompletion],
        num_choices: int,
        prompts: Sequence[ShownPrompt],
        *,
        with_usage: bool,
        with_token_ids: bool,
        to_bytes: TokenBytes | None,
        so_far: UsageSoFar | None = None,
    ) -> None:
        """Prepare the events of a stream.

        so_far: counts the usage, where every chunk is to show it. with_usage: True: the last chunk has the usage.
        with_token_ids: True: chunks show token ids.
        """
        self._chunk = partial(chunk, usage=usage_of_chunks(so_far, with_usage=with_usage))
        self._so_far = so_far
        self._num_choices = num_choices
        self._shown = prompts
        self._with_token_ids = with_token_ids
        self._with_usage = with_usage
        self._to_bytes = to_bytes
        self._text_events: dict[int, TextEvent] = {}
        self._prompts: dict[int, TextLogprobs] = {}
        self._usages: list[Usage] = []

    @property
    def empty(self) -> bytes:
        """An event without text, which serves as the unit of padding."""
        return self._event(0, "")

    async def encode(self, item: tuple[int, Item]) -> bytes:
        """Return the events of an item: echoed prompts, then text as it arrives, and each choice's finish reason.

        item: the number of its prompt, and the item. Pieces that came together are one write.
        """
        prompt, new = item
        if isinstance(new, list):
            return b"".join(self._piece(prompt, piece) for piece in new)
        if isinstance(new, Usage):
            self._usages.append(new)
        elif self._to_bytes is not None:
            self._prompts[prompt] = await whole_text_logprobs(new.tokens, self._to_bytes)
        return b""

    def end(self) -> bytes:
        """Return the event with the usage of all prompts, if it was asked for, and the event `[DONE]`."""
        if not self._with_usage:
            return DONE
        return event(self._chunk(choices=[], usage=usage_out(self._usages))) + DONE

    def _piece(self, prompt: int, piece: Piece) -> bytes:
        index, data = prompt * self._num_choices + piece.index, b""
        if index not in self._text_events:
            self._text_events[index] = TextEvent(self._chunk(choices=[CompletionChoice(index, "")]), "text")
            data = self._prompt(prompt, index)
        if self._so_far is not None:
            self._chunk = partial(self._chunk, usage=self._so_far.add(index, piece, prompt=prompt))
        if self._to_bytes is not None and (piece.tokens or piece.token_ids):
            logprobs = text_logprobs(piece.tokens, self._to_bytes, len(self._shown[prompt].echo))
            data += self._event(index, piece.text, logprobs=logprobs, token_ids=piece.token_ids)
        elif piece.token_ids:
            data += self._event(index, piece.text, token_ids=piece.token_ids)
        elif piece.text and self._so_far is not None:
            data += self._event(index, piece.text)
        elif piece.text:
            data += self._text_events[index](piece.text)
        if piece.finish_reason is not None:
            data += self._event(index, "", piece.finish_reason)
        return data

    def _prompt(self, prompt: int, index: int) -> bytes:
        """Return the event that shows the prompt before the text of a choice; b"" where nothing of it is shown."""
        shown = self._shown[prompt]
        if not shown.echo and prompt not in self._prompts and not self._with_token_ids:
            return b""  # a prompt of special tokens alone has no text, but has log-probabilities
        choice = CompletionChoice(index, shown.echo, None, self._prompts.get(prompt))
        if self._with_token_ids:
            choice = msgspec.structs.replace(choice, prompt_token_ids=shown.token_ids, token_ids=[])
        return event(self._chunk(choices=[choice]))

    def _event(
        self,
        index: int,
        text: str,
        finish_reason: str | None = None,
        logprobs: TextLogprobs | None = None,
        token_ids: Sequence[int] = (),
    ) -> bytes:
        choice = CompletionChoice(index, text, finish_reason, logprobs)
        if self._with_token_ids:
            choice = msgspec.structs.replace(choice, token_ids=list(token_ids))
        return event(self._chunk(choices=[choice]))
