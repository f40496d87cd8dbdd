"""Converts items from a client's form to the stored and listed one, and to a chat template's messages.

Each refusal has a path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec import UNSET

from gateway.backends.base import Message
from gateway.content.transcript import LoggedCall, LoggedMessage
from gateway.domain.errors import InvalidRequest, shortened
from gateway.http.fields import invalid_field, missing_field
from gateway.http.json_work import are_too_much
from gateway.openai.responses.custom_input import arguments_of
from gateway.openai.responses.items import (
    CompactionItem,
    CustomToolCallItem,
    CustomToolCallOutputItem,
    FunctionCallItem,
    FunctionCallOutputItem,
    InputItem,
    InputPart,
    InputText,
    Item,
    MessageItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
    Refusal,
    SummaryText,
)
from gateway.openai.responses.sealed_items import Kind
from gateway.openai.responses.tools import in_namespace
from gateway.openai.shared.callable_tools import made_call

PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "cto",
    "reasoning": "rs",
    "compaction": "cmp",
}
"""The prefixes of item ids, by the type of item."""

SUMMARY = "Summary of the conversation so far:\n\n"
"""The first words of the message that the model reads in place of a compaction item."""

Open = Callable[[str, Kind, str], str]
"""A function that opens sealed content of a kind. It takes the content and its path.

Raises InvalidRequest: when the content was not sealed by this installation for the caller's use.
"""

_FIELDS = {
    "role": ("message",),
    "content": ("message", "reasoning"),
    "phase": ("message",),
    "call_id": ("function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"),
    "name": ("function_call", "function_call_output", "custom_tool_call"),
    "arguments": ("function_call",),
    "input": ("custom_tool_call",),
    "output": ("function_call_output", "custom_tool_call_output"),
    "summary": ("reasoning",),
    "encrypted_content": ("reasoning", "compaction"),
    "namespace": ("function_call", "custom_tool_call"),
    "caller": (),
}
"""The types of item that may have a field, by the field's name."""


def item_id(prefix: str, random_part: str, number: int) -> str:
    """Return the id of an item of a response.

    random_part: the random part of the response's id. number: the item's number among the response's items, from 0.
    """
    return f"{prefix}_{random_part}_{number}"


def own_items(given: str | Sequence[InputItem], resolved: Mapping[str, Item], field: str = "input") -> list[Item]:
    """Return the input of a request as items, before they get ids from this server.

    resolved: the stored items that references stand for, by their ids. field: the field that holds the items.

    Raises InvalidRequest: for items of other modalities, and for fields that do not belong to an item.
    """
    if isinstance(given, str):
        return [MessageItem("", "completed", "user", [InputText(given)])]
    items: list[Item] = []
    for number, each in enumerate(given):
        if each.type == "item_reference":
            found = resolved.get(each.id or "")
            if found is None:
                raise unstored_item(each.id, f"{field}[{number}].id")
            items.append(found)
        else:
            items.append(_item(each, f"{field}[{number}]", ""))
    return items


def is_sealed(item: Item) -> bool:
    """Tell whether an item has content that the server sealed for a client to keep."""
    return isinstance(item, CompactionItem) or (
        isinstance(item, ReasoningItem) and isinstance(item.encrypted_content, str)
    )


def with_ids(items: Sequence[Item], random_part: str) -> list[Item]:
    """Return items with ids. random_part: the random part of the id of the response whose input they are."""
    prefixes = [PREFIXES[str(item.__struct_config__.tag)] for item in items]
    return [
        msgspec.structs.replace(item, id=item_id(prefix, random_part, number))
        for number, (prefix, item) in enumerate(zip(prefixes, items, strict=True))
    ]


