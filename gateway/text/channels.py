"""Replies in channels, as gpt-oss writes them, rewritten token by token as the text of other models' replies.

A reply is a row of messages, `<|start|>assistant<|channel|>CHANNEL<|message|>CONTENT<|end|>`, without the first start,
which the prompt has. The channel `analysis` has the model's thinking, `final` the answer, `commentary` remarks before
calls, and each call in a message of its own, whose header has ` to=functions.NAME` before or after the channel.

Source: OpenAI, "Harmony response format", https://cookbook.openai.com/articles/openai-harmony.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Literal

import msgspec

from gateway.text.thinking import BEGIN, END, with_broken_end
from gateway.text.tools.formats import HERMES

MAX_HEADER_BYTES = 512
"""The bytes of a message's header that are read; a tool's name has 64 at most."""

_CHANNEL = b" channel="
"""The text that stands for the channel's special token in a header that is read."""
_ROLE = re.compile(rb"\s*([A-Za-z]+)(?=\s|$)")
_RECIPIENT = re.compile(rb"\bto=([^\s<]+)")
_FUNCTION = re.compile(rb"(?:functions\.)?([A-Za-z0-9_-]+)")
_OTHERS = frozenset({b"assistant", b"user", b"browser", b"python", b"container"})
"""The recipients without a dot in their name that are no function."""
_LEAD = re.compile(rb"\s*(?:t(?:o(?:=[^\s<]*\s*)?)?)?")
"""The beginning of a reply as long as it may be that of a header: a recipient at most."""
_FUNCTION_LEAD = re.compile(rb"\s*to=functions\.")

Kind = Literal["lead", "header", "text", "thinking", "call", "hidden"]
"""The kinds of bytes that are read. lead: the reply's beginning, while it may be text or a header; hidden: a message
that is none of the reply's text."""


class ChannelTokens(msgspec.Struct, frozen=True):
    """The ids of the special tokens that divide a reply into messages, and messages into headers and contents."""

    start: int
    channel: int
    message: int
    constrain: int
    end: int
    call: int
    """The end of a call, which ends the reply."""
    answered: int
    """The end of an answer, `<|return|>`, which ends the reply."""

    @classmethod
    def of(cls, special: Mapping[str, int]) -> ChannelTokens | None:
        """Return the tokens of a vocabulary whose replies are in channels; None for any other vocabulary.

        special: the ids of the tokenizer's special tokens, by their text.
        """
        names = {name: name for name in cls.__struct_fields__} | {"answered": "return"}
        found = {field: special.get(f"<|{name}|>") for field, name in names.items()}
        return None if None in found.values() else msgspec.convert(found, cls)


