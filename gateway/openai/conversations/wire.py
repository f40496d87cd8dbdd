"""Conversations as OpenAI's clients send and expect them."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gateway.http.fields import Metadata
from gateway.openai.responses.items import InputItem

MAX_ADDED = 20
"""The most items that one request may add."""

AddedItems = Annotated[list[InputItem], Meta(max_length=MAX_ADDED)]


class CreateConversation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of POST /v1/conversations."""

    items: AddedItems | None = None
    """The items that the conversation begins with."""
    metadata: Metadata | None = None


class UpdateConversation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """New metadata of a conversation."""

    metadata: Metadata | None
    """The metadata that replaces the old one; null removes all."""


class AddItems(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Items that are added to a conversation."""

    items: AddedItems


class ConversationObject(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation, without the items."""

    id: str
    object: Literal["conversation"] = "conversation"
    created_at: int
    metadata: dict[str, str]


class ConversationDeleted(msgspec.Struct, frozen=True):
    """The reply to a deletion of a conversation."""

    id: str
    deleted: bool = True
    object: Literal["conversation.deleted"] = "conversation.deleted"