def unstored_item(wanted: str | None, path: str) -> InvalidRequest:
    """Return the error for a reference to an item that is not stored, whatever the reason is.

    wanted: the id of the item; None where the reference has none. path: the path of the reference.
    """
    return InvalidRequest(
        f"Item with id '{shortened(wanted or '')}' not found. Items are stored with responses, where 'store' is true "
        "and the project allows it; else send the item itself (AI SDK: providerOptions.openai.store: false).",
        param=path,
        code="item_not_found",
    )


def template_messages(
    instructions: str | None, items: Sequence[Item], num_earlier: int = 0, opened: Open | None = None
) -> list[Message]:
    """Return the messages of a conversation.

    num_earlier: the number of items that this request did not send.
    opened: opens sealed content, where there is any.
    instructions: the request's system prompt; None without one.

    Raises InvalidRequest: for calls without an output, and outputs without a call.
    """
    _check_arguments(items)
    messages: list[Message] = []
    unanswered: dict[str, str] = {}  # names by the ids of calls
    thoughts: list[str] = []  # that the next answer followed
    if instructions is not None:
        messages.append({"role": "system", "content": instructions})
    for place, item in enumerate(items):
        path = f"input[{place - num_earlier}]" if place >= num_earlier else "input"
        if isinstance(item, ReasoningItem):
            thoughts.append(_thought(item, opened, f"{path}.encrypted_content"))
            continue
        if isinstance(item, FunctionCallOutputItem | CustomToolCallOutputItem):
            if item.call_id not in unanswered:
                raise invalid_field(
                    f"No tool call found for the output with call_id '{shortened(item.call_id)}'.", f"{path}.call_id"
                )
            content = item.output if isinstance(item.output, str) else _joined(item.output)
            name = unanswered.pop(item.call_id)
            messages.append({"role": "tool", "content": content, "tool_call_id": item.call_id, "name": name})
            continue
        is_call = isinstance(item, FunctionCallItem | CustomToolCallItem)
        if unanswered and not (is_call and messages[-1]["role"] == "assistant"):
            raise _no_output(unanswered, path)
        if isinstance(item, MessageItem):
            _add_message(messages, item, merges=instructions is not None)
            _add_thoughts(messages, thoughts)
            continue
        if isinstance(item, CompactionItem):
            assert opened is not None
            summary = opened(item.encrypted_content, "compaction", f"{path}.encrypted_content")
            messages.append({"role": "user", "content": SUMMARY + summary})
            continue
        if item.call_id in unanswered:
            raise invalid_field(
                f"The call_id '{shortened(item.call_id)}' is used by another call; every call needs one of its own.",
                f"{path}.call_id",
            )
        unanswered[item.call_id] = _known_name(item)
        _add_call(messages, item, path)
        _add_thoughts(messages, thoughts)
    if unanswered:
        raise _no_output(unanswered, "input")
    return messages


def logged_items(instructions: str | None, items: Sequence[Item]) -> list[LoggedMessage]:
    """Return the messages of a request for the request log.

    Only the request's own items are returned: earlier items are in the log with the requests that sent them.

    instructions: the request's system prompt; None without one.
    """
    logged = [] if instructions is None else [LoggedMessage("system", instructions)]
    for item in items:
        match item:
            case MessageItem():
                logged.append(LoggedMessage(item.role, _joined(item.content)))
            case FunctionCallItem():
                logged.append(LoggedMessage("assistant", "", [LoggedCall(item.name, item.arguments)]))
            case CustomToolCallItem():
                logged.append(LoggedMessage("assistant", "", [LoggedCall(item.name, item.input)]))
            case CompactionItem():
                continue
            case ReasoningItem():
                logged.append(LoggedMessage("assistant", "\n".join(part.text for part in item.content)))
            case _:
                logged.append(
                    LoggedMessage("tool", item.output if isinstance(item.output, str) else _joined(item.output))
                )
    return logged


def _no_output(unanswered: dict[str, str], path: str) -> InvalidRequest:
    call_id = next(iter(unanswered))
    return invalid_field(f"No tool output found for function call {shortened(call_id)}.", path)


