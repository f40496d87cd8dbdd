"""Converts turns and blocks to a chat template's messages, and to those of the request log. Each refusal has a path."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from gateway.backends.base import Message
from gateway.content.transcript import LoggedCall, LoggedMessage
from gateway.domain.errors import InvalidRequest, shortened
from gateway.http.fields import check_depth, invalid_field, missing_field
from gateway.messages.blocks import InputBlock, ResultBlock, SystemBlock
from gateway.messages.wire import ContextManagement, MessageParam, System, ThinkingTurns

BILLING_HEADER = "x-anthropic-billing-header:"
"""The beginning of a system block by which Claude Code tells Anthropic what to bill.

The block differs with each request, so that the cache would never have the prompt after it: the block is left out.
"""

_FIELDS = {
    "text": ("text",),
    "id": ("tool_use",),
    "name": ("tool_use",),
    "input": ("tool_use",),
    "tool_use_id": ("tool_result",),
    "content": ("tool_result",),
    "is_error": ("tool_result",),
    "thinking": ("thinking",),
    "signature": ("thinking",),
    "data": ("redacted_thinking",),
}
"""The types of served blocks that may have a field, by the field's name."""

_ROLES = {
    "text": ("user", "assistant", "system"),
    "tool_use": ("assistant",),
    "tool_result": ("user",),
    "thinking": ("assistant",),
    "redacted_thinking": ("assistant",),
}

CheckSignature = Callable[[str, str, str], str]
"""A function that returns the text of a thinking block whose signature is valid.

Takes the text, the signature, and the signature's path.

Raises InvalidRequest: when the signature is not this text's.
"""


class Turns(msgspec.Struct, frozen=True):
    """A conversation in the form of chat templates."""

    messages: list[Message]
    continues: bool
    """True if the last message is the beginning of the answer."""


def template_turns(
    system: System | None,
    turns: Sequence[MessageParam],
    check_signature: CheckSignature,
    management: ContextManagement | None = None,
) -> Turns:
    """Return the messages of a conversation.

    system: the system prompt; None without one. check_signature: tells whether thinking is as this server signed it.
    management: the rule by which earlier thinking is left out; None: nothing is left out.

    Raises InvalidRequest: for images and other content that is not text, for calls without a result, results without a
    call, thinking that was changed, and a last message that the model cannot continue.
    """
    building = _Building(check_signature)
    prompt = system_text(system)
    if prompt:
        building.messages.append({"role": "system", "content": prompt})
    for place, turn in enumerate(turns):
        building.add(turn, f"messages[{place}]")
    building.check_answered("messages")
    messages = building.messages
    continues = turns[-1].role == "assistant"
    if continues:
        if not messages[-1]["content"]:
            messages.pop()  # there is nothing to go on with
            continues = False
        elif messages[-1]["content"] != messages[-1]["content"].rstrip():
            raise invalid_field("The content of the last assistant message cannot end with white space.", "messages")
    _clear_thinking(messages, management)
    return Turns(messages, continues)


def system_text(system: System | None) -> str:
    """Return the system prompt, without the block that tells Anthropic what to bill."""
    if system is None or isinstance(system, str):
        return system or ""
    return "\n\n".join(block.text for block in system if not _is_billing(block))


def logged_messages(system: System | None, turns: Sequence[MessageParam]) -> Iterator[LoggedMessage]:
    """Yield the messages of a request, for the request log.

    system: the system prompt; None without one.
    """
    if prompt := system_text(system):
        yield LoggedMessage("system", prompt)
    for turn in turns:
        if isinstance(turn.content, str):
            yield LoggedMessage(turn.role, turn.content)
            continue
        results = [block for block in turn.content if block.type == "tool_result"]
        for block in results:
            yield LoggedMessage("tool", _result(block, ""))
        texts = [block.text or block.thinking or "" for block in turn.content if block.type in ("text", "thinking")]
        calls = [
            LoggedCall(block.name or "", msgspec.json.encode(block.input or {}).decode())
            for block in turn.content
            if block.type == "tool_use"
        ]
        if texts or calls:
            yield LoggedMessage(turn.role, "\n".join(texts), calls)


