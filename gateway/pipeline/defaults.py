"""Apply the defaults of an adapter's owner to a request that leaves them open. Pure; knows no field of any API."""

from __future__ import annotations

import msgspec

from gateway.domain.adapters.defaults import NO_DEFAULTS, SAMPLING, Defaults
from gateway.pipeline.requests import Conversation, Prompt, TextRequest


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
