"""The ways in which models write tool calls, as data. A chat template says which one its model was trained on.

    trigger opening call (separator call)* closing          call = before_name NAME before_arguments ARGUMENTS end

NAME has letters, digits, _ and -; ARGUMENTS is a JSON object, or each argument stands between letters of its own.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Literal

import msgspec

from engine.protocol import ArgumentPieces
from gateway.text.tools.arguments import text_arguments
from gateway.text.tools.tool import Tool


class CallFormat(msgspec.Struct, frozen=True):
    """The literal pieces of text around tool calls in one format."""

    trigger: str
    """The beginning of calls, wherever it comes in a reply; "" where calls can only be the whole reply."""
    opening: str
    before_name: str
    before_arguments: str
    end: str
    separator: str = ""
    closing: str = ""
    parallel: bool = True
    """True if one reply may have several calls."""
    argument_pieces: ArgumentPieces | None = None
    """The letters around each argument, where arguments are written one by one; None: they are a JSON object."""
    id_chars: int | None = None
    """The number of characters that a call's id must have in the template; None: any number."""

    @property
    def looks_like_json(self) -> bool:
        """True if a reply of calls alone begins like one of JSON text."""
        return not self.trigger and f"{self.opening}{self.before_name}".startswith(("{", "["))

    def head(self, name: str) -> str:
        """Return the text of a call of this tool up to its arguments."""
        return f"{self.before_name}{name}{self.before_arguments}"

    def write(self, calls: list[tuple[str, str]]) -> str:
        """Return calls as the model writes them. calls: (name, arguments) of each."""
        written = self.separator.join(f"{self.head(name)}{arguments}{self.end}" for name, arguments in calls)
        return f"{self.trigger}{self.opening}{written}{self.closing}"

    def text_arguments(self, tool: Tool) -> list[str]:
        """Return the names of a tool's arguments that are written as text instead of JSON."""
        pieces = self.argument_pieces
        return [] if pieces is None or tool.input_lark else text_arguments(tool.parameters, pieces)

    def call_id(self, given: str) -> str:
        """Return the id of a call in the form that the template takes. The same given id always makes the same id."""
        return given if self.id_chars is None else hashlib.sha256(given.encode()).hexdigest()[: self.id_chars]


HERMES = CallFormat(
    trigger="<tool_call>",
    opening="\n",
    before_name='{"name": "',
    before_arguments='", "arguments": ',
    end="}\n</tool_call>",
    separator="\n<tool_call>\n",
)
"""The format of Hermes, Qwen 2.5 and 3, which models without training on tools get as well."""

QWEN_CODER = CallFormat(
    trigger="<tool_call>",
    opening="\n",
    before_name="<function=",
    before_arguments=">\n",
    end="</function>\n</tool_call>",
    separator="\n<tool_call>\n",
    argument_pieces=ArgumentPieces("<parameter=", ">\n", "\n</parameter>\n"),
)
"""The format of Qwen3-Coder, Qwen 3.5 and 3.6."""

LLAMA = CallFormat(
    trigger="",
    opening="",
    before_name='{"name": "',
    before_arguments='", "parameters": ',
    end="}",
    parallel=False,
)
"""The format of Llama 3.1 and later for tools of the user's: the whole reply is one call."""

MISTRAL = CallFormat(
    trigger="[TOOL_CALLS]",
    opening=" [",
    before_name='{"name": "',
    before_arguments='", "arguments": ',
    end="}",
    separator=", ",
    closing="]",
    id_chars=9,
)
"""The format of Mistral 7B v0.3 to Nemo; the trigger is a special token."""

MINISTRAL = CallFormat(
    trigger="[TOOL_CALLS]",
    opening="",
    before_name="",
    before_arguments="[ARGS]",
    end="",
    separator="[TOOL_CALLS]",
    id_chars=9,
)
"""The format of Ministral 3 and Devstral Small 2; both marks are special tokens."""