class _Building:
    """The messages of a conversation, turn by turn."""

    def __init__(self, check_signature: CheckSignature) -> None:
        self.messages: list[Message] = []
        self._check_signature = check_signature
        self._unanswered: dict[str, str] = {}  # names by the ids of calls
        self._late: list[Message] = []  # system messages between calls and their results

    def add(self, turn: MessageParam, path: str) -> None:
        """Add one turn."""
        if isinstance(turn.content, str):
            blocks: Sequence[InputBlock] = [InputBlock("text", turn.content)]
            paths = [f"{path}.content"]
        else:
            blocks, paths = turn.content, [f"{path}.content[{place}]" for place in range(len(turn.content))]
        for block, where in zip(blocks, paths, strict=True):
            _check(block, turn.role, where)
        match turn.role:
            case "system":
                message = {"role": "system", "content": _text(blocks)}
                (self._late if self._unanswered else self.messages).append(message)
            case "user":
                self._add_results(blocks, paths, path)
                if any(block.type == "text" for block in blocks) or not blocks:
                    self._add_text("user", _text(blocks))
            case "assistant":
                self.check_answered(path)
                self._add_answer(blocks, paths)

    def check_answered(self, path: str) -> None:
        """Check that all calls so far have results.

        Raises InvalidRequest: when a call has no result; the error names the first one.
        """
        if self._unanswered:
            call_id = shortened(next(iter(self._unanswered)))
            raise invalid_field(
                f"The 'tool_use' block with the id '{call_id}' has no 'tool_result' block in the next message.", path
            )

    def _add_results(self, blocks: Sequence[InputBlock], paths: Sequence[str], path: str) -> None:
        """Add the results of calls, before the user's text in the same turn."""
        for block, where in zip(blocks, paths, strict=True):
            if block.type != "tool_result":
                continue
            if block.tool_use_id not in self._unanswered:
                raise invalid_field(
                    f"No 'tool_use' block of the previous message has the id '{shortened(block.tool_use_id or '')}'.",
                    f"{where}.tool_use_id",
                )
            name = self._unanswered.pop(block.tool_use_id)
            self.messages.append(
                {"role": "tool", "content": _result(block, where), "tool_call_id": block.tool_use_id, "name": name}
            )
        self.check_answered(path)
        self.messages += self._late
        self._late = []

    def _add_answer(self, blocks: Sequence[InputBlock], paths: Sequence[str]) -> None:
        message: Message = {"role": "assistant", "content": _text(blocks)}
        thoughts = []
        for block, where in zip(blocks, paths, strict=True):
            if block.type == "thinking":
                assert block.thinking is not None and block.signature is not None
                thoughts.append(self._check_signature(block.thinking, block.signature, f"{where}.signature"))
            if block.type == "tool_use":
                assert block.id is not None and block.name is not None
                if block.id in self._unanswered:
                    raise invalid_field(f"The id '{shortened(block.id)}' is used by another call.", f"{where}.id")
                self._unanswered[block.id] = block.name
                function = {"name": block.name, "arguments": block.input}
                message.setdefault("tool_calls", []).append({"id": block.id, "type": "function", "function": function})
        if thoughts:
            message["reasoning_content"] = "\n".join(thoughts)
        before = self.messages[-1] if self.messages else None
        if before is not None and before["role"] == "assistant" and "tool_calls" not in before:
            joined = "\n".join(filter(None, (before["content"], message["content"])))
            self.messages[-1] = before | message | {"content": joined}
        else:
            self.messages.append(message)

    def _add_text(self, role: str, text: str) -> None:
        """Add the text of a turn; turns of one role that follow each other are joined."""
        before = self.messages[-1] if self.messages else None
        if before is not None and before["role"] == role:
            before["content"] += f"\n{text}"
        else:
            self.messages.append({"role": role, "content": text})


def _is_billing(block: SystemBlock) -> bool:
    return block.text.startswith(BILLING_HEADER)


def _clear_thinking(messages: Sequence[Message], management: ContextManagement | None) -> None:
    """Leave out the thinking of all turns but the last ones, where that is asked for.

    management: None: nothing is left out.
    """
    edits = management.edits if management is not None else None
    for edit in edits or ():
        if edit.keep == "all":
            continue
        left = edit.keep.value if isinstance(edit.keep, ThinkingTurns) else 1
        for message in reversed(messages):
            if "reasoning_content" in message:
                if left <= 0:
                    del message["reasoning_content"]
                left -= 1


def _check(block: InputBlock, role: str, path: str) -> None:
    """Check that a block has a served type, the fields of that type, and no others."""
    if block.type not in _ROLES:
        raise InvalidRequest(
            f"Blocks of the type '{block.type}' are not supported with this model.",
            param=f"{path}.type",
            code="unsupported_value",
        )
    if role not in _ROLES[block.type]:
        raise invalid_field(f"Blocks of the type '{block.type}' do not belong to the role '{role}'.", f"{path}.type")
    for field, types in _FIELDS.items():
        if block.type not in types and getattr(block, field) is not None:
            raise invalid_field(
                f"'{path}.{field}' does not belong to blocks of the type '{block.type}'.", f"{path}.{field}"
            )
        if block.type in types and field not in ("content", "is_error", "data") and getattr(block, field) is None:
            raise missing_field(f"{path}.{field}")
    for field in ("source", "title", "context", "file_id", "server_name"):
        if getattr(block, field) is not None:
            raise invalid_field(
                f"'{path}.{field}' does not belong to blocks of the type '{block.type}'.", f"{path}.{field}"
            )
    if block.input is not None:
        check_depth(block.input, f"{path}.input")


def _text(blocks: Sequence[InputBlock]) -> str:
    """Return the text of a turn, with each block on lines of its own, as for chat messages."""
    return "\n".join(block.text for block in blocks if block.type == "text" and block.text is not None)


def _result(block: InputBlock, path: str) -> str:
    """Return the text of a tool's result."""
    content = block.content
    text = content if isinstance(content, str) else "\n".join(_result_texts(content or (), path))
    return f"Error: {text}" if block.is_error else text


def _result_texts(parts: Sequence[ResultBlock], path: str) -> Iterator[str]:
    for place, part in enumerate(parts):
        where = f"{path}.content[{place}]"
        if part.type != "text":
            raise InvalidRequest(
                f"Blocks of the type '{part.type}' are not supported with this model.",
                param=f"{where}.type",
                code="unsupported_value",
            )
        if part.text is None:
            raise missing_field(f"{where}.text")
        yield part.text
