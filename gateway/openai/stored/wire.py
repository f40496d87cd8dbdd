"""Stored chat completions as OpenAI's clients read and change them."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from gateway.http.fields import Metadata
from gateway.openai.chat.wire import ChatCompletion


class StoredChatCompletion(ChatCompletion, frozen=True, kw_only=True):
    """A stored reply, with its metadata and with fields of its request.

    A field of the request is null where the request left it to the server, and absent where an older gateway stored the
    reply.
    """

    metadata: dict[str, str]
    request_id: str
    temperature: float | UnsetType | None = UNSET
    top_p: float | UnsetType | None = UNSET
    presence_penalty: float | UnsetType | None = UNSET
    frequency_penalty: float | UnsetType | None = UNSET
    seed: int | UnsetType | None = UNSET
    tools: list[Any] | UnsetType | None = UNSET
    tool_choice: Any = UNSET
    response_format: dict[str, Any] | UnsetType | None = UNSET


class StoredChatList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of stored chat completions."""

    object: Literal["list"] = "list"
    data: list[StoredChatCompletion]
    first_id: str | None
    last_id: str | None
    has_more: bool


class StoredMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a stored request."""

    id: str
    role: str
    content: str | None = None
    """The text; null where the message came in parts."""
    refusal: str | None = None
    content_parts: list[Any] | None = None
    """The parts of the content, where the message came in parts."""
    name: str | msgspec.UnsetType | None = msgspec.UNSET
    tool_calls: list[Any] | msgspec.UnsetType | None = msgspec.UNSET
    tool_call_id: str | msgspec.UnsetType | None = msgspec.UNSET
    function_call: Any = msgspec.UNSET


class StoredMessageList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of the messages of a stored chat completion."""

    object: Literal["list"] = "list"
    data: list[StoredMessage]
    first_id: str | None
    last_id: str | None
    has_more: bool


class UpdateChatCompletion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """New metadata of a stored completion."""

    metadata: Metadata | None
    """The metadata that replaces the old one; null removes all."""


class ChatCompletionDeleted(msgspec.Struct, frozen=True):
    """The reply to a deletion of a stored chat completion."""

    id: str
    deleted: bool = True
    object: Literal["chat.completion.deleted"] = "chat.completion.deleted"
