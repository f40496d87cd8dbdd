"""Token ids to text as they come, ended by stop strings. Knows nothing of requests or of how ids are made."""

from __future__ import annotations

import msgspec
from tokenizers.decoders import DecodeStream

from gateway.text.tokenizer import Tokenizer


class TextDelta(msgspec.Struct, frozen=True):
    """Text that is safe to show. finished: a stop string was found, nothing follows.

    num_kept_tokens: completion tokens so far, or, once finished, up to and with the one that completed the stop string.
    """

    text: str
    finished: bool
    num_kept_tokens: int


class Detokenizer:
    """The text of one completion. All deltas together equal the one-shot decode, cut before the first stop string.

    A character that is split over tokens is shown once it is whole. Text that may be the beginning of a stop string
    is held back until that is decided. The first stop string to be complete wins; it is not looked for within the first
    `min_tokens` tokens.
    """

    def __init__(self, tokenizer: Tokenizer, stop: tuple[str, ...] = (), *, min_tokens: int = 0) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._stop = stop
        self._min_tokens = min_tokens
        self._token_ids: list[int] = []
        self._num_decoded_chars = 0
        self._undecided = False  # the decoder keeps tokens whose bytes are not a whole character yet
        self._held = ""
        self._finished = False

    @property
    def finished(self) -> bool:
        """Whether a stop string was found."""
        return self._finished

    @property
    def num_tokens(self) -> int:
        """Tokens taken so far; once finished, up to and with the one that completed the stop string."""
        return len(self._token_ids)

    @property
    def num_chars(self) -> int:
        """Characters decoded so far, those that are held back included."""
        return self._num_decoded_chars

    @property
    def is_holding(self) -> bool:
        """Whether some of what was pushed is not in the text yet."""
        return self._undecided or bool(self._held)

    def push(self, token_ids: list[int]) -> TextDelta:
        """Take the next ids; those after a found stop string are ignored."""
        shown = ""
        for token_id in token_ids:
            if self._finished:
                break
            shown += self._show(self._decode(token_id))
        return TextDelta(shown, self._finished, len(self._token_ids))

    def finish(self) -> TextDelta:
        """The end of the ids: what was held back. Bytes that never became a character end as U+FFFD."""
        shown = ""
        if not self._finished:
            if self._undecided:
                shown = self._show(self._tokenizer.decode(self._token_ids)[self._num_decoded_chars :])
            shown += self._held
            self._held = ""
        return TextDelta(shown, self._finished, len(self._token_ids))

    def _decode(self, token_id: int) -> str:
        self._token_ids.append(token_id)
        text = self._stream.step(self._tokenizer.backend, token_id)
        self._undecided = text is None
        text = text or ""
        self._num_decoded_chars += len(text)
        return text

    def _show(self, text: str) -> str:
        if not self._stop:
            return text
        held = self._held + text
        if len(self._token_ids) <= self._min_tokens:
            self._held = ""
            return held
        found = _first_complete(held, self._stop)
        if found is not None:
            self._finished = True
            self._held = ""
            return held[:found]
        cut = len(held) - _num_undecided_chars(held, self._stop)
        self._held = held[cut:]
        return held[:cut]


def _first_complete(text: str, stop: tuple[str, ...]) -> int | None:
    """Where the stop string begins that is complete first; of several that end together, the longest."""
    found = [(start + len(word), start) for word in stop if (start := text.find(word)) >= 0]
    return min(found)[1] if found else None


def _num_undecided_chars(text: str, stop: tuple[str, ...]) -> int:
    """Length of the longest end of text that is the beginning of a stop string."""
    longest = max(len(word) for word in stop) - 1
    for size in range(min(longest, len(text)), 0, -1):
        end = text[-size:]
        if any(word.startswith(end) for word in stop):
            return size
    return 0
