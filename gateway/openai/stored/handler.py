"""GET, POST and DELETE of stored chat completions, and the way in which `store` makes one.

A key sees the completions of its project alone and, where it is restricted to some models, those of these models. The
id of another completion gets the same 404 as an id that does not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from litestar import Request, delete, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from litestar.response.base import ASGIResponse

from gateway.content.stored_chats import Chat, ListQuery, StoredChat, StoredChats
from gateway.domain.errors import InvalidRequest, NotFound
from gateway.domain.tenancy.principal import Principal
from gateway.http.bodies import Bodies
from gateway.http.caller import Caller
from gateway.http.fields import decode
from gateway.http.request.call import call_of
from gateway.http.shape import shape
from gateway.openai.chat.wire import ChatCompletion
from gateway.openai.shared.list_query import Listing, read_listing
from gateway.openai.shared.pages import as_list, page_of, unknown_cursor
from gateway.openai.shared.replies import json_response, request_of
from gateway.openai.stored.wire import (
    ChatCompletionDeleted,
    StoredChatCompletion,
    StoredChatList,
    StoredMessage,
    StoredMessageList,
    UpdateChatCompletion,
)
from gateway.support.pace import Pace
from gateway.support.threads import maybe_in_thread

PER_S, BURST = 50.0, 200.0
DELETIONS_PER_S, DELETIONS_BURST = 5.0, 100.0
"""The most stored completions that a project may delete: each second, and at once.

Each deletion writes a row of the audit log, and an organization's rows are written one after another.
"""

BYTES_PER_REQUEST = 1 << 20
"""The number of bytes read that count as one more request against a project's pace."""

MAX_SHOWN = 64
"""The most characters of a wrong id that an error repeats."""

LIST_QUERY: dict[str, dict[str, Any]] = {
    "after": {"type": "string"},
    "limit": {"type": "integer", "minimum": 1, "maximum": 100, "default": 20},
    "order": {"type": "string", "enum": ["asc", "desc"], "default": "asc"},
}
CHATS_QUERY: dict[str, dict[str, Any]] = LIST_QUERY | {
    "model": {"type": "string"},
    "metadata": {"type": "object", "additionalProperties": {"type": "string"}},
}

_UPDATE = msgspec.json.Decoder(UpdateChatCompletion)


_NULL = msgspec.Raw(b"null")


class _StoredFields(msgspec.Struct):
    """The parts of a request that are stored as its client wrote them: messages, and fields that replies show."""

    messages: msgspec.Raw
    temperature: msgspec.Raw = _NULL
    top_p: msgspec.Raw = _NULL
    presence_penalty: msgspec.Raw = _NULL
    frequency_penalty: msgspec.Raw = _NULL
    seed: msgspec.Raw = _NULL
    tools: msgspec.Raw = _NULL
    tool_choice: msgspec.Raw = _NULL
    response_format: msgspec.Raw = _NULL


_STORED_FIELDS = msgspec.json.Decoder(_StoredFields)
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_MESSAGES = msgspec.json.Decoder(list[dict[str, Any]])


def check_store(caller: Principal, wanted: bool | None) -> None:
    """Check that the project allows `store`.

    wanted: the request's field `store`; None where it is absent.

    Raises InvalidRequest: when the request asks for `store` and the project does not allow it.
    """
    if wanted and not caller.store_days:
        raise InvalidRequest(
            "This project does not allow completions to be stored: 'store' must be false.",
            param="store",
            code="store_not_allowed",
        )


async def store_chat(
    chats: StoredChats, caller: Principal, body: bytes, metadata: Mapping[str, str] | None, reply: ChatCompletion
) -> None:
    """Store a reply with the messages and options of its request's body.

    A failure is only logged, and the time that this takes is bounded.

    metadata: the request's pairs; None without any.
    """
    asked = msgspec.structs.asdict(_STORED_FIELDS.decode(body))
    messages = asked.pop("messages")
    chat = Chat(
        id=reply.id,
        model=reply.model,
        metadata=metadata or {},
        messages=bytes(messages),
        reply=msgspec.json.encode(asked | _FIELDS.decode(msgspec.json.encode(reply))),
    )
    await chats.store(caller.project_id, chat)


