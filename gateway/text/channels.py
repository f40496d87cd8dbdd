"""Replies in channels, as gpt-oss writes them, rewritten token by token as the text of other models' replies.

A reply is a row of messages, `<|start|>assistant<|channel|>CHANNEL<|message|>CONTENT<|end|>`, without the first start,
which the prompt has. The channel `analysis` has the model's thinking, `final` the answer, `commentary` remarks before
calls, and each call in a message of its own that is addressed ` to=functions.NAME`.

Source: OpenAI, "Harmony response format", https://cookbook.openai.com/articles/openai-harmony.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

import msgspec

from gateway.text.thinking import BEGIN, END
from gateway.text.tools.formats import HERMES

MAX_HEADER_BYTES = 512
"""The bytes of a message's header that are read; a tool's name has 64 at most."""

_CHANNEL = b" channel="
"""The text that stands for the channel's special token in a header that is read."""
_RECIPIENT = re.compile(rb"\bto=(\S+)")
_FUNCTION = re.compile(rb"functions\.([A-Za-z0-9_-]+)")

Kind = Literal["text", "thinking", "call", "hidden"]


class ChannelTokens(msgspec.Struct, frozen=True):
    """The ids of the special tokens between which messages and their headers are."""

    start: int
    channel: int
    message: int
    end: int
    constrain: int
    call: int

    @classmethod
    def of(cls, special: Mapping[str, int]) -> ChannelTokens | None:
        """Return the tokens of a vocabulary whose replies are in channels; None for any other vocabulary.

        special: the ids of the tokenizer's special tokens, by their text.
        """
        found = {name: special.get(f"<|{name}|>") for name in cls.__struct_fields__}
        return None if None in found.values() else msgspec.convert(found, cls)


class ChannelText:
    """The rewriting of one reply: thinking is put between `<think>` and `</think>`, calls are written as Hermes does.

    Tokens before the first header are text: a reply that a grammar enforces has no channels. Thinking that follows an
    answer or a call, and messages to other recipients than functions, are left out.
    """

    def __init__(self, tokens: ChannelTokens) -> None:
        self._tokens = tokens
        self._kind: Kind | None = "text"
        """The kind of the message that is read; None within a header."""
        self._header = b""
        self._is_thinking = False
        """True if the text so far ends within thinking."""
        self._has_answer = False
        """True once the text has more than thinking."""

    def push(self, token_id: int, raw: bytes) -> bytes:
        """Return the bytes that a token adds to the text. raw: the token's own bytes."""
        tokens, is_header = self._tokens, self._kind is None
        if token_id == tokens.message:
            return self._begin_message()
        if token_id in (tokens.start, tokens.end, tokens.call):
            self._header = b""
            return self._end_message()
        if token_id == tokens.channel:
            self._header += _CHANNEL
            return self._end_message()
        if is_header:
            self._header = (self._header + (b" " if token_id == tokens.constrain else raw))[:MAX_HEADER_BYTES]
            return b""
        return self._content(raw)

    def _begin_message(self) -> bytes:
        ended = self._end_message()
        header, self._header = self._header, b""
        recipient = _RECIPIENT.search(header)
        if recipient is not None:
            return ended + self._begin_call(recipient[1])
        if _CHANNEL + b"analysis" not in header:
            self._kind = "text"
            return ended + self._end_thinking()
        self._kind = "hidden" if self._has_answer else "thinking"
        if self._has_answer:
            return ended
        begun = b"\n" if self._is_thinking else f"{BEGIN}\n".encode()
        self._is_thinking = True
        return ended + begun

    def _begin_call(self, recipient: bytes) -> bytes:
        function = _FUNCTION.fullmatch(recipient)
        self._kind = "hidden" if function is None else "call"
        if function is None:
            return b""
        between = self._end_thinking() + (b"\n" if self._has_answer else b"")
        return between + self._answered(f"{HERMES.trigger}{HERMES.opening}{HERMES.head(function[1].decode())}".encode())

    def _end_message(self) -> bytes:
        """Return the end of the message that was read, after which a header begins."""
        kind, self._kind = self._kind, None
        return HERMES.end.encode() if kind == "call" else b""

    def _end_thinking(self) -> bytes:
        is_thinking, self._is_thinking = self._is_thinking, False
        return f"\n{END}\n\n".encode() if is_thinking else b""

    def _content(self, raw: bytes) -> bytes:
        if self._kind == "thinking":
            return raw
        return b"" if self._kind == "hidden" else self._answered(raw)

    def _answered(self, raw: bytes) -> bytes:
        self._has_answer = self._has_answer or bool(raw)
        return raw
