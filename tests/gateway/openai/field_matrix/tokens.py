"""The rows of the matrix for the fields of /tokenize and /detokenize."""

from __future__ import annotations

from typing import Any

from tests.gateway.openai.field_matrix.cases import (
    NEEDED,
    USER,
    Field,
    accepted,
    honoured,
    refused,
)
from tests.gateway.openai.field_matrix.common import BEYOND_VOCABULARY

PATH, BACK = "/tokenize", "/detokenize"
PROMPT: dict[str, Any] = {"prompt": "hello there"}
MESSAGES: dict[str, Any] = {"messages": [USER]}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f"}}


def _switch(name: str, *cases: Any, note: str = "", **beside: Any) -> Field:
    return Field(
        endpoint=PATH,
        name=name,
        valid=cases,
        null=(accepted(None, **beside),),
        wrong_type=(refused(1, **beside), refused("true", **beside)),
        note=note,
    )


def _model(endpoint: str, **beside: Any) -> Field:
    return Field(
        endpoint=endpoint,
        name="model",
        valid=(accepted("tiny", **beside),),
        invalid=(refused("", **beside), refused("gpt-4o", status=404, **beside)),
        null=(accepted(None, **beside),),
        wrong_type=(refused(1, **beside),),
        note="the base where it is left out, if there is but one",
    )


TOKENS = [
    _model(PATH, **PROMPT),
    Field(
        endpoint=PATH,
        name="prompt",
        valid=(honoured("hello", lambda seen: seen.reply["count"] == len(seen.reply["tokens"]) > 0),),
        edge=(
            honoured("a b " * 20_000, lambda seen: seen.reply["count"] > 512),
            honoured("", lambda seen: (seen.reply["count"], seen.reply["tokens"]) == (0, [])),
        ),
        invalid=(refused("hello", messages=[USER]),),
        null=NEEDED,
        wrong_type=(refused(1), refused(["hello"])),
        note="or messages; longer than the context as well",
    ),
    Field(
        endpoint=PATH,
        name="messages",
        valid=(honoured([USER], lambda seen: seen.reply["count"] > 5),),
        invalid=(refused([]), refused([{}], "messages[0].role")),
        null=(refused(None, "prompt"),),
        wrong_type=(refused("hi"), refused(1)),
    ),
    Field(
        endpoint=PATH,
        name="tools",
        valid=(honoured([TOOL], lambda seen: seen.prompt == USER["content"], **MESSAGES),),
        edge=(accepted([], **MESSAGES),),
        invalid=(refused([TOOL, TOOL], "tools[1].function.name", **MESSAGES), refused([TOOL], **PROMPT)),
        null=(accepted(None, **MESSAGES),),
        wrong_type=(refused("x", **MESSAGES), refused([3], "tools[0]", **MESSAGES)),
        note="with messages alone; in the chat template's words",
    ),
    _switch(
        "return_token_strs",
        honoured(True, lambda seen: len(seen.reply["token_strs"]) == seen.reply["count"], **PROMPT),
        honoured(False, lambda seen: seen.reply["token_strs"] is None, **PROMPT),
        **PROMPT,
    ),
    _switch("add_special_tokens", accepted(True, **PROMPT), accepted(False, **PROMPT), **PROMPT),
    _switch(
        "add_generation_prompt",
        honoured(True, lambda seen: seen.ends_for_assistant, **MESSAGES),
        honoured(False, lambda seen: not seen.ends_for_assistant, **MESSAGES),
        note="with messages alone",
        **MESSAGES,
    ),
    _switch(
        "continue_final_message",
        accepted(False, **MESSAGES),
        refused(True, **MESSAGES),
        note="with a last message of the assistant alone",
        **MESSAGES,
    ),
    Field(
        endpoint=PATH,
        name="chat_template_kwargs",
        valid=(honoured({"enable_thinking": False}, lambda seen: "enable_thinking=False" in seen.prompt, **MESSAGES),),
        edge=(accepted({"unread": 1}, **MESSAGES),),
        invalid=(
            refused({"tokenize": False}, "chat_template_kwargs.tokenize", **MESSAGES),
            refused({"enable_thinking": True}, **PROMPT),
        ),
        null=(accepted(None, **MESSAGES),),
        wrong_type=(refused([], **MESSAGES), refused("x", **MESSAGES)),
    ),
    _model(BACK),
    Field(
        endpoint=BACK,
        name="tokens",
        valid=(honoured([72, 73], lambda seen: len(seen.reply["prompt"]) >= 2),),
        edge=(honoured([], lambda seen: seen.reply["prompt"] == ""), accepted([1] * 5000)),
        invalid=(refused([-1], "tokens[0]"), refused([BEYOND_VOCABULARY], "tokens[0]")),
        null=NEEDED,
        wrong_type=(refused("72"), refused(["72"], "tokens[0]"), refused(1)),
    ),
]
