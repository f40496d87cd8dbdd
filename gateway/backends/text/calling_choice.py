"""A choice whose completion may call tools: the engine's token ids become content, calls and ends.

`choices` does the same for text alone. Stop strings and log-probabilities belong to the content; calls have neither.
"""

from __future__ import annotations

import msgspec

from engine.protocol import Delta, FinishReason, Thinking
from gateway.backends.generation import Piece, Token
from gateway.text.detokenizer import Detokenizer
from gateway.text.options import PLAIN, TextStyle
from gateway.text.tokenizer import Tokenizer
from gateway.text.tools.content_text import ContentText
from gateway.text.tools.parser import CallDelta, CallParser, Parsed
from gateway.text.tools.tool import ToolUse


def calling_choices(
    num_choices: int,
    tokenizer: Tokenizer,
    tools: ToolUse,
    stop: tuple[str, ...],
    *,
    min_tokens: int,
    style: TextStyle,
    thinking: Thinking | None = None,
) -> list[CallingChoice]:
    """Return the choices of one request, none of which has begun.

    min_tokens: the tokens before which no stop string ends a choice. thinking: the thinking before the text that the
    grammar holds; None: there is none.
    """
    return [
        CallingChoice(index, tokenizer, tools, stop, min_tokens=min_tokens, style=style, thinking=thinking)
        for index in range(num_choices)
    ]


class _NewContent(msgspec.Struct):
    """The content of a piece that is being made."""

    text: str = ""
    calls: list[CallDelta] = []
    token_ids: list[int] = []
    """The tokens of text and calls together."""


