"""The chunks of a reply in OpenAI's protocol, as many servers send them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from engine.protocol import FinishReason
from gateway.backends.foreign.errors import NO_ERROR, check_event
from gateway.backends.foreign.reply import AnotherModel, BadReply, Event, Part, ReplyRefused, ReportedUsage
from gateway.backends.generation import Generation
from gateway.text.tools.parser import CallDelta
from gateway.text.tools.tool import MAX_PARALLEL_CALLS

_FINISH: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "stop",
    "function_call": "stop",
    "eos_token": "stop",
    "stop_sequence": "stop",
}
"""Reasons that servers give for the end of a choice. Any other reason is a failure, or refuses the reply."""

MAX_PARTS = 128
"""Parts of one choice, and pieces of calls, that one chunk may have."""

_FAILURES = frozenset({"error", "abort"})
"""Finish reasons by which servers say that they failed."""


class _Function(msgspec.Struct, frozen=True):
    """The new part of the function of a call."""

    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct, frozen=True):
    """The new part of a tool call."""

    index: int = 0
    function: _Function | None = None


class _Delta(msgspec.Struct, frozen=True):
    """The part of a choice that is new."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct, frozen=True):
    """One choice of a chunk."""

    index: int = 0
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class _Details(msgspec.Struct, frozen=True):
    """Details of the prompt's tokens."""

    cached_tokens: int | None = None


class _CompletionDetails(msgspec.Struct, frozen=True):
    """Details of the completion's tokens."""

    reasoning_tokens: int | None = None


class Usage(msgspec.Struct, frozen=True):
    """The usage as a chunk has it."""

    prompt_tokens: int = 0
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _CompletionDetails | None = None


class _Chunk(msgspec.Struct, frozen=True):
    """One chunk of a stream, with only the fields that are read."""

    model: str | None = None
    choices: list[_Choice] = []
    usage: Usage | None = None
    error: msgspec.Raw = NO_ERROR


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


class ChunkReader:
    """Reads the chunks of one reply."""

    def __init__(self, generation: Generation, adapter: str = "") -> None:
        """Prepare to read a reply.

        adapter: the digest with which the name of the replying model has to end; "" for any name.
        """
        self._adapter = adapter
        self._num_choices = generation.request.n
        tools = generation.tools
        self._names = frozenset[str]() if tools is None else tools.callable_names
        self._num_calls = [0] * self._num_choices

    def read(self, data: bytes) -> Event:
        """Read one chunk, or `[DONE]`, which ends the reply."""
        if data == b"[DONE]":
            return Event(is_end=True)
        try:
            chunk = _decode_chunk(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise BadReply("an event is no chunk") from None
        if chunk.error is not NO_ERROR:
            check_event(chunk.error)
        choices = chunk.choices
        if self._adapter and choices and not (chunk.model or "").endswith(self._adapter):
            raise AnotherModel("its reply is of another model than the adapter that was asked for")
        usage = None if chunk.usage is None else reported_usage(chunk.usage)
        if len(choices) == 1:
            return Event([self._part(choices[0])], usage)
        check_parts(choices, self._num_choices)
        return Event([self._part(each) for each in choices], usage)

    def _part(self, choice: _Choice) -> Part:
        if not 0 <= choice.index < self._num_choices:
            raise BadReply("a chunk is of a choice that was not asked for")
        reason = None if choice.finish_reason is None else finish_of(choice.finish_reason)
        delta = choice.delta
        if delta is None:
            return Part(choice.index, choice.text or "", finish_reason=reason)
        return Part(
            choice.index,
            delta.content or "",
            delta.reasoning_content or delta.reasoning or "",
            self._calls(choice.index, delta.tool_calls) if delta.tool_calls else (),
            finish_reason=reason,
        )

    def _calls(self, index: int, calls: list[_Call]) -> tuple[CallDelta, ...]:
        """Return the calls that a chunk begins or goes on with, each checked against the tools that may be called."""
        check_parts(calls)
        found = []
        for call in calls:
            function = call.function or _Function()
            known = self._num_calls[index]
            if call.index == known and function.name:
                if function.name not in self._names or known >= MAX_PARALLEL_CALLS:
                    raise ReplyRefused("it calls a tool that it may not call")
                self._num_calls[index] = known + 1
                found.append(CallDelta(call.index, function.name, function.arguments or ""))
            elif known > 0 and call.index == known - 1:
                found.append(CallDelta(call.index, None, function.arguments or ""))
            else:
                raise BadReply("its calls of tools are not in order")
        return tuple(found)


def check_parts(parts: Sequence[object], num_choices: int = 1) -> None:
    """Check the number of parts of a chunk.

    Raises BadReply: when there are more than a chunk with this many choices needs.
    """
    if len(parts) > MAX_PARTS * num_choices:
        raise BadReply("a chunk has too many parts")


def finish_of(reason: str | None) -> FinishReason | None:
    """Return the finish reason of a choice as this gateway knows it; None where the choice goes on.

    Raises BadReply: when the server says that it failed.
    Raises ReplyRefused: for any other reason that is not known, such as a filter's.
    """
    if reason is None:
        return None
    found = _FINISH.get(reason)
    if found is None and reason in _FAILURES:
        raise BadReply("a choice ended since the server failed")
    if found is None:
        raise ReplyRefused("a choice ended for a reason that is not known")
    return found


def reported_usage(usage: Usage | None) -> ReportedUsage | None:
    """Return the usage that a chunk reports, if it reports one."""
    if usage is None or usage.completion_tokens is None:
        return None
    cached, made = usage.prompt_tokens_details, usage.completion_tokens_details
    return ReportedUsage(
        usage.prompt_tokens,
        usage.completion_tokens,
        (cached.cached_tokens or 0) if cached else 0,
        (made.reasoning_tokens or 0) if made else 0,
    )
