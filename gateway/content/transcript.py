"""The transcript of one request, collected while it runs, within bounds; then redacted and shortened for the log.

Knows no API's fields, and nothing of the transcript's destination.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from gateway.text.redact import redacted

MAX_LOGGED_BYTES = 64 << 10
"""The most bytes of redacted text, in UTF-8, of a request's input and of its output; what follows is cut off."""

MAX_TRANSCRIPT_CHARS = 128 << 10
"""The most characters of unredacted text, each way; what follows is not looked at."""

UNREAD_TAIL_CHARS = 1 << 10
"""Characters that are left out where a text was not read to its end: they may hold a part of a secret that is found
only when it is whole."""

SIZE_OF_ONE = 16
"""Bytes that each message, choice and call counts for beside its text, which bounds their number."""

BYTES_PER_CHAR = 4
"""The most bytes of a character in Python's texts."""


class LoggedCall(msgspec.Struct, frozen=True):
    """A tool call."""

    name: str
    arguments: str
    """The arguments as the model wrote them, which should be JSON."""


class LoggedMessage(msgspec.Struct, frozen=True):
    """A message, or a prompt."""

    role: str | None
    """The role of the message; null for a prompt."""
    content: str
    tool_calls: Sequence[LoggedCall] = ()


class LoggedChoice(msgspec.Struct, frozen=True):
    """A choice of the reply."""

    index: int
    content: str
    tool_calls: Sequence[LoggedCall]
    finish_reason: str | None
    """The reason why the choice ended; null where it was cut off."""


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """The content of one request and of its reply."""

    endpoint: str
    model: str
    input: list[LoggedMessage]
    input_truncated: bool
    """True if the end of the input was cut off."""
    output: list[LoggedChoice]
    output_truncated: bool
    """True if the end of the output was cut off."""


class _Room:
    """The room that is left of a bound, in characters or, as UTF-8, in bytes.

    is_cut: True once some text did not fit; from then on nothing fits.
    """

    def __init__(self, left: int, *, as_utf8: bool = False) -> None:
        self.left = left
        self.is_cut = False
        self._as_utf8 = as_utf8

    def begin(self) -> None:
        """Count the room that one more message, choice or call takes beside its text."""
        self._spend(SIZE_OF_ONE)

    def take(self, text: str) -> str:
        """Return as much of a text as fits."""
        if not self._as_utf8:
            taken = text[: self.left]
            self._spend(len(text))
            return taken
        data = text.encode()
        taken = text if len(data) <= self.left else data[: self.left].decode(errors="ignore")
        self._spend(len(data))
        return taken

    def _spend(self, size: int) -> None:
        self.is_cut = self.is_cut or size > self.left
        self.left = 0 if self.is_cut else self.left - size

    def give_back(self, size: int) -> None:
        """Add `size` characters to the room again, unless the transcript has already been cut."""
        if not self.is_cut:
            self.left += size

    def fill(self, given: Iterable[LoggedMessage]) -> Iterator[LoggedMessage]:
        """Yield the messages that fit; the last of them may be cut."""
        for each in given:
            self.begin()
            if self.is_cut:
                return
            yield LoggedMessage(each.role, self.take(each.content), list(self._calls(each.tool_calls)))

    def _calls(self, calls: Iterable[LoggedCall]) -> Iterator[LoggedCall]:
        for call in calls:
            self.begin()
            if self.is_cut:
                return
            yield LoggedCall(self.take(call.name), self.take(call.arguments))


