"""What a client asks the pipeline for, once its body is understood: no field's name and no bound of the API is here.

A request still holds text, and leaves open what its client did not say; `Pipeline.prepare` turns it into one the engine
understands.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from engine.protocol import SamplingParams
from gateway.backends.base import Message
from gateway.text.options import PLAIN, USUAL, Rendering, TextStyle
from gateway.text.tools.tool import ToolUse


class Conversation(msgspec.Struct, frozen=True):
    """A prompt that the model's chat template renders. tools: that the completion may call, if any."""

    messages: list[Message]
    tools: ToolUse | None = None
    rendering: Rendering = USUAL


Prompt = Conversation | str | list[int]


class FieldNames(msgspec.Struct, frozen=True):
    """What the client calls the fields that only the pipeline can find wrong."""

    prompt: str
    max_tokens: str = "max_tokens"
    n: str = "n"
    grammar: str | None = None


class TextRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Completions of one prompt, n of them.

    prediction: what the client expects the completion to be; "" is none. add_special_tokens: around a prompt of text;
    max_prompt_tokens: only so many of the prompt's last ones count, where that is a number.
    given: the fields of sampling that the client gave a value; an adapter may have its own for the others.
    max_tokens None: as many as usual_max_tokens, or as the gateway's default, where there is room; 0: the prompt alone;
    that of sampling is not looked at.
    stop: strings that end the text, style: how that is shown. weight: as in `GenerateRequest`. service_tier: what it is
    priced as.
    """

    request_id: str
    endpoint: str
    prompt: Prompt
    names: FieldNames
    stream: bool
    sampling: SamplingParams
    given: frozenset[str] = frozenset()
    max_tokens: int | None = None
    usual_max_tokens: int | None = None
    n: int = 1
    stop: tuple[str, ...] = ()
    style: TextStyle = PLAIN
    prediction: str = ""
    add_special_tokens: bool = True
    max_prompt_tokens: int | None = None
    weight: float = 1.0
    service_tier: str = "default"


class EmbeddingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One text's embedding: the pooled final hidden states. dimensions: how many of it the client wants. The rest is as
    in `TextRequest`."""

    request_id: str
    endpoint: str
    prompt: str | list[int]
    names: FieldNames
    pooling: Literal["last", "mean"]
    dimensions: int | None = None
    add_special_tokens: bool = True
    max_prompt_tokens: int | None = None
    stream: Literal[False] = False
    service_tier: str = "default"
