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
    """The body of POST /tokenize: either a prompt, or messages."""

    model: Annotated[str, Meta(min_length=1, max_length=512)] | None = None
    """The model; the base model where there is only one and this is left out."""
    prompt: str | None = None
    """The text to tokenize."""
    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=4096)] | None = None
    """Messages, which the model's chat template renders."""
    tools: Tools | None = None
    """Tools, which the chat template renders with the messages."""
    add_special_tokens: bool | None = None
    """True if special tokens are added: by default to a prompt, and not to messages."""
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: TemplateArguments | None = None


class Tokenized(msgspec.Struct, frozen=True):
    """The tokens of a text."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None
    """The text of each token, with `return_token_strs`."""


class DetokenizeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The body of POST /detokenize."""

    model: Annotated[str, Meta(min_length=1, max_length=512)] | None = None
    """The model; the base model where there is only one and this is left out."""
    tokens: Annotated[list[TokenId], Meta(max_length=MAX_TOKENS)]


class Detokenized(msgspec.Struct, frozen=True):
    """The text of tokens."""

    prompt: str
    """The text, special tokens included."""