class _Choice:
    """One completion so far, in parts. is_cut: True if there was no room for all of it."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.calls: list[tuple[str, list[str]]] = []
        self.finish_reason: str | None = None
        self.is_cut = False

    @property
    def num_chars(self) -> int:
        """The number of characters that the choice takes of the room."""
        of_calls = sum(SIZE_OF_ONE + len(name) + sum(map(len, parts)) for name, parts in self.calls)
        return SIZE_OF_ONE + sum(map(len, self.parts)) + of_calls

    def message(self) -> LoggedMessage:
        return LoggedMessage(
            None, "".join(self.parts), [LoggedCall(name, "".join(parts)) for name, parts in self.calls]
        )


class Transcript:
    """Collects the input of one request, which is known when it begins, and its output."""

    def __init__(self, request_id: str, endpoint: str, model: str, asked: Iterable[LoggedMessage]) -> None:
        self.request_id = request_id
        self._endpoint = endpoint
        self._model = model
        self._asked_room, self._room = _Room(MAX_TRANSCRIPT_CHARS), _Room(MAX_TRANSCRIPT_CHARS)
        self._asked = list(self._asked_room.fill(asked))
        self._choices: dict[int, _Choice] = {}

    @property
    def num_bytes(self) -> int:
        """The most bytes of memory that the transcript takes."""
        return BYTES_PER_CHAR * (2 * MAX_TRANSCRIPT_CHARS - self._asked_room.left - self._room.left)

    def add(self, index: int, text: str) -> None:
        """Add text to a choice."""
        choice = self._choice(index)
        choice.parts.append(self._room.take(text))
        choice.is_cut = self._room.is_cut

    def add_call(self, index: int, name: str | None, arguments: str) -> None:
        """Add to a choice's call of a tool; its name comes first.

        index: the index of the choice. name: the tool's name where a call begins; None: the arguments belong to the
        last call.
        """
        choice = self._choice(index)
        if name is not None:
            self._room.begin()
            choice.calls.append((self._room.take(name), []))
        choice.calls[-1][1].append(self._room.take(arguments))
        choice.is_cut = self._room.is_cut

    def end(self, index: int, finish_reason: str) -> None:
        """Record the reason why a choice ended."""
        self._choice(index).finish_reason = finish_reason

    def restart(self, indices: Iterable[int]) -> None:
        """Forget the output of these choices so far: another attempt at them begins."""
        for index in indices:
            choice = self._choices.pop(index, None)
            if choice is not None:
                self._room.give_back(choice.num_chars)

    def content(self) -> Content:
        """Return the content, redacted and cut.

        Takes milliseconds, and a few tenths of a second for the worst of texts.
        """
        # The last message that fitted is the one that was cut.
        asked = [_redacted(each) for each in self._asked[:-1]]
        asked += [_redacted(each, is_cut=self._asked_room.is_cut) for each in self._asked[-1:]]
        choices = sorted(self._choices.items())
        got = [_redacted(choice.message(), is_cut=choice.is_cut) for _, choice in choices]
        asked_room = _Room(MAX_LOGGED_BYTES, as_utf8=True)
        room = _Room(MAX_LOGGED_BYTES, as_utf8=True)
        shown = list(asked_room.fill(asked))
        output = [
            LoggedChoice(index, message.content, message.tool_calls, choice.finish_reason)
            for (index, choice), message in zip(choices, room.fill(got), strict=False)
        ]
        return Content(
            endpoint=self._endpoint,
            model=self._model,
            input=shown,
            input_truncated=self._asked_room.is_cut or asked_room.is_cut,
            output=output,
            output_truncated=self._room.is_cut or room.is_cut,
        )

    def _choice(self, index: int) -> _Choice:
        choice = self._choices.get(index)
        if choice is None:
            self._room.begin()
            choice = self._choices[index] = _Choice()
        return choice


def _redacted(message: LoggedMessage, *, is_cut: bool = False) -> LoggedMessage:
    """Redact a message. is_cut: whether it was cut, so that it did not end here."""
    content = redacted(message.content)
    calls = [LoggedCall(redacted(call.name), redacted(call.arguments)) for call in message.tool_calls]
    if is_cut and calls:
        calls[-1] = LoggedCall(calls[-1].name, calls[-1].arguments[:-UNREAD_TAIL_CHARS])
    elif is_cut:
        content = content[:-UNREAD_TAIL_CHARS]
    return LoggedMessage(message.role, content, calls)