def stored_chats(chats: StoredChats, bodies: Bodies) -> list[HTTPRouteHandler]:
    """Return the routes of stored completions. Each project has a pace of its own, by requests and by bytes read."""
    pace = Pace(PER_S, BURST, what="stored completions")
    deletions = Pace(DELETIONS_PER_S, DELETIONS_BURST, what="deletions of stored completions")

    async def replied(caller: Principal, num_bytes: int, work: Callable[[], ASGIResponse]) -> ASGIResponse:
        pace.charge(caller.project_id, num_bytes / BYTES_PER_REQUEST)
        return await maybe_in_thread(num_bytes, work)

    @get("/chat/completions", opt=shape(reply=StoredChatList, query=CHATS_QUERY))
    async def list_chat_completions(request: Request[Any, Any, Any], caller: Caller) -> ASGIResponse:
        """List the stored chat completions, the oldest first."""
        pace.take(caller.project_id)
        asked = read_listing(request.query_params.multi_items(), known=CHATS_QUERY)
        query = ListQuery(
            after=asked.after, limit=asked.limit, order=asked.order, model=asked.model, metadata=asked.metadata
        )
        found = await chats.list_page(caller, query)
        if found is None:
            raise unknown_cursor(asked.after)
        page, has_more = found
        num_bytes = sum(len(chat.reply) for chat in page)
        return await replied(
            caller, num_bytes, lambda: _json(as_list([(chat.id, _chat_wire(chat)) for chat in page], has_more))
        )

    @get("/chat/completions/{completion_id:str}", opt=shape(reply=StoredChatCompletion))
    async def get_chat_completion(completion_id: FromPath[str], caller: Caller) -> ASGIResponse:
        """Return a stored chat completion."""
        pace.take(caller.project_id)
        found = await chats.get(caller, completion_id)
        if found is None:
            raise _no_such(completion_id)
        return await replied(caller, len(found.reply), lambda: _json(_chat_wire(found)))

    @get("/chat/completions/{completion_id:str}/messages", opt=shape(reply=StoredMessageList, query=LIST_QUERY))
    async def list_chat_completion_messages(
        completion_id: FromPath[str], request: Request[Any, Any, Any], caller: Caller
    ) -> ASGIResponse:
        """List the messages of a stored chat completion's request."""
        pace.take(caller.project_id)
        asked = read_listing(request.query_params.multi_items(), known=LIST_QUERY)
        found = await chats.messages(caller, completion_id)
        if found is None:
            raise _no_such(completion_id)
        return await replied(caller, len(found), lambda: _messages_page(completion_id, found, asked))

    @post(
        "/chat/completions/{completion_id:str}",
        status_code=200,
        opt=shape(body=UpdateChatCompletion, reply=StoredChatCompletion),
    )
    async def update_chat_completion(
        completion_id: FromPath[str], request: Request[Any, Any, Any], caller: Caller
    ) -> ASGIResponse:
        """Replace the metadata of a stored chat completion."""
        pace.take(caller.project_id)
        wanted = decode(_UPDATE, await bodies.read(request, caller))
        changed = await chats.set_metadata(caller, completion_id, wanted.metadata or {})
        if changed is None:
            raise _no_such(completion_id)
        return await replied(caller, len(changed.reply), lambda: _json(_chat_wire(changed)))

    @delete("/chat/completions/{completion_id:str}", status_code=200, opt=shape(reply=ChatCompletionDeleted))
    async def delete_chat_completion(
        completion_id: FromPath[str], request: Request[Any, Any, Any], caller: Caller
    ) -> ASGIResponse:
        """Delete a stored chat completion for good. The audit log records it."""
        pace.take(caller.project_id)
        deletions.take(caller.project_id)
        call = call_of(request.scope)
        if not await chats.delete(caller, completion_id, address=call.address, request_id=call.request_id):
            raise _no_such(completion_id)
        return json_response(ChatCompletionDeleted(completion_id))

    return [
        list_chat_completions,
        get_chat_completion,
        list_chat_completion_messages,
        update_chat_completion,
        delete_chat_completion,
    ]


def _chat_wire(chat: StoredChat) -> dict[str, Any]:
    """Return a stored chat completion in the shape of a reply, whatever fields it had when it was stored."""
    fields: dict[str, Any] = dict(_FIELDS.decode(chat.reply))
    return fields | {"metadata": chat.metadata, "request_id": request_of(chat.id)}


def _messages(chat_id: str, messages: bytes) -> list[StoredMessage]:
    shown = []
    for index, message in enumerate(_MESSAGES.decode(messages)):
        content = message.pop("content", None)
        known = {name: message[name] for name in StoredMessage.__struct_fields__ if name in message}
        parts = content if isinstance(content, list) else None
        text = content if isinstance(content, str) else None
        shown.append(StoredMessage(**known | {"id": f"{chat_id}-{index}", "content": text, "content_parts": parts}))
    return shown


def _messages_page(chat_id: str, messages: bytes, asked: Listing) -> ASGIResponse:
    """Return a page of messages.

    Raises InvalidRequest: when no message has the id `after`.
    """
    page, has_more = page_of(_messages(chat_id, messages), asked)
    return _json(as_list([(message.id, message) for message in page], has_more))


def _json(body: dict[str, Any]) -> ASGIResponse:
    return ASGIResponse(body=msgspec.json.encode(body), media_type="application/json")


def _no_such(chat_id: str) -> NotFound:
    return NotFound(f"There is no stored chat completion with the id '{chat_id[:MAX_SHOWN]}'.", param="completion_id")
