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
        prompt=_instructed(request.prompt, defaults.system_prompt) if defaults.system_prompt else request.prompt,
    )


def _instructed(prompt: Prompt, system_prompt: str) -> Prompt:
    if not isinstance(prompt, Conversation) or any(message["role"] == "system" for message in prompt.messages):
        return prompt
    return Conversation([{"role": "system", "content": system_prompt}, *prompt.messages])
