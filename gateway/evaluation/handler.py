"""The routes of feedback. A key sees the votes of its project alone; another project's is the same 404 as none."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Request, delete, get, post
from litestar.di import Provide
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from litestar.response.base import ASGIResponse

from gateway.db.experiments.feedback.votes import VoteRow
from gateway.domain.errors import InvalidRequest, NotFound
from gateway.domain.experiments.feedback.votes import MILLION
from gateway.evaluation.query import QUERY, read_query
from gateway.evaluation.votes import Votes
from gateway.evaluation.wire import (
    CreateFeedback,
    Feedback,
    FeedbackAccepted,
    FeedbackAcceptedList,
    FeedbackDeleted,
    FeedbackList,
    Vote,
)
from gateway.http.bodies import Bodies, decoded
from gateway.http.caller import Caller
from gateway.http.fields import missing_field
from gateway.http.request.call import call_of
from gateway.http.shape import Example, shape
from gateway.support.pace import Pace

VOTES_PER_S, VOTES_BURST = 2_000.0, 10_000.0
"""The votes per second, and at once, that one project may send to one gateway."""
READS_PER_S, READS_BURST = 50.0, 200.0

_CREATE = msgspec.json.Decoder(CreateFeedback)
_ONE = tuple(name for name in CreateFeedback.__struct_fields__ if name != "data")
_EXAMPLE = Example(
    body={"completion_id": "chatcmpl-q5vkp3zq2m6xw7dd4yhtc3eaabcdefgh", "metric": "thumbs_up", "value": True},
    reply={"object": "feedback", "id": "fb_f3zq2m6xw7dd4yhtc3eaq5vk", "replaced": False},
)


def feedback(votes: Votes, bodies: Bodies, *, may_post: Provide) -> list[HTTPRouteHandler]:
    """Return the routes. Each project has a pace of its own for votes, by their number and bytes, and one for reading.

    may_post: gives the caller of a request that votes; for other requests, the router does.
    """
    posting, reading = Pace(VOTES_PER_S, VOTES_BURST, what="feedback"), Pace(READS_PER_S, READS_BURST, what="feedback")

    @post(
        "/feedback",
        status_code=200,
        dependencies={"caller": may_post},
        opt=shape(body=CreateFeedback, reply=FeedbackAccepted | FeedbackAcceptedList, example=_EXAMPLE),
    )
    async def create_feedback(request: Request[Any, Any, Any], caller: Caller) -> ASGIResponse:
        """Say how good a reply was, or what came of it.

        A body has a vote, or up to 1,000 in `data`, of which all are kept or none. The answer comes once they are on
        disk. If one source votes several times about one thing by one metric, the latest vote counts.
        """
        posting.take(caller.project_id)
        asked = await decoded(_CREATE, await bodies.read(request, caller))
        listed = _listed(asked)
        posting.charge(caller.project_id, len(listed) - 1)
        accepted = await votes.add(caller.project_id, listed, many=asked.data is not None)
        if asked.data is None:
            call_of(request.scope).fields = log_fields(asked)
        return _json(accepted[0] if asked.data is None else FeedbackAcceptedList(data=accepted))

    @get("/feedback", opt=shape(reply=FeedbackList, query=QUERY))
    async def list_feedback(request: Request[Any, Any, Any], caller: Caller) -> ASGIResponse:
        """List the votes that count, by the time at which they came."""
        reading.take(caller.project_id)
        query, unit = read_query(request.query_params.multi_items())
        page, has_more = await votes.list_page(caller.project_id, query, unit)
        shown = [_feedback_wire(row, comment) for row, comment in page]
        ids = [each.id for each in shown]
        return _json(
            FeedbackList(
                data=shown, first_id=ids[0] if ids else None, last_id=ids[-1] if ids else None, has_more=has_more
            )
        )

    @get("/feedback/{feedback_id:str}", opt=shape(reply=Feedback))
    async def get_feedback(feedback_id: FromPath[str], caller: Caller) -> ASGIResponse:
        """Return a vote that counts."""
        reading.take(caller.project_id)
        found = await votes.get(caller.project_id, feedback_id)
        if found is None:
            raise _no_such()
        return _json(_feedback_wire(*found))

    @delete("/feedback/{feedback_id:str}", status_code=200, opt=shape(reply=FeedbackDeleted))
    async def delete_feedback(feedback_id: FromPath[str], caller: Caller) -> ASGIResponse:
        """Withdraw a vote, which then counts no more."""
        reading.take(caller.project_id)
        if not await votes.withdraw(caller.project_id, feedback_id):
            raise _no_such()
        return _json(FeedbackDeleted(feedback_id))

    return [create_feedback, list_feedback, get_feedback, delete_feedback]


def log_fields(vote: Vote) -> dict[str, str | float]:
    """Return the fields of the log line of a request with one vote, with OpenTelemetry's names for evaluations.

    Neither the unit nor the comment is among them.
    """
    fields: dict[str, str | float] = {"gen_ai.evaluation.name": vote.metric}
    if isinstance(vote.value, str):
        fields["gen_ai.evaluation.score.label"] = vote.value
    else:
        fields["gen_ai.evaluation.score.value"] = float(vote.value)
    return fields | {"gen_ai.response.id": vote.completion_id} if vote.completion_id is not None else fields


def _listed(asked: CreateFeedback) -> list[Vote]:
    """Return the votes of a body. Raises InvalidRequest: when the body has no vote, or other fields beside `data`."""
    if asked.data is not None:
        beside = next((name for name in _ONE if getattr(asked, name) != _DEFAULTS[name]), None)
        if beside is not None:
            raise InvalidRequest(
                f"Invalid value for '{beside}': it stands in each vote of 'data', not beside it.",
                param=beside,
                code="invalid_value",
            )
        return asked.data
    for name in ("metric", "value"):
        if getattr(asked, name) is None:
            raise missing_field(name)
    return [asked]


_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(CreateFeedback)}


def _feedback_wire(row: VoteRow, comment: str | None) -> Feedback:
    return Feedback(
        id=row.id,
        metric=row.metric,
        value=_value(row),
        source=row.source,
        request_id=row.request_id,
        unit_digest=None if row.digest is None else row.digest.hex(),
        comment=comment,
        occurred_at=row.occurred_at.timestamp(),
        received_at=row.received_at.timestamp(),
    )


def _value(row: VoteRow) -> bool | float | str:
    match row.type:
        case "boolean":
            return bool(row.value)
        case "label":
            return row.label or ""
    return row.value / MILLION


def _json(body: msgspec.Struct) -> ASGIResponse:
    return ASGIResponse(body=msgspec.json.encode(body), media_type="application/json")


def _no_such() -> NotFound:
    return NotFound("No feedback of this project has this id.", param="feedback_id")
