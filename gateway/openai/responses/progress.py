"""A response as it comes into being: what the model says goes in, events and the response come out.

Pure: no clock, no sockets, and no ids but those that it is given. The laws that `tests/gateway/openai/responses/
laws.py` checks on every stream hold for whatever comes in:

- `created` and `in_progress` come first; one of `completed`, `incomplete` and `failed` comes last.
- Items come one after the other; all events of an item have its id and its place in the output.
- The deltas of an item together are its text in `done`, in its part, in the item and in the response.
- What a limit has cut off is `incomplete`: the last item, and the response.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import msgspec

from gateway.domain.errors import GatewayError, InvalidRequest, LimitReached
from gateway.http.error_body import body_of
from gateway.openai.responses.custom_input import CustomInput
from gateway.openai.responses.events import (
    ArgumentsDelta,
    ArgumentsDone,
    Completed,
    Created,
    Error,
    Failed,
    Incomplete,
    InProgress,
    InputDelta,
    InputDone,
    ItemAdded,
    ItemDone,
    PartAdded,
    PartDone,
    Queued,
    ResponseEvent,
    TextDelta,
    TextDone,
)
from gateway.openai.responses.items import (
    CustomToolCallItem,
    FunctionCallItem,
    ItemStatus,
    MessageItem,
    OutputItem,
    OutputText,
)
from gateway.openai.responses.wire import IncompleteDetails, ReplyError, ResponseObject, ResponseUsage
from gateway.openai.shared.logprobs import ChatTokenLogprob
from gateway.text.tools.parser import CallDelta

Numbers = Callable[[], int]
"""Gives each event its number."""

Logprobs = Sequence[ChatTokenLogprob]


class Ids(Protocol):
    """The ids of a response's output."""

    def item(self, prefix: str, index: int) -> str:
        """Return the id of the item at a place of the output."""

    def call(self, index: int) -> str:
        """Return the id of the call of this number."""


class _OpenItem(Protocol):
    """An item that is under way."""

    def begin(self) -> list[ResponseEvent]: ...

    def end(self, status: ItemStatus) -> tuple[list[ResponseEvent], OutputItem]: ...


