"""Fill the fields that a request leaves open: by the treatment of its arm, then by the defaults of its adapter's owner.

Pure; knows no field of any API.
"""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.domain.adapters.defaults import NO_DEFAULTS, SAMPLING, Defaults
from gateway.domain.experiments.treatment import Treatment
from gateway.pipeline.requests import Conversation, Prompt, TextRequest

_MAX_TOKENS = "max_tokens"


def with_treatment(request: TextRequest, treatment: Treatment) -> tuple[TextRequest, bool]:
    """Return the request with the values that an arm sets, and whether the arm could set all of them.

    A value that fills only open fields is not set where the client gave one. Later, an adapter's defaults leave the
    arm's values as they are.
    """
    defaults, replaces = treatment.defaults, treatment.mode == "replace"
    wanted = {name: value for name in SAMPLING if (value := getattr(defaults, name)) is not None}
    chosen = {name: value for name, value in wanted.items() if replaces or name not in request.given}
    is_whole, fields = len(chosen) == len(wanted), dict[str, Any]()
    if defaults.max_tokens is not None:
        is_set = request.max_tokens is None or (replaces and request.max_tokens > 0)  # 0: no token is generated
        is_whole = is_whole and is_set
        if is_set:
            fields = {_MAX_TOKENS: None, "usual_max_tokens": defaults.max_tokens}
    if defaults.system_prompt:
        fields["prompt"] = _with_prompt(request.prompt, defaults.system_prompt, replaces=replaces)
        is_whole = is_whole and fields["prompt"] is not request.prompt
    changed = msgspec.structs.replace(
        request,
        sampling=msgspec.structs.replace(request.sampling, **chosen),
        given=request.given | chosen.keys() | (fields.keys() & {_MAX_TOKENS}),
        **fields,
    )
    return changed, is_whole


def with_defaults(request: TextRequest, defaults: Defaults) -> TextRequest:
    """Return the request with the adapter's values in the fields that the request leaves open."""
    if defaults == NO_DEFAULTS:
        return request
    chosen = {
        name: value for name in SAMPLING if name not in request.given and (value := getattr(defaults, name)) is not None
    }
    keeps_max_tokens = defaults.max_tokens is None or _MAX_TOKENS in request.given
    return msgspec.structs.replace(
        request,
        sampling=msgspec.structs.replace(request.sampling, **chosen),
        usual_max_tokens=request.usual_max_tokens if keeps_max_tokens else defaults.max_tokens,
        prompt=with_system_prompt(request.prompt, defaults),
    )


def with_system_prompt(prompt: Prompt, defaults: Defaults) -> Prompt:
    """Return a prompt, in which a conversation without a system message gets that of the adapter, if there is one."""
    if not defaults.system_prompt:
        return prompt
    return _with_prompt(prompt, defaults.system_prompt, replaces=False)


def treated_prompt(prompt: Prompt, treatment: Treatment) -> Prompt:
    """Return a prompt with an arm's system prompt, if the arm has one."""
    if not treatment.defaults.system_prompt:
        return prompt
    return _with_prompt(prompt, treatment.defaults.system_prompt, replaces=treatment.mode == "replace")


def _with_prompt(prompt: Prompt, system_prompt: str, *, replaces: bool) -> Prompt:
    """Return a conversation with a system prompt at its beginning.

    replaces: True: an existing system prompt is replaced; False: the conversation stays as it is if it has one.
    """
    if not isinstance(prompt, Conversation):
        return prompt
    others = [message for message in prompt.messages if message["role"] != "system"]
    if len(others) < len(prompt.messages) and not replaces:
        return prompt
    return msgspec.structs.replace(prompt, messages=[{"role": "system", "content": system_prompt}, *others])
