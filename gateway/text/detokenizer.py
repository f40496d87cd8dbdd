"""Token ids to text as they come, ended by stop strings. Knows nothing of requests or of how ids are made.

Tokens are bytes, and text is what these are in UTF-8, with U+FFFD for each maximal part that begins no character
(Unicode 16, 3.9, "U+FFFD Substitution of Maximal Subparts"). Later tokens never change text that was shown
already. Byte-level tokenizers decode the same way. Tokenizers with byte tokens give the same text for valid UTF-8
alone: for one wrong byte they replace the whole run of byte tokens around it, even characters that a client has seen.
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Collection, Sequence

from engine.protocol import Thinking, ThinkingPlace
from gateway.text.channels import ChannelText
from gateway.text.stop_strings import StopStrings
from gateway.text.thinking import with_broken_end
from gateway.text.tokenizer import Tokenizer


class Detokenizer:
    """The incremental decoder of one completion's token ids to text.

    All returned texts together are the text of all ids at once, cut at the first stop string. A character that is split
    over tokens is shown once it is whole. Special tokens have no text, unless with_special, without which replies in
    channels are rewritten. Stop strings are not looked for within the first `min_tokens` tokens; with include_stop, the
    one that ends the text is shown as well.
    follows_prompt: True: the text goes on where a prompt's ended, and a space at its beginning is part of it; False: it
    begins without the space that its tokenizer puts there. functions: the names of functions whose calls in channels
    are told apart rather than written as text. thinking: the thinking before a text that is held to a grammar, in which
    no stop string is looked for and the letters of its end are broken; None: there is none.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: tuple[str, ...] = (),
        *,
        min_tokens: int = 0,
        include_stop: bool = False,
        with_special: bool = False,
        follows_prompt: bool = False,
        functions: Collection[str] = frozenset(),
        thinking: Thinking | None = None,
    ) -> None:
        self.num_tokens = 0
        """Tokens taken so far; once finished, up to and with the one that completed the stop string."""
        self.num_chars = 0
        """Characters decoded so far, those that are held back included."""
        self._to_bytes = tokenizer.token_bytes
        self._skipped = frozenset() if with_special else tokenizer.special_ids
        self.channels: ChannelText | None = None
        """The rewriting of a reply in channels; None for a model that writes text alone."""
        if tokenizer.channels is not None and not with_special:
            self.channels = ChannelText(
                tokenizer.channels,
                follows_prompt=follows_prompt,
                functions=functions,
                thinks_up_to_final=thinking is not None and not functions,
            )
        self._strips_space = tokenizer.strips_first_space and not follows_prompt
        self._has_stop = bool(stop)
        self._stop = StopStrings(stop, include=include_stop)
        self._min_tokens = min_tokens
        self._thinking = None if thinking is None else ThinkingPlace(thinking)
        self._may_call = bool(functions)
        self._held_thought = b""
        """The bytes at the end of thinking that may begin the letters of its end."""
        self.is_thought = False
        """True if the last token belongs to the thinking."""
        self._rest = b""  # the beginning of a character

    @property
    def finished(self) -> bool:
        """True once a stop string was found."""
        return self._stop.found

    @property
    def stop_string(self) -> str:
        """The stop string that was found; "" for none."""
        return self._stop.matched

    @property
    def is_within_character(self) -> bool:
        """True if the last token ended within a character."""
        return bool(self._rest)

    @property
    def is_own(self) -> bool:
        """True if the text of the last token is the model's own: no stop string is looked for in other text."""
        return self.channels is None or self.channels.is_own

    def push(self, token_ids: Sequence[int]) -> str:
        """Decode further ids, and return the text that is safe to show. Ids after a found stop string are ignored."""
        if not self._has_stop:
            self.num_tokens += len(token_ids)
            return self._decode(token_ids)
        shown = ""
        for token_id in token_ids:
            if self._stop.found:
                break
            self.num_tokens += 1
            shown += self._show(self._decode((token_id,)))
        return shown

    def finish(self, stop_token_id: int | None = None) -> str:
        """End the input, and return the text that was held back.

        A character that never became whole is returned as U+FFFD.

        stop_token_id: the token that ended the completion, which has no text of its own; None for none.
        """
        if self._stop.found:
            return ""
        if self.channels is not None:
            ended = b"" if stop_token_id is None else self.channels.push(stop_token_id, b"")
            self._rest += ended + self.channels.finish()
        self._rest += self._held_thought
        self._held_thought = b""
        return self._show(self._decode((), final=True)) + self._stop.finish()

    def _decode(self, token_ids: Sequence[int], *, final: bool = False) -> str:
        raw = self._rest + b"".join(self._bytes_of(token_ids))
        text, num_used = utf_8_decode(raw, "replace", final)
        self._rest = raw[num_used:]
        if self._strips_space and text:
            self._strips_space = False
            text = text.removeprefix(" ")
        self.num_chars += len(text)
        return text

    def _bytes_of(self, token_ids: Sequence[int]) -> list[bytes]:
        if self.channels is None and self._thinking is None:
            return [self._to_bytes(each) for each in token_ids if each not in self._skipped]
        return [self._shown_bytes(each) for each in token_ids]

    def _shown_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token adds to the text of a model that thinks."""
        raw = b"" if token_id in self._skipped else self._to_bytes(token_id)
        thinking, self.is_thought = self._thinking, False
        if thinking is not None:
            self.is_thought = thinking.push(token_id)
        if self.channels is not None:
            self.channels.is_thought = self.is_thought and self._may_call
            return self.channels.push(token_id, raw)
        if not self.is_thought:
            return raw
        assert thinking is not None
        raw, self._held_thought = self._held_thought + raw, b""
        if thinking.is_within:
            raw, self._held_thought = with_broken_end(raw)
        return raw

    def _show(self, text: str) -> str:
        is_exempt = self.is_thought or not self.is_own or self.num_tokens <= self._min_tokens
        return self._stop.push(text, is_exempt=is_exempt)
