"""POST, GET and DELETE of conversations and of their items.

A key sees the conversations of its project alone and, where it is restricted to some models, those to which no other
model has added. The id of another conversation gets the same 404 as an id that does not exist.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
from litestar import Request, delete, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from litestar.response.base import ASGIResponse

from gateway.content.conversations import Conversation, Conversations, ItemJson, TooLong
from gateway.db.ids import new_id
from gateway.domain.errors import CONTEXT_LENGTH_EXCEEDED, InvalidRequest, NotFound
from gateway.domain.tenancy.principal import Principal
from gateway.http.bodies import Bodies, decoded
from gateway.http.caller import Caller
from gateway.http.request.call import call_of
from gateway.http.shape import shape
from gateway.openai.conversations.wire import (
    AddItems,
    ConversationDeleted,
    ConversationObject,
    CreateConversation,
    UpdateConversation,
)
from gateway.openai.responses.conversation import own_items, with_ids
from gateway.openai.responses.items import InputItem, Item
from gateway.openai.responses.state import EarlierItems, storing_not_allowed, well_formed_conversation_id
from gateway.openai.responses.stored import INCLUDE, ITEMS_QUERY, without_include
from gateway.openai.responses.wire import ItemList
from gateway.openai.shared.list_query import MAX_SHOWN, read_listing
from gateway.openai.shared.pages import as_list, unknown_cursor
from gateway.openai.shared.replies import json_response
from gateway.support.pace import Pace

PER_S, BURST = 50.0, 200.0
CHANGES_PER_S, CHANGES_BURST = 5.0, 100.0
"""The most conversations that a project may make and delete: each second, and at once.

A deletion writes a row of the audit log.
"""

BYTES_PER_REQUEST = 1 << 20
"""The number of bytes read that count as one more request against a project's pace."""

_CREATE, _UPDATE = msgspec.json.Decoder(CreateConversation), msgspec.json.Decoder(UpdateConversation)
_ADD = msgspec.json.Decoder(AddItems)
_ITEM_ID = re.compile(r"[a-z]{2,3}_[a-z2-7]{24,32}_[0-9]{1,5}")