def _check_arguments(items: Sequence[Item]) -> None:
    """Check the arguments of calls.

    Raises InvalidRequest: for arguments that would take long to decode together.
    """
    if are_too_much([item.arguments for item in items if isinstance(item, FunctionCallItem)]):
        raise invalid_field(
            "The arguments of all function calls in 'input' together hold too many JSON values.", "input"
        )


def _add_message(messages: list[Message], item: MessageItem, *, merges: bool) -> None:
    """Add an item's message to the messages.

    merges: True: system messages that directly follow the instructions become one with them, since many templates take
    only one system message.
    """
    role = "system" if item.role == "developer" else item.role
    content = _joined(item.content)
    if merges and role == "system" and len(messages) == 1 and messages[0]["role"] == "system":
        messages[0]["content"] += f"\n\n{content}"
    else:
        messages.append({"role": role, "content": content})


def _add_call(messages: list[Message], item: FunctionCallItem | CustomToolCallItem, path: str) -> None:
    """Add a call to the assistant's message before it: the model has written both in one turn."""
    arguments = item.arguments if isinstance(item, FunctionCallItem) else arguments_of(item.input)
    call = made_call(item.call_id, _known_name(item), arguments, f"{path}.arguments")
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    messages[-1].setdefault("tool_calls", []).append(call)


def _thought(item: ReasoningItem, opened: Open | None, path: str) -> str:
    """Return the text of a model's reasoning, opened where it is sealed.

    Sealed content is opened only where there is no plain one: a stored conversation may go on with another base model,
    for which it was not sealed.
    """
    if isinstance(item.encrypted_content, str) and not item.content:
        assert opened is not None
        return opened(item.encrypted_content, "reasoning", path)
    return "\n".join(part.text for part in item.content)


def _add_thoughts(messages: list[Message], thoughts: list[str]) -> None:
    """Add reasoning to the answer that followed it, for templates that show it; drop reasoning without an answer."""
    reasoning = "\n".join(filter(None, thoughts))
    thoughts.clear()
    if reasoning and messages[-1]["role"] == "assistant":
        before = messages[-1].get("reasoning_content")
        messages[-1]["reasoning_content"] = f"{before}\n{reasoning}" if before else reasoning


def _known_name(item: FunctionCallItem | CustomToolCallItem) -> str:
    """Return the name that the model sees for the tool of a call."""
    return in_namespace(item.namespace, item.name) if isinstance(item.namespace, str) else item.name


def _item(given: InputItem, path: str, id: str) -> Item:
    """Return an item in the form in which it is stored."""
    _check_fields(given, path)
    status = given.status or "completed"
    match given.type:
        case "message":
            role = _required_field(given.role, f"{path}.role")
            content = _content(given, path)
            if given.phase is None:
                return MessageItem(id, status, cast("Any", role), content)
            return MessageItem(id, status, cast("Any", role), content, given.phase)
        case "function_call":
            arguments = _required_field(given.arguments, f"{path}.arguments")
            return FunctionCallItem(id, status, *_call_id_and_name(given, path), arguments, given.namespace or UNSET)
        case "custom_tool_call":
            text = _required_field(given.input, f"{path}.input")
            return CustomToolCallItem(id, status, *_call_id_and_name(given, path), text, given.namespace or UNSET)
        case "reasoning":
            return _reasoning(given, path, id)
        case "compaction":
            return CompactionItem(id, _required_field(given.encrypted_content, f"{path}.encrypted_content"))
    call_id = _required_field(given.call_id, f"{path}.call_id")
    if given.output is None:
        raise missing_field(f"{path}.output")
    output = given.output if isinstance(given.output, str) else _texts(given.output, f"{path}.output")
    kind = FunctionCallOutputItem if given.type == "function_call_output" else CustomToolCallOutputItem
    return kind(id, status, call_id, output)


