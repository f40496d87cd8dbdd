"""/tokenize and /detokenize as vLLM has them: structs and bounds."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.http.fields import TokenId
from gateway.openai.chat.rendering import TemplateArguments
from gateway.openai.chat.tools_wire import Tools
from gateway.openai.chat.wire import ChatMessage

MAX_TOKENS = 300_000


class TokenizeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """POST /tokenize. Either prompt, a text, or messages, which the model's chat template renders, with tools if any.
    Without a model it is the base, where there is but one.

    Special tokens are added to a prompt unless add_special_tokens is false, to messages only where it is true.
    """

    model: Annotated[str, Meta(min_length=1, max_length=512)] | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=4096)] | None = None
    tools: Tools | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: TemplateArguments | None = None


class Tokenized(msgspec.Struct, frozen=True):
    """token_strs: where they were asked for."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """POST /detokenize. model: as of `TokenizeRequest`."""

    model: Annotated[str, Meta(min_length=1, max_length=512)] | None = None
    tokens: Annotated[list[TokenId], Meta(max_length=MAX_TOKENS)]


class Detokenized(msgspec.Struct, frozen=True):
    """prompt: the text, special tokens included."""

    prompt: str
