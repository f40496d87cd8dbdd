"""The arguments of a request to a chat template, besides its messages: scalars, under names that the template reads.

Templates are the operator's, arguments any tenant's: names that the renderer uses cannot be set. A name that the
template does not read never reaches the template.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gateway.domain.errors import InvalidRequest
from gateway.text.options import Argument, TemplateValue
from gateway.text.template_environment import GLOBALS

_EFFORT, _THINKS = "reasoning_effort", "enable_thinking"
_RENDERERS = frozenset(
    {
        *("add_generation_prompt", "chat_template", "continue_final_message", "conversation", "documents", "kwargs"),
        *("max_length", "messages", "padding", "return_assistant_tokens_mask", "return_dict", "return_tensors"),
        *("sanitize_control_tokens", "self", "tokenize", "tokenizer_kwargs", "tools", "truncation", "xml_tools"),
    }
)
"""Variables that every template gets, and parameters of transformers' `apply_chat_template`: reserved names."""
_RESERVED = GLOBALS | _RENDERERS


def is_reserved(name: str) -> bool:
    """Tell whether a name means something to the renderer or to every template, so that no request may set it."""
    return name in _RESERVED or name.endswith(("_token", "_special_tokens"))


def known_arguments(arguments: Sequence[Argument], known: Collection[str]) -> dict[str, TemplateValue]:
    """Return the arguments that a template gets, by name. known: the names that the template reads.

    Raises InvalidRequest: for a reserved name, and for a name that the template does not read where the argument is
    neither optional nor at its usual value.
    """
    values: dict[str, TemplateValue] = {}
    for each in arguments:
        if is_reserved(each.name):
            raise InvalidRequest(
                f"'{each.field}' cannot be set: the server itself gives '{each.name}' to chat templates.",
                param=each.field,
                code="invalid_value",
            )
        if each.name in known:
            values[each.name] = each.value
        elif each.name == _EFFORT and each.value == "none" and _THINKS in known:
            values[_THINKS] = False
        elif not (each.is_usual or each.is_optional):
            raise InvalidRequest(
                f"The field '{each.field}' is not supported with this model: its chat template does not read it.",
                param=each.field,
                code="unsupported_parameter",
            )
    return values