GRANITE = CallFormat(
    trigger="<|tool_call|>",
    opening="[",
    before_name='{"name": "',
    before_arguments='", "arguments": ',
    end="}",
    separator=", ",
    closing="]",
)
"""The format of Granite 3; the trigger is a special token."""

GLM = CallFormat(trigger="", opening="", before_name="", before_arguments="\n", end="", parallel=False)
"""The format of GLM-4: the whole reply is the name of a function, and its arguments on the next line."""


HARMONY = CallFormat(
    trigger="<|start|>",
    opening="assistant<|channel|>commentary to=functions.",
    before_name="",
    before_arguments=" <|constrain|>json<|message|>",
    end="",
    parallel=False,
)
"""The format of a call in gpt-oss's channels, after a message that has ended; `channels` reads it."""


class TemplateTools(msgspec.Struct, frozen=True):
    """The support of a chat template for tools."""

    format: CallFormat
    is_native: bool
    """True if the template shows tools to the model by itself; else `prompt` has to."""
    history: Literal["tool_calls", "content", "metadata", "pairs"] = "tool_calls"
    """The place where a template that shows tools reads calls of earlier turns. content: calls are put into the
    content, since the template shows none by itself, as Granite 3's and SmolLM3's; metadata: each call is a message of
    its own, with the function's name in `metadata` and the arguments as the content, and each result a message of the
    role `observation`: GLM-4; pairs: each call is a message of its own, which its result follows: gpt-oss."""
    trigger_id: int | None = None
    """The id of the format's trigger, where that is a special token."""
    marks: dict[str, int] = {}
    """The ids of the special tokens in all pieces of the format but the trigger, by their text."""

    @property
    def has_special(self) -> bool:
        """True if calls have special tokens, so that a completion has to be decoded with special tokens."""
        return self.trigger_id is not None or bool(self.marks)

    def with_special(self, special: Mapping[str, int]) -> TemplateTools:
        """Return this support for tools with the ids of the special tokens that calls have.

        special: the ids of the tokenizer's special tokens, by their text.
        """
        form = self.format
        pieces = (form.opening, form.before_name, form.before_arguments, form.end, form.separator, form.closing)
        marks = {mark: token_id for mark, token_id in special.items() if any(mark in piece for piece in pieces)}
        return msgspec.structs.replace(self, trigger_id=special.get(form.trigger), marks=marks)


NO_TOOLS = TemplateTools(HERMES, is_native=False)


def template_tools(template: str | None) -> TemplateTools:
    """Return the treatment of tools by the source of a chat template.

    A template whose format is not known here counts as one that knows no tools.
    """
    if not template or not re.search(r"\b(xml_)?tools\b", template):
        return NO_TOOLS
    if "<|channel|>commentary" in template and "<|call|>" in template:
        return TemplateTools(HERMES, is_native=True, history="pairs")  # as `channels` rewrites calls
    form = _format_of(template)
    if form is None:
        return NO_TOOLS
    if form is GLM:
        return TemplateTools(form, is_native=True, history="metadata")
    return TemplateTools(form, is_native=True, history="tool_calls" if "tool_calls" in template else "content")


def _format_of(template: str) -> CallFormat | None:
    if "[ARGS]" in template:
        return MINISTRAL if MINISTRAL.trigger in template and "[CALL_ID]" not in template else None
    if MISTRAL.trigger in template:
        opening = MISTRAL.opening if "[TOOL_CALLS] " in template else MISTRAL.opening.strip()
        return msgspec.structs.replace(MISTRAL, opening=opening)
    if GRANITE.trigger in template and "<|start_of_role|>" in template:
        return GRANITE
    if "'observation'" in template and "metadata" in template:
        return GLM
    if HERMES.trigger in template:
        if "<function=" in template:
            return QWEN_CODER if "<parameter=" in template and "tool_calls" in template else None
        return HERMES if "arguments" in template else None
    return LLAMA if "ipython" in template and '"parameters": ' in template else None
