"""What an adapter's owner wants of requests that do not say otherwise. Pure; knows no field of the API by its name."""

from __future__ import annotations

import msgspec

from gateway.requests import Conversation, Prompt, TextRequest


class Defaults(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """None: what holds without an adapter. Bounds are those of `engine.protocol.SamplingParams`.

    max_tokens: how many a request gets that names no number, where there is room. system_prompt: the first message of
    a conversation without a system message.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    max_tokens: int | None = None
    system_prompt: str | None = None


NO_DEFAULTS = Defaults()

SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)
"""The fields that are `SamplingParams`' as well."""


def with_defaults(request: TextRequest, defaults: Defaults) -> TextRequest:
    """The request, and what it leaves open as the adapter has it."""
    if defaults == NO_DEFAULTS:
        return request
    chosen = {
        name: value for name in SAMPLING if name not in request.given and (value := getattr(defaults, name)) is not None
    }
    return msgspec.structs.replace(
        request,
        sampling=msgspec.structs.replace(request.sampling, **chosen),
        usual_max_tokens=request.usual_max_tokens if defaults.max_tokens is None else defaults.max_tokens,
        prompt=with_system_prompt(request.prompt, defaults),
    )


def with_system_prompt(prompt: Prompt, defaults: Defaults) -> Prompt:
    """A conversation without a system message gets the adapter's, if that has one."""
    if not defaults.system_prompt or not isinstance(prompt, Conversation):
        return prompt
    if any(message["role"] == "system" for message in prompt.messages):
        return prompt
    messages = [{"role": "system", "content": defaults.system_prompt}, *prompt.messages]
    return msgspec.structs.replace(prompt, messages=messages)
