"""Converts chat messages to those of a chat template: text and tool calls. Each refusal has a path."""

from __future__ import annotations

from typing import Any

from gateway.backends.base import Message
from gateway.domain.errors import InvalidRequest
from gateway.http.fields import invalid_field, missing_field
from gateway.http.json_work import are_too_much
from gateway.openai.chat.tools_wire import FunctionCallParam, ToolCallParam
from gateway.openai.chat.wire import ChatMessage, ContentPart
from gateway.openai.shared.callable_tools import made_call

_ROLES = {"developer": "system", "function": "tool"}
"""The roles that chat templates know by another name, with that name."""

_LEGACY_ID = "function_call"
"""The id that tool calls in the older form get here, since they have none. Only one of them is open at a time."""

_FIELDS_OF = {
    "refusal": "assistant",
    "annotations": "assistant",
    "tool_calls": "assistant",
    "function_call": "assistant",
    "tool_call_id": "tool",
    "reasoning_content": "assistant",
}


def template_messages(messages: list[ChatMessage]) -> list[Message]:
    """Return messages in the form of chat templates.

    The arguments of a call are an object, or a text if they are not one.

    Raises InvalidRequest: when a part is of another modality than text, or results and calls do not belong together.
    """
    _check_arguments(messages)
    rendered = []
    unanswered: dict[str, str] = {}  # names by the ids of calls
    for index, message in enumerate(messages):
        path = f"messages[{index}]"
        _check_fields(message, path)
        if message.role == "tool":
            _check_answers(message, path, unanswered)
        else:
            _check_answered(unanswered, path)
        given = _message(message, path)
        if message.role == "tool":
            given["name"] = unanswered.pop(given["tool_call_id"])
        rendered.append(given)
        for number, call in enumerate(message.tool_calls or ()):
            if call.id in unanswered:
                raise invalid_field(
                    f"The id '{call.id}' is used by another tool call; every call needs an id of its own.",
                    f"{path}.tool_calls[{number}].id",
                )
            unanswered[call.id] = given["tool_calls"][number]["function"]["name"]
    _check_answered(unanswered, "messages")
    return rendered


def _check_arguments(messages: list[ChatMessage]) -> None:
    """Check the arguments of calls.

    Raises InvalidRequest: for arguments that would take long to decode together.
    """
    calls = [call.function for message in messages for call in message.tool_calls or () if call.function is not None]
    calls += [message.function_call for message in messages if message.function_call is not None]
    if are_too_much([call.arguments for call in calls]):
        raise invalid_field(
            "The arguments of all tool calls in 'messages' together hold too many JSON values.", "messages"
        )


def _message(message: ChatMessage, path: str) -> Message:
    rendered: Message = {"role": _ROLES.get(message.role, message.role), "content": _content(message, path)}
    if message.name is not None:
        rendered["name"] = message.name  # for templates that know what to do with it
    if message.reasoning_content:
        rendered["reasoning_content"] = message.reasoning_content
    if rendered["role"] == "tool":
        rendered["tool_call_id"] = message.tool_call_id or _LEGACY_ID
    if message.tool_calls:
        rendered["tool_calls"] = [
            _call(call, f"{path}.tool_calls[{index}]") for index, call in enumerate(message.tool_calls)
        ]
    if message.function_call is not None:
        rendered["tool_calls"] = [_function(_LEGACY_ID, message.function_call, f"{path}.function_call")]
    return rendered


def _check_fields(message: ChatMessage, path: str) -> None:
    """Check that a message has the fields of its role, and no other role's."""
    for field, role in _FIELDS_OF.items():
        says_nothing = (None, "") if field == "reasoning_content" else (None, [])
        if message.role != role and getattr(message, field) not in says_nothing:
            raise invalid_field(f"'{path}.{field}' belongs to messages of the role '{role}'.", f"{path}.{field}")
    if message.audio is not None:
        raise _unsupported_field(f"{path}.audio", "Audio is not supported with this model.")
    if message.annotations:
        raise _unsupported_field(f"{path}.annotations", "Annotations are not supported with this model.")
    if message.role == "function" and message.name is None:
        raise missing_field(f"{path}.name")
    if message.role == "tool" and message.tool_call_id is None:
        raise missing_field(f"{path}.tool_call_id")
    if message.tool_calls and message.function_call is not None:
        raise invalid_field(
            f"'{path}' has both 'tool_calls' and 'function_call'; send one of them.", f"{path}.function_call"
        )


def _check_answers(message: ChatMessage, path: str, unanswered: dict[str, str]) -> None:
    if message.tool_call_id not in unanswered:
        raise invalid_field(
            f"'{path}.tool_call_id' does not match any unanswered call in 'tool_calls' of a preceding message.",
            f"{path}.tool_call_id",
        )


def _check_answered(unanswered: dict[str, str], path: str) -> None:
    if unanswered:
        raise invalid_field(
            "A message with 'tool_calls' must be followed by a message of the role 'tool' for each 'tool_call_id'. "
            f"These calls have no such message: {', '.join(unanswered)}.",
            path,
        )


def _call(call: ToolCallParam, path: str) -> dict[str, Any]:
    if call.type != "function" or call.custom is not None:
        raise _unsupported_field(f"{path}.type", "Calls of custom tools are not supported.")
    if call.function is None:
        raise missing_field(f"{path}.function")
    return _function(call.id, call.function, f"{path}.function")


def _function(call_id: str, function: FunctionCallParam, path: str) -> dict[str, Any]:
    return made_call(call_id, function.name, function.arguments, f"{path}.arguments")


def _content(message: ChatMessage, path: str) -> str:
    """Return the text of a message.

    The text of an assistant's message may include a refusal, and may be empty where the message has tool calls.
    """
    if message.refusal is None:
        return _content_text(message, path)
    if message.content is None:
        return message.refusal
    return "\n".join(filter(None, (_content_text(message, path), message.refusal)))


def _content_text(message: ChatMessage, path: str) -> str:
    content = message.content
    is_without_text = message.tool_calls or message.function_call is not None or message.reasoning_content
    if content is None and message.role == "assistant" and is_without_text:
        return ""
    if content is None and message.role == "function":
        return ""
    if content is None:
        raise InvalidRequest(
            f"Invalid value for '{path}.content': expected a string or a list of content parts, got null.",
            param=f"{path}.content",
            code="invalid_type",
        )
    if isinstance(content, str):
        return content
    if not content:
        raise InvalidRequest(
            f"Invalid value for '{path}.content': expected at least one content part.",
            param=f"{path}.content",
            code="invalid_value",
        )
    # Each on lines of its own.
    return "\n".join(_part(part, f"{path}.content[{index}]", message.role) for index, part in enumerate(content))


def _part(part: ContentPart, path: str, role: str) -> str:
    is_refusal = part.type == "refusal" and role == "assistant"
    if part.type != "text" and not is_refusal:
        raise _unsupported_field(f"{path}.type", f"Content parts of the type '{part.type}' are not supported.")
    if part.prompt_cache_breakpoint is not None:
        raise _unsupported_field(f"{path}.prompt_cache_breakpoint", "Prompt cache breakpoints are not supported.")
    text = part.refusal if is_refusal else part.text
    if text is None:
        raise missing_field(f"{path}.{part.type}")
    return text


def _unsupported_field(param: str, message: str) -> InvalidRequest:
    return InvalidRequest(message, param=param, code="unsupported_value")
