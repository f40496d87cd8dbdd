"""The wishes of a request to the chat template: OpenAI's effort and verbosity, and vLLM's switches and arguments."""

from __future__ import annotations

from typing import Annotated, Literal, Protocol

from msgspec import Meta

from gateway.domain.errors import InvalidRequest
from gateway.text.options import Argument, Rendering

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Verbosity = Literal["low", "medium", "high"]

# Templates are the operator's: their arguments are bounded scalars. A name that a template does not read is ignored.
TemplateArguments = Annotated[
    dict[
        Annotated[str, Meta(min_length=1, max_length=64)],
        bool | Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | float | Annotated[str, Meta(max_length=1024)] | None,
    ],
    Meta(max_length=16),
]

_USUAL_EFFORTS = ("none", "medium")
"""The values of the effort with which a chat template needs no support for reasoning: OpenAI's default, and none."""


class TemplateFields(Protocol):
    """The fields that requests with messages have in common, beside the messages."""

    @property
    def add_generation_prompt(self) -> bool | None:
        """True to end the prompt with the beginning of an answer; None: as is usual."""

    @property
    def continue_final_message(self) -> bool | None:
        """True to let the answer continue the last message; None: it does not."""

    @property
    def add_special_tokens(self) -> bool | None:
        """True to add the tokenizer's special tokens to the rendered text; None: they are not added."""

    @property
    def chat_template_kwargs(self) -> TemplateArguments | None:
        """Further arguments of the chat template; None: there are none."""


def rendering(
    fields: TemplateFields,
    last_role: str,
    effort: ReasoningEffort | None = None,
    verbosity: Verbosity | None = None,
) -> Rendering:
    """Return how the chat template is to render a request whose last message has this role.

    effort, verbosity: the request's fields; None where they are absent.

    Raises InvalidRequest: when fields contradict each other, or the last message cannot be continued.
    """
    continues = bool(fields.continue_final_message)
    if continues and fields.add_generation_prompt:
        raise InvalidRequest(
            "'continue_final_message' and 'add_generation_prompt' cannot both be true.",
            param="continue_final_message",
            code="invalid_parameter_combination",
        )
    if continues and last_role != "assistant":
        raise InvalidRequest(
            "'continue_final_message' needs the last message to have the role 'assistant'.",
            param="continue_final_message",
            code="invalid_value",
        )
    arguments = template_arguments(fields.chat_template_kwargs, effort, verbosity)
    return Rendering(
        add_generation_prompt=not continues if fields.add_generation_prompt is None else fields.add_generation_prompt,
        continue_final_message=continues,
        arguments=arguments,
        add_special_tokens=bool(fields.add_special_tokens),
    )


def template_arguments(
    given: TemplateArguments | None,
    effort: ReasoningEffort | None,
    verbosity: Verbosity | None,
    *,
    effort_field: str = "reasoning_effort",
    verbosity_field: str = "verbosity",
) -> tuple[Argument, ...]:
    """Return the arguments of the chat template that a request asks for.

    effort_field, verbosity_field: the client's names of both fields, for errors. given: the client's own arguments;
    None without any. effort, verbosity: the request's fields; None where they are absent.
    """
    arguments = [
        Argument(name, value, f"chat_template_kwargs.{name}", is_optional=True)
        for name, value in (given or {}).items()
        if value is not None
    ]
    if effort is not None:
        arguments.append(Argument("reasoning_effort", effort, effort_field, effort in _USUAL_EFFORTS))
    if verbosity is not None:
        arguments.append(Argument("verbosity", verbosity, verbosity_field, verbosity == "medium"))
    return tuple(arguments)