def conversations(service: Conversations, earlier: EarlierItems, bodies: Bodies) -> list[HTTPRouteHandler]:
    """Return the routes of conversations. Each project has a pace of its own, by requests and by bytes read."""
    pace = Pace(PER_S, BURST, what="conversations")
    changes = Pace(CHANGES_PER_S, CHANGES_BURST, what="conversations that are made and deleted")

    async def decoded_items(call_id: str, caller: Principal, given: Sequence[InputItem]) -> list[Item]:
        items = own_items(given, await earlier.referenced(caller, given), "items")
        return with_ids(items, call_id.removeprefix("req_"))

    @post("/conversations", status_code=200, opt=shape(body=CreateConversation, reply=ConversationObject))
    async def create_conversation(request: Request[Any, Any, Any], caller: Caller) -> ASGIResponse:
        """Make a conversation."""
        pace.take(caller.project_id)
        changes.take(caller.project_id)
        wire = await decoded(_CREATE, await bodies.read(request, caller) or b"{}")
        if not caller.store_days:
            raise storing_not_allowed("conversations")
        items = await decoded_items(call_of(request.scope).request_id, caller, wire.items or ())
        try:
            made = await service.create(caller, new_id("conv"), wire.metadata or {}, as_json(items))
        except TooLong:
            raise too_long("items") from None
        if made is None:
            raise storing_not_allowed("conversations")
        return json_response(_conversation_wire(made))

    @get("/conversations/{conversation_id:str}", opt=shape(reply=ConversationObject))
    async def get_conversation(conversation_id: FromPath[str], caller: Caller) -> ASGIResponse:
        """Return a conversation, without its items."""
        pace.take(caller.project_id)
        return json_response(
            _conversation_wire(
                _existing_conversation(
                    await service.get(caller, well_formed_conversation_id(conversation_id)), conversation_id
                )
            )
        )

    @post(
        "/conversations/{conversation_id:str}",
        status_code=200,
        opt=shape(body=UpdateConversation, reply=ConversationObject),
    )
    async def update_conversation(
        conversation_id: FromPath[str], request: Request[Any, Any, Any], caller: Caller
    ) -> ASGIResponse:
        """Replace the metadata of a conversation."""
        pace.take(caller.project_id)
        wire = await decoded(_UPDATE, await bodies.read(request, caller))
        changed = await service.set_metadata(caller, well_formed_conversation_id(conversation_id), wire.metadata or {})
        return json_response(_conversation_wire(_existing_conversation(changed, conversation_id)))

    @delete("/conversations/{conversation_id:str}", status_code=200, opt=shape(reply=ConversationDeleted))
    async def delete_conversation(
        conversation_id: FromPath[str], request: Request[Any, Any, Any], caller: Caller
    ) -> ASGIResponse:
        """Delete a conversation with its items for good. The audit log records it."""
        pace.take(caller.project_id)
        changes.take(caller.project_id)
        call, id = call_of(request.scope), well_formed_conversation_id(conversation_id)
        if not await service.delete(caller, id, address=call.address, request_id=call.request_id):
            raise _no_such(conversation_id)
        return json_response(ConversationDeleted(id))

    @post("/conversations/{conversation_id:str}/items", status_code=200, opt=shape(body=AddItems, reply=ItemList))
    async def create_conversation_items(
        conversation_id: FromPath[str], request: Request[Any, Any, Any], caller: Caller
    ) -> ASGIResponse:
        """Add items to the end of a conversation."""
        pace.take(caller.project_id)
        wire = await decoded(_ADD, await bodies.read(request, caller))
        items = await decoded_items(call_of(request.scope).request_id, caller, wire.items)
        outcome = await service.append(caller, well_formed_conversation_id(conversation_id), as_json(items))
        if outcome == "absent":
            raise _no_such(conversation_id)
        if outcome == "too_long":
            raise too_long("items")
        return _json(as_list([(item.id, item) for item in items], has_more=False))

    @get("/conversations/{conversation_id:str}/items", opt=shape(reply=ItemList, query=ITEMS_QUERY))
    async def list_conversation_items(
        conversation_id: FromPath[str], request: Request[Any, Any, Any], caller: Caller
    ) -> ASGIResponse:
        """List the items of a conversation, the newest first."""
        pace.take(caller.project_id)
        asked = read_listing(without_include(request.query_params.multi_items()), known=ITEMS_QUERY, order="desc")
        found = await service.page(
            caller,
            well_formed_conversation_id(conversation_id),
            after=asked.after,
            order=asked.order,
            limit=asked.limit,
        )
        if found == "absent":
            raise _no_such(conversation_id)
        if found == "unknown_cursor":
            raise unknown_cursor(asked.after)
        page, has_more = found
        pace.charge(caller.project_id, sum(len(item.content) for item in page) / BYTES_PER_REQUEST)
        return _json(as_list([(item.id, msgspec.Raw(item.content)) for item in page], has_more))

    @get(
        "/conversations/{conversation_id:str}/items/{item_id:str}",
        opt=shape(reply=Item, query={"include": INCLUDE}),
    )
    async def get_conversation_item(
        conversation_id: FromPath[str], item_id: FromPath[str], request: Request[Any, Any, Any], caller: Caller
    ) -> ASGIResponse:
        """Return an item of a conversation."""
        pace.take(caller.project_id)
        for name, _ in without_include(request.query_params.multi_items()):
            name = name[:MAX_SHOWN]
            raise InvalidRequest(f"Unrecognized query parameter: {name}", param=name, code="unknown_parameter")
        found = await service.item(caller, well_formed_conversation_id(conversation_id), _well_formed_item_id(item_id))
        if found is None:
            raise _no_such_item(item_id)
        return ASGIResponse(body=found.content, media_type="application/json")

    @delete(
        "/conversations/{conversation_id:str}/items/{item_id:str}",
        status_code=200,
        opt=shape(reply=ConversationObject),
    )
    async def delete_conversation_item(
        conversation_id: FromPath[str], item_id: FromPath[str], caller: Caller
    ) -> ASGIResponse:
        """Delete an item of a conversation, and return the conversation."""
        pace.take(caller.project_id)
        found = await service.delete_item(
            caller, well_formed_conversation_id(conversation_id), _well_formed_item_id(item_id)
        )
        if found is None:
            raise _no_such_item(item_id)
        return json_response(_conversation_wire(found))

    return [
        create_conversation,
        get_conversation,
        update_conversation,
        delete_conversation,
        create_conversation_items,
        list_conversation_items,
        get_conversation_item,
        delete_conversation_item,
    ]


def as_json(items: Sequence[Item]) -> list[ItemJson]:
    """Return items in the JSON form in which a conversation stores them."""
    return [ItemJson(item.id, msgspec.json.encode(item)) for item in items]


def too_long(param: str) -> InvalidRequest:
    """Return the error for items for which a conversation has no room."""
    return InvalidRequest(
        "The conversation would be too long with these items.", param=param, code=CONTEXT_LENGTH_EXCEEDED
    )


def _conversation_wire(conversation: Conversation) -> ConversationObject:
    return ConversationObject(
        id=conversation.id, created_at=int(conversation.created_at.timestamp()), metadata=conversation.metadata
    )


def _existing_conversation(conversation: Conversation | None, asked: str) -> Conversation:
    if conversation is None:
        raise _no_such(asked)
    return conversation


def _well_formed_item_id(item_id: str) -> str:
    """Return an id if it has the form of an item's id, else "", which is no item's id."""
    return item_id if _ITEM_ID.fullmatch(item_id) else ""


def _json(body: dict[str, Any]) -> ASGIResponse:
    return ASGIResponse(body=msgspec.json.encode(body), media_type="application/json")


def _no_such(conversation_id: str) -> NotFound:
    return NotFound(f"Conversation with id '{conversation_id[:MAX_SHOWN]}' not found.", param="conversation_id")


def _no_such_item(item_id: str) -> NotFound:
    return NotFound(f"Item with id '{item_id[:MAX_SHOWN]}' not found.", param="item_id")
