"""Tool calls in the replies of chat completions, whole and streamed, in the shape that the client knows."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from gateway.openai.chat.tools_wire import FunctionCall, FunctionCallDelta, ToolCall, ToolCallDelta
from gateway.openai.chat.wire import AssistantMessage, ChatDelta
from gateway.openai.shared.replies import call_id
from gateway.text.tools.parser import CallDelta


class CallShape(msgspec.Struct, frozen=True):
    """The form in which the tool calls of one reply are shown."""

    request_id: str
    is_legacy: bool
    """True: calls are shown as `function_call`, OpenAI's older form."""
    is_named: bool
    """True: the client named the tool, so that its call is a regular end of the completion (`stop`)."""
    must_call: bool = False
    """True: the completion consists of tool calls, so that no text is its content."""

    def finish_reason(self, reason: str, *, has_calls: bool) -> str:
        """Return OpenAI's finish reason for the engine's. A client that named the tool gets `stop`, as from OpenAI.

        has_calls: True if the choice has called a tool.
        """
        if reason != "stop" or not has_calls or self.is_named:
            return reason
        return "function_call" if self.is_legacy else "tool_calls"

    def call_id(self, choice: int, index: int) -> str:
        """Return the id of a tool call. choice: the choice's number. index: the call's number in the choice."""
        return call_id(self.request_id, choice, index)

    def message(self, choice: int, text: str, deltas: Iterable[CallDelta], reasoning: str = "") -> AssistantMessage:
        """Return the whole message of a choice. reasoning: the reasoning before the text; "" for none."""
        calls = _whole_calls(deltas)
        content = text if text or not (calls or self.must_call) else None
        message = AssistantMessage(content, reasoning_content=reasoning or msgspec.UNSET)
        if not calls:
            return message
        if self.is_legacy:
            return msgspec.structs.replace(message, function_call=calls[0])
        return msgspec.structs.replace(
            message, tool_calls=[ToolCall(self.call_id(choice, index), call) for index, call in enumerate(calls)]
        )

    def delta(self, choice: int, new: CallDelta) -> ChatDelta:
        """Return the part of a call that one chunk shows: first its name alone, then arguments as they come."""
        function = FunctionCallDelta(new.arguments, msgspec.UNSET if new.name is None else new.name)
        if self.is_legacy:
            return ChatDelta(function_call=function)
        if new.name is None:
            return ChatDelta(tool_calls=[ToolCallDelta(new.index, function)])
        return ChatDelta(tool_calls=[ToolCallDelta(new.index, function, self.call_id(choice, new.index), "function")])


def _whole_calls(deltas: Iterable[CallDelta]) -> list[FunctionCall]:
    names: list[str] = []
    arguments: list[str] = []
    for delta in deltas:
        if delta.name is not None:
            names.append(delta.name)
            arguments.append("")
        arguments[-1] += delta.arguments
    return [FunctionCall(*call) for call in zip(names, arguments, strict=True)]
