"""GET /v1/models as Anthropic's clients expect it: pages of models with names for people."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from litestar import Request
from litestar.response.base import ASGIResponse

from gateway.domain.errors import InvalidRequest
from gateway.messages.errors import is_anthropic
from gateway.openai.models import Model
from gateway.openai.shared.list_query import MAX_SHOWN
from gateway.openai.shared.replies import json_response

DEFAULT_LIMIT, MAX_LIMIT = 20, 1000


class MessageModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model that may be called."""

    id: str
    display_name: str
    created_at: str
    max_input_tokens: int
    max_tokens: int
    lifecycle: Literal["active"] = "active"
    type: Literal["model"] = "model"


class MessageModels(msgspec.Struct, frozen=True):
    """A page of models, the newest first."""

    data: list[MessageModel]
    first_id: str | None
    last_id: str | None
    has_more: bool


def anthropic_models(request: Request[Any, Any, Any], found: Sequence[Model]) -> ASGIResponse | None:
    """Return the list of models for one of Anthropic's clients; None for another client.

    Raises InvalidRequest: when the limit of the page is wrong, or a page begins or ends at an unknown model.
    """
    if not is_anthropic(request.scope):
        return None
    newest = sorted((_model_wire(model) for model in found), key=lambda model: model.created_at, reverse=True)
    return json_response(_page(newest, dict(request.query_params.items())))


def anthropic_model(request: Request[Any, Any, Any], found: Model) -> ASGIResponse | None:
    """Return one model for one of Anthropic's clients; None for another client."""
    return json_response(_model_wire(found)) if is_anthropic(request.scope) else None


def _page(models: Sequence[MessageModel], query: dict[str, str]) -> MessageModels:
    limit = query.get("limit", str(DEFAULT_LIMIT))
    if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:9]) <= MAX_LIMIT):
        raise InvalidRequest(f"'limit' must be from 1 to {MAX_LIMIT}.", param="limit", code="invalid_value")
    first, end = 0, len(models)
    if (after := query.get("after_id")) is not None:
        first = 1 + _place(models, after, "after_id")
    if (before := query.get("before_id")) is not None:
        end = _place(models, before, "before_id")
        first = max(first, end - int(limit)) if after is None else first
    page = models[first : min(end, first + int(limit))]
    has_more = first > 0 if before is not None and after is None else first + len(page) < end
    ids = [model.id for model in page]
    return MessageModels(list(page), ids[0] if ids else None, ids[-1] if ids else None, has_more)


def _place(models: Sequence[MessageModel], id: str, field: str) -> int:
    for place, model in enumerate(models):
        if model.id == id:
            return place
    raise InvalidRequest(f"'{field}' names no model: '{id[:MAX_SHOWN]}'.", param=field, code="invalid_value")


def _model_wire(model: Model) -> MessageModel:
    created = datetime.datetime.fromtimestamp(model.created, datetime.UTC)
    return MessageModel(
        id=model.id,
        display_name=model.id,
        created_at=created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        max_input_tokens=model.max_model_len,
        max_tokens=model.max_model_len,
    )
