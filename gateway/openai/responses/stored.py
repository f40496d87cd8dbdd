"""GET and DELETE of stored responses, and the items of their input.

A key sees the responses of its project alone and, where it is restricted to some models, those of these models. The id
of another response gets the same 404 as an id that does not exist.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any, get_args

import msgspec
from litestar import Request, delete, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from litestar.response.base import ASGIResponse

from gateway.content.background_responses import FINAL, BackgroundResponses
from gateway.content.stored_responses import StoredResponses
from gateway.domain.errors import InvalidRequest, NotFound
from gateway.http.caller import Caller
from gateway.http.request.call import call_of
from gateway.http.shape import shape
from gateway.http.sse import open_stream
from gateway.openai.responses.background.follow import POLL_S, Followers, Following
from gateway.openai.responses.background.request import BackgroundRequest
from gateway.openai.responses.conversation import with_ids
from gateway.openai.responses.items import Item
from gateway.openai.responses.state import well_formed_response_id
from gateway.openai.responses.wire import Include, ItemList, ResponseDeleted, ResponseObject
from gateway.openai.shared.list_query import MAX_SHOWN, read_listing
from gateway.openai.shared.pages import as_list, page_of
from gateway.openai.shared.replies import json_response
from gateway.support.pace import Pace
from gateway.support.threads import maybe_in_thread

PER_S, BURST = 50.0, 200.0
DELETIONS_PER_S, DELETIONS_BURST = 5.0, 100.0
"""The most stored responses that a project may delete: each second, and at once.

Each deletion writes a row of the audit log, and an organization's rows are written one after another.
"""

CANCEL_S = 5.0
"""The most seconds for which a cancellation waits for its response to end."""

MAX_NUMBER_CHARS = 9

BYTES_PER_REQUEST = 1 << 20
"""The number of bytes read that count as one more request against a project's pace."""

INCLUDE = {"type": "array", "items": {"type": "string", "enum": list(get_args(Include))}}
QUERY: dict[str, dict[str, Any]] = {
    "include": INCLUDE,
    "stream": {"type": "boolean"},
    "starting_after": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1},
    "include_obfuscation": {"type": "boolean"},
}
ITEMS_QUERY: dict[str, dict[str, Any]] = {
    "after": {"type": "string"},
    "limit": {"type": "integer", "minimum": 1, "maximum": 100, "default": 20},
    "order": {"type": "string", "enum": ["asc", "desc"], "default": "desc"},
    "include": INCLUDE,
}

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ITEMS = msgspec.json.Decoder(list[Item])