class Progress:
    """One response. Call `begin` first, `say` and `call` as text and calls come, `stop`, then `finish`; or `fail`, once
    at any time after `begin`."""

    def __init__(
        self, initial: ResponseObject, ids: Ids, *, custom: frozenset[str] = frozenset(), must_call: bool = False
    ) -> None:
        """initial: the response without output. custom: the names of custom tools. must_call: no text is to come."""
        self.response = initial
        """The response by now."""
        self._ids = ids
        self._custom = custom
        self._must_call = must_call
        self._numbers = _Numbers()
        self._output: list[OutputItem] = []
        self._open: _OpenItem | None = None
        self._num_calls = 0
        self._is_cut = False

    def go_on_at(self, number: int) -> None:
        """Give the next event this number."""
        self._numbers.following = number

    def begin(self) -> list[ResponseEvent]:
        """Return the first events. A response that waits to be run in the background says so before it is in
        progress."""
        events: list[ResponseEvent] = [Created(sequence_number=self._numbers(), response=self.response)]
        if self.response.status == "queued":
            events.append(Queued(sequence_number=self._numbers(), response=self.response))
            self._change(status="in_progress")
        return [*events, InProgress(sequence_number=self._numbers(), response=self.response)]

    def say(self, text: str, logprobs: Logprobs = ()) -> list[ResponseEvent]:
        """Take more text, or log-probabilities of tokens without any."""
        if not text and not logprobs:
            return []
        events: list[ResponseEvent] = []
        if not isinstance(self._open, _Message):
            events += self._add(_Message(self._ids.item("msg", self._place), self._place, self._numbers))
        assert isinstance(self._open, _Message)
        return events + self._open.say(text, logprobs)

    def call(self, new: CallDelta) -> list[ResponseEvent]:
        """Take the next part of a call."""
        events: list[ResponseEvent] = []
        if new.name is not None:
            call_id, self._num_calls = self._ids.call(self._num_calls), self._num_calls + 1
            is_custom = new.name in self._custom
            kind, prefix = (_CustomCall, "ctc") if is_custom else (_FunctionCall, "fc")
            place = self._place
            events += self._add(kind(self._ids.item(prefix, place), place, call_id, new.name, self._numbers))
        assert isinstance(self._open, _FunctionCall | _CustomCall)
        return events + self._open.write(new.arguments)

    def stop(self, *, is_cut: bool) -> list[ResponseEvent]:
        """End the output. is_cut: a limit has ended it."""
        self._is_cut = is_cut
        events: list[ResponseEvent] = []
        if self._open is None and not self._output and not self._must_call:
            events += self._add(_Message(self._ids.item("msg", 0), 0, self._numbers))
        return events + self._close("incomplete" if is_cut else "completed")

    def finish(
        self, usage: ResponseUsage, completed_at: int, *, is_stored: bool, is_added: bool = True
    ) -> list[ResponseEvent]:
        """Return the last event. is_stored, is_added: whether the response is stored by now, and
        added to its conversation."""
        common = {"output": list(self._output), "usage": usage, "store": is_stored}
        if not is_added:
            common["conversation"] = None
        if self._is_cut:
            details = IncompleteDetails("max_output_tokens")
            self._change(**common, status="incomplete", incomplete_details=details)
            return [Incomplete(sequence_number=self._numbers(), response=self.response)]
        self._change(**common, status="completed", completed_at=completed_at)
        return [Completed(sequence_number=self._numbers(), response=self.response)]

    def fail(self, error: GatewayError, usage: ResponseUsage) -> list[ResponseEvent]:
        """Return the last events of a response that failed: what was said of it so far stays."""
        events = self._close("incomplete")
        detail = body_of(error).error
        events.append(
            Error(
                sequence_number=self._numbers(),
                code=detail.code,
                message=detail.message,
                param=detail.param,
                error=detail,
            )
        )
        self._change(
            output=list(self._output),
            usage=usage,
            store=self.response.background,
            conversation=None,
            status="failed",
            error=ReplyError(_code_of(error), error.message),
        )
        return [*events, Failed(sequence_number=self._numbers(), response=self.response)]

    def cancel(self, usage: ResponseUsage) -> list[ResponseEvent]:
        """Return the last events of a response that was cancelled: what was said of it so far stays."""
        events = self._close("incomplete")
        self._change(output=list(self._output), usage=usage, conversation=None, status="cancelled")
        return [*events, Failed(sequence_number=self._numbers(), response=self.response)]

    @property
    def _place(self) -> int:
        """The place of the next item in the output."""
        return len(self._output) + (self._open is not None)

    def _add(self, item: _OpenItem) -> list[ResponseEvent]:
        events = self._close("completed")
        self._open = item
        return events + item.begin()

    def _close(self, status: ItemStatus) -> list[ResponseEvent]:
        if self._open is None:
            return []
        events, item = self._open.end(status)
        self._open = None
        self._output.append(item)
        return events

    def _change(self, **fields: object) -> None:
        self.response = msgspec.structs.replace(self.response, **fields)


class _Numbers:
    """Numbers of events, one after the other."""

    def __init__(self) -> None:
        self.following = 0

    def __call__(self) -> int:
        number, self.following = self.following, self.following + 1
        return number


