"""GET /v1/models and /v1/models/{id}: the models that a key may call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
from litestar import Request, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from litestar.response.base import ASGIResponse

from gateway.backends.pool import Pool
from gateway.domain.errors import ModelNotFound
from gateway.http.caller import Caller
from gateway.http.shape import shape
from gateway.openai.shared.examples import MODELS
from gateway.openai.shared.replies import json_response
from gateway.routing.resolve import Resolver
from gateway.routing.route import Route
from gateway.support.pace import Pace

READS_PER_S, READS_BURST = 50.0, 1000.0
"""The most requests for models that a project may send: each second, and at once. Each of them costs queries."""


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A model that may be called.

    This is a base model, an adapter, a version of an adapter, an alias, an experiment, or a route.
    """

    id: str
    object: Literal["model"] = "model"
    created: int
    """The time of creation, in Unix seconds."""
    owned_by: str
    """The id of a project, `lorikeet` for a base model, or `shared` for an adapter that another project shares with
    this one."""
    root: str
    """The base model, as vLLM shows it."""
    parent: str | None
    """The model that this one is made from, as vLLM shows it: the base model of an adapter, or an alias's target. Null
    for a base model, and for an experiment or a route, which may have several targets."""
    max_model_len: int


class ModelList(msgspec.Struct, frozen=True):
    """All models that a key may call."""

    data: list[Model]
    object: Literal["list"] = "list"


ShowModels = Callable[[Request[Any, Any, Any], Sequence[Model]], ASGIResponse | None]
ShowModel = Callable[[Request[Any, Any, Any], Model], ASGIResponse | None]
"""A function that makes the reply about a model for clients of another API.

It returns None for clients of OpenAI's.
"""


def models(
    resolver: Resolver, pools: Mapping[str, Pool], show_models: ShowModels, show_model: ShowModel
) -> list[HTTPRouteHandler]:
    """Return the routes that list models and show one.

    show_models, show_model: make the replies for clients of another API, at the same paths.
    """
    pace = Pace(READS_PER_S, READS_BURST, what="models")

    @get("/models", opt=shape(reply=ModelList, example=MODELS))
    async def list_models(request: Request[Any, Any, Any], caller: Caller) -> ASGIResponse:
        """List the models that the key may call: base models, adapters and aliases."""
        pace.take(caller.project_id)
        routes = await resolver.list_routes(caller)
        shown = [_model(route, pool) for route in routes if (pool := pools.get(route.base)) is not None]
        return show_models(request, shown) or json_response(ModelList(shown))

    # A path, since the name of a base model may hold a slash.
    @get("/models/{model_id:path}", opt=shape(reply=Model))
    async def get_model(model_id: FromPath[Path], request: Request[Any, Any, Any], caller: Caller) -> ASGIResponse:
        """Return one model that the key may call."""
        model = str(model_id).lstrip("/")
        pace.take(caller.project_id)
        route = await resolver.resolve(caller, model)
        pool = pools.get(route.base)
        if pool is None:
            raise ModelNotFound(model)  # removed just now
        found = _model(route, pool)
        return show_model(request, found) or json_response(found)

    return [list_models, get_model]


def _model(route: Route, pool: Pool) -> Model:
    adapter, named, parent = route.adapter, route.named, None
    owner, created = "lorikeet", pool.created
    if adapter is not None:
        parent = route.base if named is None else f"{route.base}:{adapter.label}"
        owner = "shared" if adapter.is_shared else adapter.ref.tenant
        created = int(adapter.created_at.timestamp())
    if named is not None:
        owner, created, parent = named.owner_id, int(named.created_at.timestamp()), parent or route.base
    if named is not None and named.has_several_targets:
        parent = None
    return Model(
        id=route.id,
        created=created,
        owned_by=owner,
        root=route.base,
        parent=parent,
        max_model_len=pool.serving.capabilities.max_model_len,
    )
