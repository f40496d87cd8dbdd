"""A completion's text, as it comes, to content and tool calls. Knows neither tokens nor requests."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from gateway.text.tools.arguments import Arguments, JsonArguments, SingleArguments
from gateway.text.tools.content_text import ContentText
from gateway.text.tools.formats import CallFormat


class CallDelta(msgspec.Struct, frozen=True):
    """The next part of one call, the index-th of its completion."""

    index: int
    name: str | None
    """The name of the tool, in the first part only."""
    arguments: str
    """The next part of the arguments; "" for none."""


class Parsed(msgspec.Struct):
    """The parts of a completion that a piece of text brought."""

    content: str
    """The next part of the content; "" for none."""
    calls: list[CallDelta]
    """Calls in their order; they follow the content."""


class CallParser:
    """The parser that separates the tool calls of one completion from its content.

    The contents, and the arguments of each call, are the same when put together, whatever the pieces of text are.
    White space between content and a call belongs to the call, as far as `content` holds it back. Text that differs
    from a call in any character, or calls a tool that is not among `texts`, is content; with must_call, text that
    ends before it is clear which tool it calls is dropped. If the trigger is a token of its own, its letters alone
    begin no call. Once `content` is stopped nothing comes any more.
    """

    def __init__(
        self,
        form: CallFormat,
        texts: Mapping[str, Collection[str]],
        content: ContentText,
        *,
        must_call: bool = False,
        is_trigger_token: bool = False,
    ) -> None:
        """Begin a completion.

        form: the format of calls. texts: the names of the arguments that are written as text, by the name of each tool
        that may be called; they are empty where the format has a JSON object. content: reads the text beside calls.
        must_call: True: the text has to consist of calls. is_trigger_token: True: the trigger is a token of its own.
        """
        # The first letters of the arguments belong to the call's beginning: without them it is no call.
        pieces = form.argument_pieces
        firsts = ("{",) if pieces is None else (pieces.before, form.end)
        heads = {(form.head(name), first): name for name in texts for first in firsts}
        self._form = form
        self._texts = texts
        self._trigger = form.trigger
        self._starts = {
            f"{form.trigger}{form.opening}{head}{first}": (name, first) for (head, first), name in heads.items()
        }
        self._common_start = f"{form.trigger}{form.opening}{form.before_name}"
        self._nexts = {
            f"{form.end}{form.separator}{head}{first}": (name, first) for (head, first), name in heads.items()
        }
        self._end = f"{form.end}{form.closing}"
        self._content_text = content
        self._must_call = must_call
        self._can_begin = not is_trigger_token
        self._held = ""
        self._num_calls = 0
        self._num_content_chars = 0
        self._step = self._read_content

    def push(self, text: str, *, is_trigger: bool = False) -> Parsed:
        """Parse the next text. is_trigger: whether the text is the trigger as a token."""
        self._can_begin = self._can_begin or is_trigger
        return self._take_text(text, is_all=False)

    def finish(self) -> Parsed:
        """End the text and return what was held back of it."""
        parsed = self._take_text("", is_all=True)
        parsed.content += self._content_text.finish()
        return parsed

    def _take_text(self, text: str, *, is_all: bool) -> Parsed:
        self._held += text
        parsed = Parsed("", [])
        while self._held and not self._content_text.is_stopped and self._step(parsed, is_all):
            pass
        return parsed

    def _read_content(self, parsed: Parsed, is_all: bool) -> bool:
        """Read the content up to a call, or up to text that may begin one. Return whether to go on.

        is_all: True: no more text comes.
        """
        at, start = self._find_start(self._held)
        if start is None and is_all and not self._is_cut_call(self._held[at:]):
            at = len(self._held)
        self._num_content_chars += at
        parsed.content += self._content_text.push(self._held[:at])
        self._held = self._held[at:]
        if self._content_text.is_stopped or not (self._held and (is_all or start)):
            return False
        parsed.content += self._content_text.before_call()
        if start is None:  # a call too short to tell of which tool
            self._held = ""
            return False
        self._begin_call(*self._starts[start], start, parsed)
        return True

    def _read_arguments(self, parsed: Parsed, is_all: bool) -> bool:
        arguments, self._held = self._arguments.take(self._held)
        if arguments:
            parsed.calls.append(CallDelta(self._num_calls - 1, None, arguments))
        if self._arguments.is_over:
            self._step = self._read_after_arguments
        return self._arguments.is_over

    def _read_after_arguments(self, parsed: Parsed, is_all: bool) -> bool:
        """Read the end of a call and the beginning of the next one, or the end of all calls."""
        held = self._held
        following = _beginning_of(held, self._nexts)
        if following is not None:
            self._begin_call(*self._nexts[following], following, parsed)
            return True
        if _may_become(held, (*self._nexts, self._end)):
            return False
        self._held = held.removeprefix(self._end)
        self._step = self._read_content
        return True

    def _find_start(self, text: str) -> tuple[int, str | None]:
        """Return where in text a call begins, or may begin once more has come, and the start string.

        The place is the text's end where none begins. The start string is None unless it is whole.
        """
        if not self._can_begin or (not self._trigger and (self._num_content_chars or self._num_calls)):
            return len(text), None
        at = text.find(self._common_start)
        while at >= 0 and (self._trigger or at == 0):
            start = _beginning_of(text[at:], self._starts)
            if start is not None or _may_become(text[at:], self._starts):
                return at, start
            at = text.find(self._common_start, at + 1)
        for at in range(max(0, len(text) - len(self._common_start) + 1), len(text) if self._trigger else 1):
            if self._common_start.startswith(text[at:]):
                return at, None
        return len(text), None

    def _is_cut_call(self, undecided: str) -> bool:
        """Tell whether a completed text ends in the beginning of a call, too short to tell of which tool."""
        return self._must_call or bool(self._trigger and undecided.startswith(self._trigger))

    def _begin_call(self, name: str, first: str, start: str, parsed: Parsed) -> None:
        """Begin a call of a tool. first: the letters at the end of start that belong to the arguments."""
        self._held = self._held[len(start) - len(first) :]
        pieces = self._form.argument_pieces
        self._arguments: Arguments = (
            JsonArguments() if pieces is None else SingleArguments(pieces, self._form.end, self._texts[name])
        )
        self._step = self._read_arguments
        parsed.calls.append(CallDelta(self._num_calls, name, ""))
        self._num_calls += 1


def _beginning_of(text: str, options: Iterable[str]) -> str | None:
    """Return the option that a text begins with; None for none. No option may be the beginning of another."""
    return next((option for option in options if text.startswith(option)), None)


def _may_become(text: str, options: Iterable[str]) -> bool:
    return any(option.startswith(text) for option in options)