class CallingChoice:
    """A completion that may call tools, made from its token ids; `choices.Choice` is its counterpart without tools.

    No stop string is looked for within the first `min_tokens` tokens. Thinking is content in which nothing is a call or
    a stop string.
    """

    def __init__(
        self,
        index: int,
        tokenizer: Tokenizer,
        tools: ToolUse,
        stop: tuple[str, ...] = (),
        *,
        min_tokens: int = 0,
        style: TextStyle = PLAIN,
        thinking: Thinking | None = None,
    ) -> None:
        self.finish_reason: FinishReason | None = None
        self.num_kept_tokens: int | None = None
        self._index = index
        # Where calls have special tokens, the engine allows no others.
        self._trigger_id = tokenizer.tools.trigger_id
        with_special = style.with_special or tokenizer.tools.has_special
        self._detokenizer = Detokenizer(
            tokenizer,
            with_special=with_special,
            follows_prompt=style.follows_prompt,
            functions=tools.callable_names if tokenizer.calls_in_channels else frozenset(),
            thinking=thinking,
        )
        self._reads_channels = False
        """True once the completion has a header of a channel, which tells calls from content."""
        self._num_calls_in_channels = 0
        self._content_text = ContentText(stop, include=style.include_stop)
        form = tokenizer.tools.format
        self._parser = CallParser(
            form,
            {tool.name: form.text_arguments(tool) for tool in tools.callable_tools},
            self._content_text,
            must_call=tools.must_call,
            is_trigger_token=self._trigger_id is not None,
        )
        self._min_tokens = min_tokens
        self._with_token_ids = style.with_token_ids
        self._num_tokens = 0
        self._has_calls = False
        self._num_shown_chars = 0
        self._pending: list[Token] = []  # it may turn out that they are not of the content

    def push(self, delta: Delta) -> Piece | None:
        """Take a delta; return the piece that it adds, None where nothing is to be shown yet or any more."""
        if self.finish_reason is not None:
            return None
        new = _NewContent()
        detokenizer = self._detokenizer
        for position, token_id in enumerate(delta.token_ids):
            start, had_calls = detokenizer.num_chars, self._has_calls
            if self._with_token_ids:
                new.token_ids.append(token_id)
            text = detokenizer.push((token_id,))
            is_thought = detokenizer.is_thought
            if delta.logprobs is not None and not had_calls and self._is_content:
                self._pending.append(Token(token_id, start, delta.logprobs[position]))
            is_early = detokenizer.num_tokens <= self._min_tokens
            self._content_text.is_exempt = is_thought or is_early or not detokenizer.is_own
            if is_thought:
                self._take(Parsed(self._content_text.push(text), []), new)
            else:
                self._take(self._parse(text, is_trigger=token_id == self._trigger_id), new)
            if self._content_text.is_stopped:
                return self._last_piece(new)
        self._num_tokens = delta.num_completion_tokens
        if delta.finish_reason in ("stop", "length"):
            return self._end_piece(delta.finish_reason, new, delta.stop_token_id)
        return self._piece(new) if new.text or new.calls or new.token_ids else None

    def end(self, reason: FinishReason) -> Piece:
        """End the choice without a further token; return its last piece, with text that was held back."""
        return self._end_piece(reason, _NewContent())

    def _end_piece(self, reason: FinishReason, new: _NewContent, stop_token_id: int | None = None) -> Piece:
        self._take(self._parse(self._detokenizer.finish(stop_token_id)), new)
        self._take(Parsed(self._content_text.finish(), []) if self._reads_channels else self._parser.finish(), new)
        if self._content_text.is_stopped:
            return self._last_piece(new)
        if self._with_token_ids and stop_token_id is not None:
            new.token_ids.append(stop_token_id)
        return self._piece(new, reason)

    def _parse(self, text: str, *, is_trigger: bool = False) -> Parsed:
        """Divide the text of the last token into content and calls, by its channel or by the letters of calls."""
        channels = self._detokenizer.channels
        if channels is None or not channels.has_header:
            return self._parser.push(text, is_trigger=is_trigger)
        parsed = Parsed("", [])
        if not self._reads_channels:
            self._reads_channels = True
            parsed = self._parser.finish()  # of text before the first header
        if channels.is_call:
            parsed.calls += [CallDelta(self._num_calls_in_channels - 1, None, text)] if text else []
        else:
            parsed.content += self._content_text.push(text)
        if len(channels.called) > self._num_calls_in_channels:
            self._num_calls_in_channels = len(channels.called)
            parsed.content += self._content_text.before_call()
            parsed.calls.append(CallDelta(self._num_calls_in_channels - 1, channels.called[-1], ""))
        return parsed

    @property
    def _is_content(self) -> bool:
        """True if the last token is of the content, as far as channels tell: headers are not."""
        channels = self._detokenizer.channels
        return channels is None or not (channels.is_header or channels.is_call)

    def _last_piece(self, new: _NewContent) -> Piece:
        self.num_kept_tokens = self._num_tokens = self._detokenizer.num_tokens
        return self._piece(new, "stop")

    def _piece(self, new: _NewContent, reason: FinishReason | None = None) -> Piece:
        """Return a piece with the new content. reason: the reason why the choice ends; None: the choice goes on."""
        self.finish_reason = reason
        is_all_content = reason is not None and self.num_kept_tokens is None and not self._has_calls
        tokens = self._pending if is_all_content else self._release(new.text)
        return Piece(
            self._index,
            new.text,
            tokens,
            reason,
            tuple(new.calls),
            new.token_ids,
            self._num_tokens,
            stop_string=self._content_text.stop_string,
        )

    def _take(self, parsed: Parsed, new: _NewContent) -> None:
        """Add parsed text and calls to the piece. White space alone that follows a call is no content."""
        if not self._has_calls or parsed.content.strip():
            new.text += parsed.content
        new.calls += parsed.calls
        self._has_calls = self._has_calls or bool(parsed.calls)

    def _release(self, text: str) -> list[Token]:
        """Take the pending tokens that the text completes, and return them."""
        self._num_shown_chars += len(text)
        count = sum(token.start < self._num_shown_chars for token in self._pending)
        released, self._pending = self._pending[:count], self._pending[count:]
        return released
