"""Chat messages from the wire to what a chat template takes: text only, each refusal with the path of the field."""

from __future__ import annotations

from gateway.api.chat_wire import ChatMessage, ContentPart
from gateway.backends.base import Message
from gateway.errors import InvalidRequest

_SERVED_ROLES = {"developer": "system", "system": "system", "user": "user", "assistant": "assistant"}
_UNSUPPORTED = ("refusal", "audio", "tool_calls", "tool_call_id", "function_call")


def template_messages(messages: list[ChatMessage]) -> list[Message]:
    """Raises InvalidRequest for what only other modalities, tools or functions could serve."""
    return [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _message(message: ChatMessage, path: str) -> Message:
    role = _SERVED_ROLES.get(message.role)
    if role is None:
        raise _unsupported(f"{path}.role", f"Messages of the role '{message.role}' are not supported with this model.")
    for field in _UNSUPPORTED:
        if getattr(message, field) not in (None, []):
            raise _unsupported(f"{path}.{field}", f"The field '{field}' is not supported with this model.")
    if message.content is None:
        raise InvalidRequest(
            f"Invalid value for '{path}.content': expected a string or a list of content parts, got null.",
            param=f"{path}.content",
            code="invalid_type",
        )
    rendered: Message = {"role": role, "content": _text(message.content, f"{path}.content")}
    if message.name is not None:
        rendered["name"] = message.name  # for templates that know what to do with it
    return rendered


def _text(content: str | list[ContentPart], path: str) -> str:
    """The text parts of a message, each on lines of its own."""
    if isinstance(content, str):
        return content
    if not content:
        raise InvalidRequest(f"Invalid value for '{path}': expected at least one content part.", param=path)
    return "\n".join(_part(part, f"{path}[{index}]") for index, part in enumerate(content))


def _part(part: ContentPart, path: str) -> str:
    if part.type != "text":
        raise _unsupported(f"{path}.type", f"Content parts of the type '{part.type}' are not supported.")
    if part.prompt_cache_breakpoint is not None:
        raise _unsupported(f"{path}.prompt_cache_breakpoint", "Prompt cache breakpoints are not supported.")
    if part.text is None:
        raise InvalidRequest(
            f"Missing required parameter: '{path}.text'.", param=f"{path}.text", code="missing_required_parameter"
        )
    return part.text


def _unsupported(param: str, message: str) -> InvalidRequest:
    return InvalidRequest(message, param=param, code="unsupported_value")
