"""A response as it comes into being: what the model says goes in, events and the response come out.

Pure: no clock, no sockets, and no ids but those that it is given. The laws that `tests/gateway/openai/responses/
laws.py` checks on every stream hold for whatever comes in:

- `created` and `in_progress` come first; one of `completed`, `incomplete` and `failed` comes last.
- Items come one after the other; all events of an item have its id and its place in the output.
- The deltas of an item together are its text in `done`, in its part, in the item and in the response.
- What a limit has cut off is `incomplete`: the last item, and the response.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import msgspec
from msgspec import UNSET

from gateway.domain.errors import GatewayError, InvalidRequest, LimitReached
from gateway.http.error_body import body_of
from gateway.openai.responses.events import (
    ArgumentsDelta,
    Completed,
    Created,
    Error,
    Failed,
    Incomplete,
    InProgress,
    InputDelta,
    ItemAdded,
    ItemDone,
    Queued,
    ReasoningDelta,
    ResponseEvent,
    TextDelta,
)
from gateway.openai.responses.items import (
    CustomToolCallItem,
    FunctionCallItem,
    ItemStatus,
    MessageItem,
    OutputItem,
    ReasoningItem,
)
from gateway.openai.responses.open_items import (
    Logprobs,
    OpenCall,
    OpenCustomCall,
    OpenItem,
    OpenMessage,
    OpenReasoning,
    Seal,
)
from gateway.openai.responses.wire import (
    IncompleteDetails,
    OutputTokensDetails,
    ReplyError,
    ResponseObject,
    ResponseUsage,
)
from gateway.openai.shared.logprobs import ChatTokenLogprob
from gateway.text.thinking import ThinkingText
from gateway.text.tools.parser import CallDelta


class TokenShown(msgspec.Struct, frozen=True):
    """A token with its log-probabilities."""

    start: int
    """The index in the model's output, in characters, at which the token begins."""
    logprobs: ChatTokenLogprob


class Ids(Protocol):
    """The ids of a response's output items and calls."""

    def item(self, prefix: str, index: int) -> str:
        """Return the id of the item at a place of the output."""

    def call(self, index: int) -> str:
        """Return the id of the call with this number in the response."""


