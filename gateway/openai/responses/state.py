"""Stored responses: the items that a request continues, and the part of its reply that is stored.

Knows items, not their rows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from gateway.content.conversations import Conversations, ItemJson
from gateway.content.stored_responses import MAX_REFERRED, Response, StoredResponses, Turn
from gateway.domain.errors import CONTEXT_LENGTH_EXCEEDED, InvalidRequest, shortened
from gateway.domain.tenancy.principal import Principal
from gateway.http.bodies import Bodies
from gateway.openai.responses.conversation import Open, is_sealed, with_ids
from gateway.openai.responses.items import InputItem, Item
from gateway.openai.responses.sealed_items import SealedItems
from gateway.openai.responses.wire import ConversationParam, ConversationRef, CreateResponse, ResponseObject
from gateway.pipeline.context import RequestContext
from gateway.pipeline.pipeline import Pipeline
from gateway.support.pace import Pace
from gateway.support.threads import maybe_in_thread

READS_PER_S, READS_BURST = 200.0, 1000.0
"""The most requests of a project that continue stored responses, in one gateway: each second, and at once."""

MAX_EARLIER_ITEMS = 16_384
"""The most stored items that a request may continue: the work on each of them delays other requests."""

_RESPONSE_ID = re.compile(r"resp_[a-z2-7]{24,32}")
_ITEM_ID = re.compile(r"[a-z]{2,3}_(?P<random_part>[a-z2-7]{24,32})_[0-9]{1,5}")
_CONVERSATION_ID = re.compile(r"conv_[a-z2-7]{24}")
_ITEM = msgspec.json.Decoder(Item)
_ITEMS = msgspec.json.Decoder(list[Item])


def well_formed_response_id(response_id: str) -> str:
    """Return a text if it has the form of a response's id, else "", which is no response's id."""
    return response_id if _RESPONSE_ID.fullmatch(response_id) else ""


def well_formed_conversation_id(conversation_id: str) -> str:
    """Return a text if it has the form of a conversation's id, else "", which is no conversation's id."""
    return conversation_id if _CONVERSATION_ID.fullmatch(conversation_id) else ""


def conversation_id_of(conversation: ConversationParam | None) -> str | None:
    """Return the id of the conversation that a request names; None where it names none."""
    return conversation.id if isinstance(conversation, ConversationRef) else conversation


def is_to_be_stored(caller: Principal, wanted: bool | None) -> bool:
    """Tell whether a response is to be stored. wanted: the request's `store`; None leaves it to the project.

    Raises InvalidRequest: when the project does not allow what is wanted.
    """
    if wanted and not caller.store_days:
        raise storing_not_allowed("responses to be stored: 'store' must be false", "store")
    return bool(caller.store_days) if wanted is None else wanted


def storing_not_allowed(what: str, param: str | None = None) -> InvalidRequest:
    """Return the error for a request to store content that the project does not allow to be stored.

    what: the content in words. param: the field at fault; None for none.
    """
    return InvalidRequest(
        f"This project does not allow {what}. An operator allows it with `lorikeet tenant modify NAME --store-days N`.",
        param=param,
        code="store_not_allowed",
    )


async def content_opener(
    pipeline: Pipeline, caller: Principal, model: str, items: Sequence[Item], sealed: SealedItems
) -> Open | None:
    """Return the function that opens the sealed content of a request to a model; None where there is none.

    Raises ModelNotFound: when the caller may use no such model.
    """
    if not any(is_sealed(item) for item in items):
        return None
    base = await base_of(pipeline, caller, model)
    return lambda content, kind, path: sealed.open(content, caller.project_id, base, kind, path)


async def base_of(pipeline: Pipeline, caller: Principal, model: str) -> str:
    """Return the base that a model stands for, to which sealed content is bound.

    Raises ModelNotFound: when the caller may use no such model.
    """
    return await pipeline.base(RequestContext(principal=caller, request_id="", model=model, endpoint=""))


def items_of(turn: Turn) -> list[Item]:
    """Return the items of a turn, those of its input first."""
    return _ITEMS.decode(turn.input) + _ITEMS.decode(turn.output)


class EarlierItems:
    """The stored items that requests continue, of all projects. A gateway process has one."""

    def __init__(
        self, stored: StoredResponses, conversations: Conversations, bodies: Bodies, sealed: SealedItems
    ) -> None:
        self.sealed = sealed
        self._stored = stored
        self._conversations = conversations
        self._bodies = bodies
        self._pace = Pace(READS_PER_S, READS_BURST, what="requests that go on from stored responses")

    async def items(
        self, caller: Principal, response_id: str | None, conversation: ConversationParam | None
    ) -> list[Item]:
        """Return the items of the conversation that a request names, or of the response that it follows.

        The items of a followed response begin with those of all responses before it.

        Raises InvalidRequest: when there is no such conversation or response, or no longer; the words are the same for
        both.
        Raises LimitReached: when the project reads more than its pace allows.
        """
        if conversation is None:
            return await self._chain_items(caller, response_id)
        if response_id is not None:
            raise InvalidRequest(
                "'previous_response_id' and 'conversation' cannot be used together.",
                param="conversation",
                code="invalid_parameter_combination",
            )
        self._pace.take(caller.project_id)
        asked = conversation_id_of(conversation) or ""
        items_json = await self._conversations.items(caller, well_formed_conversation_id(asked))
        if items_json is None:
            raise InvalidRequest(
                f"Conversation with id '{shortened(asked)}' not found.",
                param="conversation",
                code="conversation_not_found",
            )
        if len(items_json) > MAX_EARLIER_ITEMS:
            raise _too_long("conversation")
        num_bytes = sum(len(each.content) for each in items_json)
        self._bodies.charge(caller, num_bytes)
        return await maybe_in_thread(num_bytes, lambda: [_ITEM.decode(each.content) for each in items_json])

    def charge(self, caller: Principal, num_bytes: int) -> None:
        """Count bytes of stored items against the request's pace, as if its client had sent them."""
        self._bodies.charge(caller, num_bytes)

    async def add(self, caller: Principal, conversation_id: str, own: Sequence[Item], whole: ResponseObject) -> bool:
        """Add a response's input and output to its conversation. Return whether they are in it."""
        items = [*with_ids(own, whole.id.removeprefix("resp_")), *whole.output]
        items_json = [ItemJson(item.id, msgspec.json.encode(item)) for item in items]
        return await self._conversations.add_answer(caller, conversation_id, items_json, model=whole.model)

    async def _chain_items(self, caller: Principal, response_id: str | None) -> list[Item]:
        if response_id is None:
            return []
        self._pace.take(caller.project_id)
        followed = await self._stored.chain(caller, well_formed_response_id(response_id))
        if followed.is_too_long:
            raise _too_long("previous_response_id")
        if followed.turns is None:
            raise InvalidRequest(
                f"Previous response with id '{shortened(response_id)}' not found.",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        items = await self._items(caller, followed.turns)
        if len(items) > MAX_EARLIER_ITEMS:
            raise _too_long("previous_response_id")
        return items

    async def referenced(self, caller: Principal, given: str | Sequence[InputItem]) -> dict[str, Item]:
        """Return the stored items that references in the input refer to, by their ids; missing ones are left out.

        Raises InvalidRequest: for references to the items of too many responses.
        """
        wanted = [item for item in given if item.type == "item_reference"] if not isinstance(given, str) else []
        if not wanted:
            return {}
        self._pace.take(caller.project_id)
        ids = sorted(
            {f"resp_{found['random_part']}" for each in wanted if (found := _ITEM_ID.fullmatch(each.id or ""))}
        )
        if len(ids) > MAX_REFERRED:
            raise InvalidRequest(
                f"The input refers to items of more than {MAX_REFERRED} responses.", param="input", code="invalid_value"
            )
        turns = await self._stored.turns(caller, ids)
        return {item.id: item for item in await self._items(caller, turns)}

    async def _items(self, caller: Principal, turns: Sequence[Turn]) -> list[Item]:
        num_bytes = sum(len(turn.input) + len(turn.output) for turn in turns)
        self._bodies.charge(caller, num_bytes)
        return await maybe_in_thread(num_bytes, lambda: [item for turn in turns for item in items_of(turn)])


def _too_long(param: str) -> InvalidRequest:
    return InvalidRequest(
        f"The conversation that '{param}' leads to is too long to be gone on with.",
        param=param,
        code=CONTEXT_LENGTH_EXCEEDED,
    )


def stored_form(wire: CreateResponse, own: Sequence[Item], whole: ResponseObject) -> Response:
    """Return a response in the form in which it is stored. own: the items that the request itself sent."""
    return Response(
        id=whole.id,
        model=whole.model,
        parent_id=wire.previous_response_id,
        input=msgspec.json.encode(with_ids(own, whole.id.removeprefix("resp_"))),
        output=msgspec.json.encode(whole.output),
        response=msgspec.json.encode(msgspec.structs.replace(whole, output=[])),
    )