class _Message:
    """A message under way, of one part."""

    def __init__(self, id: str, place: int, numbers: Numbers) -> None:
        self._id = id
        self._place = place
        self._numbers = numbers
        self._texts: list[str] = []
        self._logprobs: list[ChatTokenLogprob] = []
        self._num_told = 0  # of the log-probabilities, those that a delta had

    def begin(self) -> list[ResponseEvent]:
        item = MessageItem(self._id, "in_progress", "assistant", [])
        return [
            ItemAdded(sequence_number=self._numbers(), output_index=self._place, item=item),
            PartAdded(sequence_number=self._numbers(), output_index=self._place, item_id=self._id, part=OutputText("")),
        ]

    def say(self, text: str, logprobs: Logprobs) -> list[ResponseEvent]:
        self._logprobs += logprobs
        if not text:
            return []
        self._texts.append(text)
        new = self._logprobs[self._num_told :]
        self._num_told = len(self._logprobs)
        return [
            TextDelta(
                sequence_number=self._numbers(),
                output_index=self._place,
                item_id=self._id,
                delta=text,
                logprobs=new,
            )
        ]

    def end(self, status: ItemStatus) -> tuple[list[ResponseEvent], OutputItem]:
        text, logprobs, place, id = "".join(self._texts), self._logprobs, self._place, self._id
        part = OutputText(text, [], logprobs)
        item = MessageItem(id, status, "assistant", [part])
        return [
            TextDone(sequence_number=self._numbers(), output_index=place, item_id=id, text=text, logprobs=logprobs),
            PartDone(sequence_number=self._numbers(), output_index=place, item_id=id, part=part),
            ItemDone(sequence_number=self._numbers(), output_index=place, item=item),
        ], item


class _FunctionCall:
    """A call of a function under way."""

    def __init__(self, id: str, place: int, call_id: str, name: str, numbers: Numbers) -> None:
        self._id = id
        self._place = place
        self._call_id = call_id
        self._name = name
        self._numbers = numbers
        self._arguments: list[str] = []

    def begin(self) -> list[ResponseEvent]:
        item = FunctionCallItem(self._id, "in_progress", self._call_id, self._name, "")
        return [ItemAdded(sequence_number=self._numbers(), output_index=self._place, item=item)]

    def write(self, arguments: str) -> list[ResponseEvent]:
        if not arguments:
            return []
        self._arguments.append(arguments)
        number = self._numbers()
        return [ArgumentsDelta(sequence_number=number, output_index=self._place, item_id=self._id, delta=arguments)]

    def end(self, status: ItemStatus) -> tuple[list[ResponseEvent], OutputItem]:
        arguments = "".join(self._arguments)
        item = FunctionCallItem(self._id, status, self._call_id, self._name, arguments)
        return [
            ArgumentsDone(
                sequence_number=self._numbers(),
                output_index=self._place,
                item_id=self._id,
                name=self._name,
                arguments=arguments,
            ),
            ItemDone(sequence_number=self._numbers(), output_index=self._place, item=item),
        ], item


class _CustomCall:
    """A call of a custom tool under way."""

    def __init__(self, id: str, place: int, call_id: str, name: str, numbers: Numbers) -> None:
        self._id = id
        self._place = place
        self._call_id = call_id
        self._name = name
        self._numbers = numbers
        self._input = CustomInput()
        self._texts: list[str] = []

    def begin(self) -> list[ResponseEvent]:
        item = CustomToolCallItem(self._id, "in_progress", self._call_id, self._name, "")
        return [ItemAdded(sequence_number=self._numbers(), output_index=self._place, item=item)]

    def write(self, arguments: str) -> list[ResponseEvent]:
        return self._said(self._input.push(arguments))

    def end(self, status: ItemStatus) -> tuple[list[ResponseEvent], OutputItem]:
        events = self._said(self._input.finish())
        text = "".join(self._texts)
        item = CustomToolCallItem(self._id, status, self._call_id, self._name, text)
        return [
            *events,
            InputDone(sequence_number=self._numbers(), output_index=self._place, item_id=self._id, input=text),
            ItemDone(sequence_number=self._numbers(), output_index=self._place, item=item),
        ], item

    def _said(self, text: str) -> list[ResponseEvent]:
        if not text:
            return []
        self._texts.append(text)
        return [InputDelta(sequence_number=self._numbers(), output_index=self._place, item_id=self._id, delta=text)]


def _code_of(error: GatewayError) -> Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]:
    """Return the code of a failure: of the few that OpenAI's document has."""
    if isinstance(error, LimitReached):
        return "rate_limit_exceeded"
    return "invalid_prompt" if isinstance(error, InvalidRequest) else "server_error"