class Progress:
    """The progress of one response. Call `begin` first, `add_text` and `call` as output comes, `stop`, then `finish`.

    Call `fail` instead, once, at any time after `begin`.
    """

    def __init__(
        self,
        initial: ResponseObject,
        ids: Ids,
        *,
        custom: frozenset[str] = frozenset(),
        namespaces: Mapping[str, tuple[str, str]] | None = None,
        must_call: bool = False,
        thinking: ThinkingText | None = None,
        seal: Seal | None = None,
    ) -> None:
        """Begin a response.

        initial: the response without output.
        custom: the names of custom tools, as the model sees them.
        namespaces: the namespace, and the name within it, of each tool in a namespace, by the name that the model sees.
        must_call: True: the answer is a call of a tool, so that no text comes.
        thinking: tells reasoning from the rest, for a model that thinks.
        seal: seals reasoning, where that is asked for.
        """
        self.response = initial
        """The response by now."""
        self._ids = ids
        self._custom = custom
        self._namespaces = namespaces or {}
        self._must_call = must_call
        self._numbers = _Numbers()
        self._output: list[OutputItem] = []
        self._open: OpenItem | None = None
        self._num_calls = 0
        self._is_cut = False
        self._thinking = thinking
        self._seal = seal
        self._undecided: list[TokenShown] = []  # of tokens, those that may belong to reasoning
        self._num_reasoning_tokens = 0

    def restore(self, events: Sequence[ResponseEvent], num_reasoning_tokens: int) -> None:
        """Bring a response that has not begun into the state after these events, which are all of its events so far.

        num_reasoning_tokens: the tokens of thinking among these events.
        """
        for event in events:
            match event:
                case InProgress():
                    self._change_response(status="in_progress")
                case ItemAdded(item=item):
                    self._open = self._begun(item)
                case ItemDone(item=item):
                    self._open = None
                    self._output.append(item)
                case TextDelta(delta=delta, logprobs=logprobs):
                    assert isinstance(self._open, OpenMessage)
                    self._open.add_text(delta, logprobs)
                case ReasoningDelta(delta=delta):
                    assert isinstance(self._open, OpenReasoning)
                    self._open.add_text(delta)
                case ArgumentsDelta(delta=delta):
                    assert isinstance(self._open, OpenCall)
                    self._open.write(delta)
                case InputDelta(delta=delta):
                    assert isinstance(self._open, OpenCustomCall)
                    self._open.add_text(delta)
        self._num_reasoning_tokens = num_reasoning_tokens
        self._numbers.following = len(events)

    def begin(self) -> list[ResponseEvent]:
        """Return the first events.

        A response that waits to be run in the background says so before it is in progress.
        """
        events: list[ResponseEvent] = [Created(sequence_number=self._numbers(), response=self.response)]
        if self.response.status == "queued":
            events.append(Queued(sequence_number=self._numbers(), response=self.response))
            self._change_response(status="in_progress")
        return [*events, InProgress(sequence_number=self._numbers(), response=self.response)]

    def add_reasoning(self, text: str) -> list[ResponseEvent]:
        """Return the events for more reasoning, of a server that tells it from text."""
        return self._think(text) if text else []

    def add_text(self, text: str, tokens: Sequence[TokenShown] = (), num_tokens: int = 0) -> list[ResponseEvent]:
        """Return the events for more text, or for log-probabilities without text.

        num_tokens: the response's tokens so far.
        """
        thinking = self._thinking
        if thinking is None:
            return self._write(text, [token.logprobs for token in tokens])
        self._undecided += tokens
        was_over = thinking.is_over
        parts, events = thinking.push(text), list[ResponseEvent]()
        for kind, part in parts:
            events += self._think(part) if kind == "thinking" else self._write(part, self._take_text_logprobs())
        if not parts:
            events += self._write("", self._take_text_logprobs())
        if text and not was_over:
            self._num_reasoning_tokens = num_tokens if thinking.has_thought else 0
        return events

    def call(self, new: CallDelta) -> list[ResponseEvent]:
        """Return the events for the next part of a tool call."""
        events: list[ResponseEvent] = []
        if new.name is not None:
            events += self._end_thinking()
            call_id, self._num_calls = self._ids.call(self._num_calls), self._num_calls + 1
            is_custom = new.name in self._custom
            namespace, name = self._namespaces.get(new.name, (UNSET, new.name))
            kind, prefix = (OpenCustomCall, "ctc") if is_custom else (OpenCall, "fc")
            place = self._place
            events += self._add(kind(self._ids.item(prefix, place), place, call_id, name, self._numbers, namespace))
        assert isinstance(self._open, OpenCall | OpenCustomCall)
        return events + self._open.write(new.arguments)

    def stop(self, *, is_cut: bool) -> list[ResponseEvent]:
        """Return the events that end the output. is_cut: True where a limit has ended it."""
        self._is_cut = is_cut
        events = self._end_thinking()
        has_nothing = self._open is None and not self._output
        is_thought_alone = isinstance(self._open, OpenReasoning) and not is_cut
        if (has_nothing or is_thought_alone) and not self._must_call:
            events += self._add(OpenMessage(self._ids.item("msg", self._place), self._place, self._numbers))
        return events + self._close("incomplete" if is_cut else "completed")

    def finish(
        self, usage: ResponseUsage, completed_at: int, *, is_stored: bool, is_added: bool = True
    ) -> list[ResponseEvent]:
        """Return the last event.

        is_stored, is_added: whether the response is stored by now, and added to its conversation. completed_at: the
        time of the end in Unix seconds.
        """
        common = {"output": list(self._output), "usage": self._with_reasoning_tokens(usage), "store": is_stored}
        if not is_added:
            common["conversation"] = None
        if self._is_cut:
            details = IncompleteDetails("max_output_tokens")
            self._change_response(**common, status="incomplete", incomplete_details=details)
            return [Incomplete(sequence_number=self._numbers(), response=self.response)]
        self._change_response(**common, status="completed", completed_at=completed_at)
        return [Completed(sequence_number=self._numbers(), response=self.response)]

    def fail(self, error: GatewayError, usage: ResponseUsage) -> list[ResponseEvent]:
        """Return the last events of a response that failed. The output so far stays."""
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
        self._change_response(
            output=list(self._output),
            usage=self._with_reasoning_tokens(usage),
            store=self.response.background,
            conversation=None,
            status="failed",
            error=ReplyError(_code_of(error), _reason_of(error)),
        )
        return [*events, Failed(sequence_number=self._numbers(), response=self.response)]

    def cancel(self, usage: ResponseUsage) -> list[ResponseEvent]:
        """Return the last events of a response that was cancelled. The output so far stays."""
        events = self._close("incomplete")
        self._change_response(
            output=list(self._output), usage=self._with_reasoning_tokens(usage), conversation=None, status="cancelled"
        )
        return [*events, Failed(sequence_number=self._numbers(), response=self.response)]

    def _think(self, text: str) -> list[ResponseEvent]:
        events: list[ResponseEvent] = []
        if not isinstance(self._open, OpenReasoning):
            place = self._place
            events += self._add(OpenReasoning(self._ids.item("rs", place), place, self._numbers, self._seal))
        assert isinstance(self._open, OpenReasoning)
        return events + self._open.add_text(text)

    def _write(self, text: str, logprobs: Logprobs) -> list[ResponseEvent]:
        if not text and not logprobs:
            return []
        events: list[ResponseEvent] = []
        if not isinstance(self._open, OpenMessage):
            events += self._add(OpenMessage(self._ids.item("msg", self._place), self._place, self._numbers))
        assert isinstance(self._open, OpenMessage)
        return events + self._open.add_text(text, logprobs)

    def _take_text_logprobs(self) -> Logprobs:
        """Return the log-probabilities that belong to the answer's text, once it is known where the answer begins."""
        assert self._thinking is not None
        start = self._thinking.text_start
        if start is None:
            return []
        taken, self._undecided = self._undecided, []
        return [token.logprobs for token in taken if token.start >= start]

    def _end_thinking(self) -> list[ResponseEvent]:
        """Return the events for text that was held back since it might have become reasoning, or belonged to it."""
        if self._thinking is None:
            return []
        events: list[ResponseEvent] = []
        for kind, part in self._thinking.finish():
            events += self._think(part) if kind == "thinking" else self._write(part, self._take_text_logprobs())
        return events

    def _with_reasoning_tokens(self, usage: ResponseUsage) -> ResponseUsage:
        """Return the usage as replies show it, with the tokens of reasoning."""
        num_tokens = min(self._num_reasoning_tokens, usage.output_tokens)
        return msgspec.structs.replace(usage, output_tokens_details=OutputTokensDetails(num_tokens))

    def _begun(self, item: OutputItem) -> OpenItem:
        """Return an output item as it begins, without content."""
        place, numbers = len(self._output), self._numbers
        match item:
            case MessageItem(id=id):
                return OpenMessage(id, place, numbers)
            case ReasoningItem(id=id):
                return OpenReasoning(id, place, numbers, self._seal)
            case FunctionCallItem(id=id, call_id=call_id, name=name, namespace=namespace):
                return OpenCall(id, place, call_id, name, numbers, namespace)
            case CustomToolCallItem(id=id, call_id=call_id, name=name, namespace=namespace):
                return OpenCustomCall(id, place, call_id, name, numbers, namespace)

    @property
    def num_reasoning_tokens(self) -> int:
        """The number of reasoning tokens so far."""
        return self._num_reasoning_tokens

    @property
    def _place(self) -> int:
        """The index in the output of the next item."""
        return len(self._output) + (self._open is not None)

    def _add(self, item: OpenItem) -> list[ResponseEvent]:
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

    def _change_response(self, **fields: object) -> None:
        self.response = msgspec.structs.replace(self.response, **fields)


class _Numbers:
    """The numbers of events in a stream, one after the other."""

    def __init__(self) -> None:
        self.following = 0

    def __call__(self) -> int:
        number, self.following = self.following, self.following + 1
        return number


def _code_of(error: GatewayError) -> Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]:
    """Return the code of a failure, one of the few that OpenAI's document allows."""
    if isinstance(error, LimitReached):
        return "rate_limit_exceeded"
    return "invalid_prompt" if isinstance(error, InvalidRequest) else "server_error"


def _reason_of(error: GatewayError) -> str:
    """Return the message of a failure together with the error's own code, which OpenAI's codes do not express."""
    return error.message if error.code is None else f"{error.message} ({error.code})"