class ChannelText:
    """The rewriting of one reply: thinking is put between `<think>` and `</think>`, calls are written as Hermes does.

    A reply without a header is text: most grammars that hold a reply from its first token know no channels. Thinking
    that follows an answer or a call is left out, and so are messages to or from others than functions and the
    assistant. Text within thinking that looks like its end is broken by a backslash.
    """

    def __init__(
        self,
        tokens: ChannelTokens,
        *,
        follows_prompt: bool = False,
        functions: Collection[str] = frozenset(),
        thinks_up_to_final: bool = False,
    ) -> None:
        """Begin a reply.

        follows_prompt: True: its first text goes on with a text of the prompt's. functions: the names of functions
        whose arguments are given alone; calls of others are written as text. thinks_up_to_final: True: all that comes
        before the channel `final` is thinking, remarks and calls as well.
        """
        self.has_header = False
        """True once the reply has a header: from then on channels tell what a text is."""
        self.called: list[str] = []
        """The names of the calls so far whose arguments are given alone."""
        self.is_call = False
        """True if the bytes of the last push are arguments of the last call, or its end, rather than content."""
        self.is_own = True
        """True if the bytes of the last push are the model's own, rather than added, such as `<think>`."""
        self.is_thought = False
        """Set before each push: True for a token before a call that has to be made, where each message is thinking,
        whatever its channel."""
        self._tokens = tokens
        self._functions = functions
        self._thinks_up_to_final = thinks_up_to_final
        self._kind: Kind = "text" if follows_prompt else "lead"
        self._held = b""
        """The bytes that are not decided: of a lead or header, the end of thinking that may begin `</think>`, and white
        space after arguments."""
        self._has_arguments = False
        """True once the call that is read has arguments."""
        self._is_written = False
        """True if the call that is read is written as Hermes does."""
        self._is_thinking = False
        """True if the text so far ends within thinking."""
        self._has_answer = False
        """True once the text has more than thinking."""

    def push(self, token_id: int, raw: bytes) -> bytes:
        """Return the bytes that a token adds to the text. raw: the token's own bytes, b"" of a special token."""
        tokens = self._tokens
        self.is_call = self._kind == "call" and not self._is_written
        if token_id in (tokens.start, tokens.end, tokens.call, tokens.answered):
            self.is_own = self._kind in ("lead", "thinking")
            ended = self._end_message()
            self._kind, self.has_header = "header", True
        elif token_id == tokens.channel:
            self.is_own = False
            ended = self._begin_header()
            self._hold(_CHANNEL)
        elif token_id == tokens.message:
            self.is_own = False
            ended = self._begin_header()
            ended += self._begin_message()
        else:
            self.is_own = True
            return self._content(b" " if token_id == tokens.constrain and self._kind in ("lead", "header") else raw)
        return ended

    def finish(self) -> bytes:
        """End the reply, and return the text that was held back. A call without an end was cut off and stays so."""
        held, self._held = self._held, b""
        is_text = self._kind == "thinking" or (self._kind == "lead" and not _FUNCTION_LEAD.match(held))
        return held if is_text else b""

    @property
    def is_header(self) -> bool:
        """True within a header, whose tokens are no text."""
        return self._kind == "header"

    def _end_message(self) -> bytes:
        """End the message that is read, and return the text that was held back or that ends a call."""
        if self._kind != "call":
            return self.finish()
        self._held = b""
        return (b"" if self._has_arguments else b"{}") + (HERMES.end.encode() if self._is_written else b"")

    def _begin_header(self) -> bytes:
        """Go on in a header, or begin one after text that has no end. A reply's lead is the beginning of a header."""
        self.has_header = True
        if self._kind in ("lead", "header"):
            self._kind = "header"
            return b""
        ended = self._end_message()
        self._kind = "header"
        return ended

    def _hold(self, raw: bytes) -> None:
        if len(self._held) < MAX_HEADER_BYTES:
            self._held += raw[:MAX_HEADER_BYTES]

    def _begin_message(self) -> bytes:
        header, self._held = self._held, b""
        before, _, after = header.partition(_CHANNEL)
        role, channel = _ROLE.match(before), after.split(maxsplit=1)[:1]
        if role is not None and role[1] != b"assistant":
            self._kind = "hidden"
            return b""
        if self.is_thought or (self._thinks_up_to_final and channel != [b"final"]):
            return self._begin_thought()
        recipient = _RECIPIENT.search(header)
        if recipient is not None and channel != [b"final"]:
            return self._begin_call(recipient[1])
        if channel != [b"analysis"]:
            self._kind = "text"
            return self._end_thinking() or (b"\n\n" if self._has_answer else b"")
        return self._begin_thought()

    def _begin_thought(self) -> bytes:
        self._kind = "hidden" if self._has_answer else "thinking"
        if self._has_answer:
            return b""
        begun = b"\n" if self._is_thinking else f"{BEGIN}\n".encode()
        self._is_thinking = True
        return begun

    def _begin_call(self, recipient: bytes) -> bytes:
        function = _FUNCTION.fullmatch(recipient)
        if function is None or recipient in _OTHERS:
            self._kind = "hidden"
            return b""
        name = function[1].decode()
        self._kind, self._has_arguments, self._is_written = "call", False, name not in self._functions
        between = self._end_thinking() or (b"\n" if self._has_answer else b"")
        self._has_answer = True
        if self._is_written:
            return between + f"{HERMES.trigger}{HERMES.opening}{HERMES.head(name)}".encode()
        self.called.append(name)
        return between

    def _end_thinking(self) -> bytes:
        is_thinking, self._is_thinking = self._is_thinking, False
        return f"\n{END}\n\n".encode() if is_thinking else b""

    def _content(self, raw: bytes) -> bytes:
        match self._kind:
            case "header":
                self._hold(raw)
                return b""
            case "hidden":
                return b""
            case "thinking":
                return self._thought(raw)
            case "call":
                return self._argument(raw)
            case "lead":
                self._held += raw
                if len(self._held) <= MAX_HEADER_BYTES and _LEAD.fullmatch(self._held):
                    return b""
                self._kind, raw, self._held = "text", self._held, b""
                if self.is_thought or self._thinks_up_to_final:
                    begun = self._begin_thought()
                    return begun + self._thought(raw)
        self._has_answer = self._has_answer or bool(raw)
        return raw

    def _argument(self, raw: bytes) -> bytes:
        """Return arguments without the white space around them."""
        raw = self._held + raw if self._has_arguments else raw.lstrip()
        shown = raw.rstrip()
        self._held = raw[len(shown) :]
        self._has_arguments = self._has_arguments or bool(shown)
        return shown

    def _thought(self, raw: bytes) -> bytes:
        """Return thinking in which nothing looks like its end."""
        shown, self._held = with_broken_end(self._held + raw)
        return shown
