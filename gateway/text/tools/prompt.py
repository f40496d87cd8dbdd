"""Conversations with tools, rewritten to messages that a chat template can show.

For templates that know no tools, the tools are put into words, and calls and results become text.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

from gateway.text.thinking import BEGIN, END
from gateway.text.tools.formats import CallFormat, TemplateTools
from gateway.text.tools.tool import Tool

Message = dict[str, Any]
REASONING = ("reasoning_content", "thinking", "reasoning")
"""The names under which a message may have its reasoning."""


def as_plain_messages(messages: list[Message], tools: Sequence[Tool], form: CallFormat) -> list[Message]:
    """Return messages of the roles system, user and assistant alone, which say all that the given ones do.

    The tools follow the first system message; the results of calls that were made together are one turn of the
    user's.
    """
    if not tools and not any(message["role"] == "tool" or "tool_calls" in message for message in messages):
        return messages
    plain: list[Message] = []
    for message in messages:
        if message["role"] == "tool":
            result = f"<tool_response>\n{message['content']}\n</tool_response>"
            if plain and plain[-1].get("is_result"):
                plain[-1]["content"] += f"\n{result}"
            else:
                plain.append({"role": "user", "content": result, "is_result": True})
        else:
            plain.append(_without_calls(message, form))
    if tools:
        plain = _with_description(plain, _description(tools, form))
    return [{name: value for name, value in message.items() if name != "is_result"} for message in plain]


def as_the_template_reads(messages: list[Message], template: TemplateTools) -> list[Message]:
    """Return messages with calls and results in the form of a template that knows tools."""
    messages = _with_call_ids(messages, template.format)
    if template.format.argument_pieces is not None:
        return [_with_single_arguments(message) for message in messages]
    if template.history == "content":
        return [_without_calls(message, template.format) for message in messages]
    if template.history == "pairs":
        return _in_pairs(messages)
    return _with_calls_as_metadata(messages) if template.history == "metadata" else messages


def _with_call_ids(messages: list[Message], form: CallFormat) -> list[Message]:
    """Return the messages with the ids of calls in the form that the template wants."""
    if form.id_chars is None:
        return messages
    given = []
    for message in messages:
        if "tool_call_id" in message:
            message = {**message, "tool_call_id": form.call_id(message["tool_call_id"])}
        if "tool_calls" in message:
            calls = [{**call, "id": form.call_id(call["id"])} for call in message["tool_calls"]]
            message = {**message, "tool_calls": calls}
        given.append(message)
    return given


def _with_single_arguments(message: Message) -> Message:
    """Return the message with an object as the arguments of each call.

    Arguments that are text become one argument of an object; text of white space alone becomes none.
    """
    if "tool_calls" not in message:
        return message
    calls = []
    for call in message["tool_calls"]:
        function = call["function"]
        if isinstance(function["arguments"], str):
            text = function["arguments"]
            function = {**function, "arguments": {"arguments": text} if text.strip() else {}}
        calls.append({**call, "function": function})
    return {**message, "tool_calls": calls}


def _with_calls_as_metadata(messages: list[Message]) -> list[Message]:
    """Return the messages with each call and each result as a message of its own."""
    given: list[Message] = []
    for message in messages:
        calls = message.get("tool_calls", [])
        if message["role"] == "tool":
            given.append({"role": "observation", "content": message["content"]})
        elif not calls or message["content"]:
            given.append({name: value for name, value in message.items() if name != "tool_calls"})
        for function in (call["function"] for call in calls):
            arguments = _json(function["arguments"])
            given.append({"role": message["role"], "metadata": function["name"], "content": arguments})
    return given


def _in_pairs(messages: list[Message]) -> list[Message]:
    """Return the messages with each call in a message of its own, which its result follows."""
    given: list[Message] = []
    results: dict[str, Message] = {}
    for place, message in enumerate(messages):
        if message["role"] == "tool":
            given += [message] if message["tool_call_id"] not in results else []
            continue
        message = _with_thinking_apart(message) if message["role"] == "assistant" else message
        calls = message.get("tool_calls", [])
        following = itertools.takewhile(lambda each: each["role"] == "tool", messages[place + 1 :])
        results = {each["tool_call_id"]: each for each in following} if calls else {}
        results = {call["id"]: results[call["id"]] for call in calls if call["id"] in results}
        for number, call in enumerate(calls):
            shown = message if number == 0 else {**message, "thinking": None}
            given += [{**shown, "tool_calls": [call]}, *([results[call["id"]]] if call["id"] in results else [])]
        given += [] if calls else [message]
    return given


def _with_thinking_apart(message: Message) -> Message:
    """Return an assistant's message without thinking in its content.

    Thinking before calls, and remarks there, become the field `thinking`, beside which templates take no content.
    """
    thinking, answer = _divided(message["content"])
    if "tool_calls" not in message:
        return {**message, "content": answer}
    reasoning = next((message[name] for name in REASONING if message.get(name)), "")
    parts = [part for part in (reasoning, thinking, answer if isinstance(answer, str) else "") if part.strip()]
    rest = {name: value for name, value in message.items() if name not in REASONING}
    return {**rest, "content": "", "thinking": "\n\n".join(parts) or None}


def _divided(content: Any) -> tuple[str, Any]:
    """Return the thinking at the beginning of a content, and the answer after it."""
    if not isinstance(content, str) or not (begun := content.lstrip()).startswith(BEGIN):
        return "", content
    thinking, _, answer = begun.removeprefix(BEGIN).partition(END)
    return thinking.strip(), answer.lstrip("\n")


def _without_calls(message: Message, form: CallFormat) -> Message:
    if "tool_calls" not in message:
        return message
    functions = [call["function"] for call in message["tool_calls"]]
    written = form.write([(function["name"], _json(function["arguments"])) for function in functions])
    content = message["content"]
    rest = {name: value for name, value in message.items() if name != "tool_calls"}
    return {**rest, "content": f"{content}\n{written}" if content else written}


def _with_description(messages: list[Message], description: str) -> list[Message]:
    first = messages[0] if messages else None
    if first is None or first["role"] != "system":
        return [{"role": "system", "content": description}, *messages]
    return [{**first, "content": f"{first['content']}\n\n{description}"}, *messages[1:]]


def _description(tools: Sequence[Tool], form: CallFormat) -> str:
    listed = "\n".join(_json(tool.described()) for tool in tools)
    example = form.write([("NAME", "{ARGUMENTS}")])
    return (
        f"You can call these functions:\n<tools>\n{listed}\n</tools>\n"
        f"To call one, reply with its name, and with its arguments as a JSON object:\n{example}\n"
        "The results come in the next message, inside <tool_response></tool_response>."
    )


def _json(value: object) -> str:
    """Return a value as JSON text. Arguments that are no JSON are text already."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