def _check_fields(given: InputItem, path: str) -> None:
    """Check that an item has the fields of its type, and no other's."""
    for field, types in _FIELDS.items():
        if given.type not in types and getattr(given, field) is not None:
            if not types:
                raise _unsupported_field(f"{path}.{field}", f"'{path}.{field}' is not supported.")
            raise invalid_field(
                f"'{path}.{field}' does not belong to items of the type '{given.type}'.", f"{path}.{field}"
            )


def _call_id_and_name(given: InputItem, path: str) -> tuple[str, str]:
    return _required_field(given.call_id, f"{path}.call_id"), _required_field(given.name, f"{path}.name")


def _required_field(value: str | None, path: str) -> str:
    if value is None:
        raise missing_field(path)
    return value


def _content(given: InputItem, path: str) -> list[InputText | OutputText | Refusal]:
    content, is_assistant = given.content, given.role == "assistant"
    if content is None:
        raise missing_field(f"{path}.content")
    if isinstance(content, str):
        return [OutputText(content) if is_assistant else InputText(content)]
    if not content:
        raise invalid_field(f"Invalid value for '{path}.content': expected at least one part.", f"{path}.content")
    return [_part(part, f"{path}.content[{place}]", is_assistant=is_assistant) for place, part in enumerate(content)]


def _part(part: InputPart, path: str, *, is_assistant: bool) -> InputText | OutputText | Refusal:
    if part.type == "refusal" and is_assistant:
        return Refusal(_required_field(part.refusal, f"{path}.refusal"))
    if part.type == "input_text" or (part.type == "output_text" and is_assistant):
        text = _text(part, path)
        return OutputText(text) if is_assistant else InputText(text)
    if part.type in ("input_image", "input_file", "input_audio"):
        raise _unsupported_field(f"{path}.type", f"Content of the type '{part.type}' is not supported with this model.")
    raise invalid_field(f"Content of the type '{part.type}' does not belong to this item.", f"{path}.type")


def _text(part: InputPart, path: str) -> str:
    if part.prompt_cache_breakpoint is not None:
        raise _unsupported_field(f"{path}.prompt_cache_breakpoint", "Prompt cache breakpoints are not supported.")
    if part.annotations:
        raise _unsupported_field(f"{path}.annotations", "Annotations are not supported with this model.")
    return _required_field(part.text, f"{path}.text")


def _texts(parts: Sequence[InputPart], path: str) -> list[InputText]:
    texts = []
    for place, part in enumerate(parts):
        shown = _part(part, f"{path}[{place}]", is_assistant=False)
        assert isinstance(shown, InputText)
        texts.append(shown)
    return texts


def _reasoning(given: InputItem, path: str, id: str) -> ReasoningItem:
    parts = given.content if isinstance(given.content, list) else []
    if isinstance(given.content, str):
        raise invalid_field(f"'{path}.content' must be a list of parts.", f"{path}.content")
    content = [
        ReasoningText(_text_of_type(part, "reasoning_text", f"{path}.content[{place}]"))
        for place, part in enumerate(parts)
    ]
    summary = [
        SummaryText(_text_of_type(part, "summary_text", f"{path}.summary[{place}]"))
        for place, part in enumerate(given.summary or ())
    ]
    sealed = UNSET if given.encrypted_content is None else given.encrypted_content
    return ReasoningItem(id, given.status or "completed", summary, content, sealed)


def _text_of_type(part: InputPart, wanted: str, path: str) -> str:
    if part.type != wanted:
        raise invalid_field(f"'{path}.type' must be '{wanted}', not '{part.type}'.", f"{path}.type")
    return _text(part, path)


def _joined(parts: Sequence[InputText | OutputText | Refusal]) -> str:
    """Return the text of content parts, each on lines of its own, as for chat messages."""
    return "\n".join(part.refusal if isinstance(part, Refusal) else part.text for part in parts)


def _unsupported_field(param: str, message: str) -> InvalidRequest:
    return InvalidRequest(message, param=param, code="unsupported_value")