def stored_responses(
    stored: StoredResponses, background: BackgroundResponses, followers: Followers
) -> list[HTTPRouteHandler]:
    """Return the routes of stored responses. Each project has a pace of its own, by requests and by bytes read."""
    pace = Pace(PER_S, BURST, what="stored responses")
    deletions = Pace(DELETIONS_PER_S, DELETIONS_BURST, what="deletions of stored responses")

    @get("/responses/{response_id:str}", opt=shape(reply=ResponseObject, query=QUERY))
    async def get_response(response_id: FromPath[str], request: Request[Any, Any, Any], caller: Caller) -> ASGIResponse:
        """Return a stored response, or one that runs in the background.

        The events of a response that runs in the background are returned with `stream`: all events, or those after the
        number `starting_after`, then further events as they come.
        """
        pace.take(caller.project_id)
        id, after = (
            well_formed_response_id(response_id),
            _starting_after(without_include(request.query_params.multi_items())),
        )
        if after is not None:
            followed = await background.get(caller, id)
            if followed is None:
                if await stored.get(caller, id) is None:
                    raise _no_such(response_id)
                raise InvalidRequest(
                    "'stream' must be false: this response did not run in the background.",
                    param="stream",
                    code="unsupported_value",
                )
            following = Following(followed.response, after + 1)
            return await open_stream(request, followers.follow(caller, id, after), following, following.failed)
        found = await stored.get(caller, id)
        if found is None:
            shown_now = await background.get(caller, id)
            if shown_now is None:
                raise _no_such(response_id)
            response = _FIELDS.decode(shown_now.response)
            return _json(response | {"status": shown_now.status})
        num_bytes = len(found.output) + len(found.response)
        pace.charge(caller.project_id, num_bytes / BYTES_PER_REQUEST)

        def shown() -> ASGIResponse:
            return _json(_FIELDS.decode(found.response) | {"output": msgspec.Raw(found.output)})

        return await maybe_in_thread(num_bytes, shown)

    @get("/responses/{response_id:str}/input_items", opt=shape(reply=ItemList, query=ITEMS_QUERY))
    async def list_input_items(
        response_id: FromPath[str], request: Request[Any, Any, Any], caller: Caller
    ) -> ASGIResponse:
        """List the items of a response's own input, the newest first."""
        pace.take(caller.project_id)
        asked = read_listing(without_include(request.query_params.multi_items()), known=ITEMS_QUERY, order="desc")
        id = well_formed_response_id(response_id)
        turn, kept = await stored.turn(caller, id), None
        if turn is None and (kept := await background.request(caller, id)) == b"":  # stored by now
            turn = await stored.turn(caller, id)
        if turn is None and not kept:
            raise _no_such(response_id)
        num_bytes = len(kept or b"") if turn is None else len(turn.input)
        pace.charge(caller.project_id, num_bytes / BYTES_PER_REQUEST)

        def shown() -> ASGIResponse:
            items = _items_of(kept or b"", id) if turn is None else _ITEMS.decode(turn.input)
            page, has_more = page_of(items, asked)
            return _json(as_list([(item.id, item) for item in page], has_more))

        return await maybe_in_thread(num_bytes, shown)

    @delete("/responses/{response_id:str}", status_code=200, opt=shape(reply=ResponseDeleted))
    async def delete_response(
        response_id: FromPath[str], request: Request[Any, Any, Any], caller: Caller
    ) -> ASGIResponse:
        """Delete a stored response for good. Responses that follow it cannot be continued any more.

        The audit log records the deletion.
        """
        pace.take(caller.project_id)
        deletions.take(caller.project_id)
        call, id = call_of(request.scope), well_formed_response_id(response_id)
        if not await stored.delete(caller, id, address=call.address, request_id=call.request_id):
            raise _no_such(response_id)
        return json_response(ResponseDeleted(id))

    @post("/responses/{response_id:str}/cancel", status_code=200, opt=shape(reply=ResponseObject))
    async def cancel_response(response_id: FromPath[str], caller: Caller) -> ASGIResponse:
        """Cancel a response that runs in the background: nothing more is asked of the model.

        A response that has ended stays as it is.
        """
        pace.take(caller.project_id)
        id = well_formed_response_id(response_id)
        if await background.cancel(caller, id) is None:
            if await stored.get(caller, id) is None:
                raise _no_such(response_id)
            raise InvalidRequest(
                "Only a response that was created with 'background' can be cancelled.",
                param="response_id",
                code="not_in_background",
            )
        wait_until_s = time.monotonic() + CANCEL_S
        while True:
            found = await background.get(caller, id)
            if found is None:
                raise _no_such(response_id)
            if found.status in FINAL or time.monotonic() > wait_until_s:
                return _json(_FIELDS.decode(found.response) | {"status": found.status})
            await asyncio.sleep(POLL_S)

    return [get_response, list_input_items, delete_response, cancel_response]


def _items_of(kept: bytes, id: str) -> list[Item]:
    """Return the input items of a response of which only the request is stored, in the form of stored items."""
    request = msgspec.msgpack.decode(kept, type=BackgroundRequest)
    return with_ids(request.items(), id.removeprefix("resp_"))


def without_include(params: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the query parameters without `include`, since stored items always show everything.

    Raises InvalidRequest: when a value is none of `include`.
    """
    given = list(params)
    for name, value in given:
        if name in ("include", "include[]") and value not in get_args(Include):
            raise InvalidRequest(
                f"Invalid value for 'include': '{value[:MAX_SHOWN]}'.", param="include", code="invalid_value"
            )
    return [each for each in given if each[0] not in ("include", "include[]")]


def _starting_after(params: list[tuple[str, str]]) -> int | None:
    """Return the number of the event after which a stream is to begin, -1 for all; None where no stream is asked for.

    Raises InvalidRequest: when a parameter is wrong or not known.
    """
    given = dict(params)
    for name in given:
        if name not in QUERY:
            shown = name[:MAX_SHOWN]
            raise InvalidRequest(f"Unrecognized query parameter: {shown}", param=shown, code="unknown_parameter")
    for name in ("stream", "include_obfuscation"):
        if given.get(name, "false") not in ("true", "false"):
            raise InvalidRequest(f"'{name}' must be true or false.", param=name, code="invalid_type")
    after, is_stream = given.get("starting_after"), given.get("stream") == "true"
    if after is not None and not is_stream:
        raise InvalidRequest(
            "'starting_after' needs 'stream' to be true.", param="starting_after", code="invalid_parameter_combination"
        )
    if after is not None and not (after.isascii() and after.isdigit() and len(after) <= MAX_NUMBER_CHARS):
        raise InvalidRequest(
            "'starting_after' must be the number of an event.", param="starting_after", code="invalid_value"
        )
    if not is_stream:
        return None
    return -1 if after is None else int(after)


def _json(body: dict[str, Any]) -> ASGIResponse:
    return ASGIResponse(body=msgspec.json.encode(body), media_type="application/json")


def _no_such(response_id: str) -> NotFound:
    return NotFound(f"Response with id '{response_id[:MAX_SHOWN]}' not found.", param="response_id")
