"""The ways in which models write tool calls, as data. A chat template says which one its model was trained on.

    trigger opening call (separator call)* closing          call = before_name NAME before_arguments ARGUMENTS end

NAME has letters, digits, _ and -; ARGUMENTS is a JSON object.
"""

from __future__ import annotations

import hashlib
import re

import msgspec


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
    id_chars: int | None = None
    """The number of characters that a call's id must have in the template; None: any number."""

    def head(self, name: str) -> str:
        """Return the text of a call of this tool up to its arguments."""
        return f"{self.before_name}{name}{self.before_arguments}"

    def write(self, calls: list[tuple[str, str]]) -> str:
        """Return calls as the model writes them. calls: (name, arguments) of each."""
        written = self.separator.join(f"{self.head(name)}{arguments}{self.end}" for name, arguments in calls)
        return f"{self.trigger}{self.opening}{written}{self.closing}"

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


class TemplateTools(msgspec.Struct, frozen=True):
    """The support of a chat template for tools."""

    format: CallFormat
    is_native: bool
    """True if the template shows tools to the model by itself; else `prompt` has to."""
    shows_calls: bool = True
    """False if a template that shows tools shows no calls of earlier turns, as Granite 3's and SmolLM3's: they are put
    into the content."""
    trigger_id: int | None = None
    """The id of the format's trigger, where that is a special token."""


NO_TOOLS = TemplateTools(HERMES, is_native=False)


def template_tools(template: str | None) -> TemplateTools:
    """Return the treatment of tools by the source of a chat template.

    A template whose format is not known here counts as one that knows no tools.
    """
    if not template or not re.search(r"\b(xml_)?tools\b", template):
        return NO_TOOLS
    form = _format_of(template)
    return NO_TOOLS if form is None else TemplateTools(form, is_native=True, shows_calls="tool_calls" in template)


def _format_of(template: str) -> CallFormat | None:
    if "[TOOL_CALLS]" in template and "[ARGS]" not in template:
        opening = MISTRAL.opening if "[TOOL_CALLS] " in template else MISTRAL.opening.strip()
        return msgspec.structs.replace(MISTRAL, opening=opening)
    if GRANITE.trigger in template and "<|start_of_role|>" in template:
        return GRANITE
    if HERMES.trigger in template:
        return HERMES if "arguments" in template and "<function=" not in template else None
    return LLAMA if "ipython" in template and '"parameters": ' in template else None
