"""What a request may say to a chat template besides its messages: scalars, under names that the template itself reads.

Templates are the operator's, arguments any tenant's: names that mean something to whoever renders are nobody's to set.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Sequence

import jinja2
import jinja2.meta
from transformers import PreTrainedTokenizerFast

from gateway.domain.errors import InvalidRequest
from gateway.text.options import Argument, TemplateValue

_EFFORT, _THINKS = "reasoning_effort", "enable_thinking"
_RESERVED = frozenset({"raise_exception", "strftime_now", "messages"})
_GENERATION = re.compile(
    r"\{%-?\s*(end)?generation\s*-?%\}"
)  # transformers' own tag, which jinja2 alone does not parse


def known_arguments(fast: PreTrainedTokenizerFast) -> frozenset[str]:
    """The names of arguments that a tokenizer's chat template reads."""
    template = fast.chat_template or ""
    source = _GENERATION.sub("", "".join(template.values()) if isinstance(template, dict) else template)
    environment = jinja2.Environment(extensions=["jinja2.ext.loopcontrols"], autoescape=True)  # parsed, never rendered
    read = jinja2.meta.find_undeclared_variables(environment.parse(source))
    given = {*environment.globals, *inspect.signature(fast.apply_chat_template).parameters}
    return frozenset(each for each in read - given - _RESERVED if not each.endswith(("_token", "_special_tokens")))


def chosen(arguments: Sequence[Argument], known: Collection[str]) -> dict[str, TemplateValue]:
    """By name. Raises InvalidRequest for one that the template does not read, unless its value changes nothing."""
    values: dict[str, TemplateValue] = {}
    for each in arguments:
        if each.name in known:
            values[each.name] = each.value
        elif each.name == _EFFORT and each.value == "none" and _THINKS in known:
            values[_THINKS] = False
        elif not each.is_usual:
            raise InvalidRequest(
                f"The field '{each.field}' is not supported with this model: its chat template does not read it.",
                param=each.field,
                code="unsupported_parameter",
            )
    return values
