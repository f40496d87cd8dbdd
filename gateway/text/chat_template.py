"""A model's chat template: conversations to prompts, as transformers' `apply_chat_template` makes them.

Knows no tokens and no errors of an API.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import Template, nodes
from jinja2.meta import find_undeclared_variables

from gateway.text.template_environment import ENVIRONMENT
from gateway.text.tools.prompt import REASONING

Message = dict[str, Any]
Sources = str | Mapping[str, str]
"""The source of a chat template, or the sources of several by name: `default` and `tool_use`."""

TOOLS = frozenset({"tools", "xml_tools"})
"""The variables in which templates read the tools of a request: `tools` in most, `xml_tools` in SmolLM3's."""
_END_OF_CONTINUED = "CONTINUE_FINAL_MESSAGE_TAG "  # its last space tells whether the template keeps spaces


class ChatTemplate:
    """The compiled chat templates of one model. Rendering is thread-safe."""

    def __init__(self, sources: Sources, special_tokens: Mapping[str, str]) -> None:
        """Compile chat templates.

        special_tokens: the tokens that templates read as `bos_token`, `eos_token` and the like.

        Raises TemplateSyntaxError: when a source is no template.
        """
        self._special_tokens = dict(special_tokens)
        by_name = {"default": sources} if isinstance(sources, str) else sources
        parsed = {name: ENVIRONMENT.parse(source) for name, source in by_name.items()}
        self.reads = frozenset[str]().union(*map(find_undeclared_variables, parsed.values()))
        """The names of variables that any of the templates reads."""
        self._templates = {name: (by_name[name], _compile_template(tree)) for name, tree in parsed.items()}

    def render(
        self,
        messages: Sequence[Message],
        tools: list[dict[str, Any]] | None = None,
        *,
        add_generation_prompt: bool,
        continue_final_message: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt of a conversation. Messages and tools are plain values of JSON and stay as they are.

        tools: None: none may be called. add_generation_prompt: True: the prompt ends with the beginning of an answer.
        continue_final_message: True: the prompt ends within the last message. arguments: further variables of the
        template; None: none.

        Raises TemplateError: when the template raises it, or reads an undefined value.
        Raises ValueError: when there is no message, or the last message cannot be continued.
        """
        if not messages:
            raise ValueError("there must be at least one message")
        source, template = self._choose_template(tools)
        shown = [_template_message(message) for message in messages]
        if continue_final_message:
            return self._render_up_to_last_content(
                source, template, shown, tools, add_generation_prompt, arguments or {}
            )
        return self._render_messages(template, shown, tools, add_generation_prompt, arguments or {})

    def _choose_template(self, tools: list[dict[str, Any]] | None) -> tuple[str, Template]:
        found = self._templates.get("tool_use") if tools is not None else None
        found = found or self._templates.get("default")
        if found is None:
            raise ValueError(f"the model has no default template; it has {', '.join(sorted(self._templates))}")
        return found

    def _render_messages(
        self,
        template: Template,
        messages: list[Message],
        tools: list[dict[str, Any]] | None,
        add_generation_prompt: bool,
        arguments: Mapping[str, Any],
    ) -> str:
        return template.render(
            {
                "messages": messages,
                **dict.fromkeys(TOOLS, tools),
                "documents": None,
                "add_generation_prompt": add_generation_prompt,
                **self._special_tokens,
                **arguments,
            }
        )

    def _render_up_to_last_content(
        self,
        source: str,
        template: Template,
        messages: list[Message],
        tools: list[dict[str, Any]] | None,
        add_generation_prompt: bool,
        arguments: Mapping[str, Any],
    ) -> str:
        """Return the prompt up to the end of the last message's content.

        The end is found by a mark that is put behind the content before it is rendered.

        tools, add_generation_prompt, arguments: as for `render`.
        """
        if add_generation_prompt:
            raise ValueError("a prompt cannot continue the last message and begin another one")
        content = messages[-1].get("content")
        if content is None or "content" not in source:
            raise ValueError("the last message has no content to continue, or the template shows none")
        marked: Any = None
        if isinstance(content, str):
            marked = content + _END_OF_CONTINUED
        else:
            content, marked = _with_mark(content)
        rendered = self._render_messages(
            template, [*messages[:-1], {**messages[-1], "content": marked}], tools, False, arguments
        )
        mark = _END_OF_CONTINUED.strip()
        if content.strip() not in rendered or mark not in rendered:
            raise ValueError("the template does not show the last message as it is, so it cannot be continued")
        end = rendered.rindex(mark)
        keeps_spaces = rendered.startswith(_END_OF_CONTINUED, end)
        return rendered[:end] if keeps_spaces else rendered[:end].rstrip()


def _compile_template(tree: nodes.Template) -> Template:
    template = ENVIRONMENT.from_string(tree)
    template.globals = dict(template.globals)  # each rendering copies them, a plain dictionary in half of the time
    return template


def _template_message(message: Message) -> Message:
    """Return a message as templates read it: without null values, with its reasoning under the usual names."""
    shown = {name: value for name, value in message.items() if value is not None}
    reasoning = next((shown[name] for name in REASONING if name in shown), None)
    if reasoning is not None:
        shown = {"thinking": reasoning, **shown, "reasoning_content": reasoning}
    return shown


def _with_mark(parts: list[dict[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
    """Return the text of a message's last text part, and all parts of the message with a mark behind that text."""
    for place in range(len(parts) - 1, -1, -1):
        if "text" in parts[place]:
            text = parts[place]["text"]
            return text, [*parts[:place], {**parts[place], "text": text + _END_OF_CONTINUED}, *parts[place + 1 :]]
    raise ValueError("the last message has no text to continue")
