"""The base models that a project may use, over HTTP.

Each is shown with the length of its context, its prices, and whether it answers.
"""

from __future__ import annotations

import time
from typing import Any, Literal

import msgspec
from litestar import Request, get
from litestar.params import FromPath

from gateway.admin.access import LIST_QUERY, needs
from gateway.admin.organization.projects import existing_project
from gateway.admin.paging import Page, page_of_all, read_list_query
from gateway.admin.pools.pool_wire import Healths
from gateway.admin.services import AdminServices, Caller, Services
from gateway.db.billing.prices import list_versions
from gateway.db.pools.managed import UsableBase, list_usable
from gateway.domain.billing.book import DEFAULT_CLASS, NO_ADAPTER, Version, in_force
from gateway.domain.billing.pricing import WHOLE_BASIS_POINTS
from gateway.domain.pools.foreign_settings import OwnKeys

SERVICE_TIER = "default"


class ModelPrice(msgspec.Struct, frozen=True):
    """The prices that a project pays for tokens, less the discount of the project."""

    currency: str
    input_nanos_per_million: int
    """Nanos of the currency per million tokens."""
    cached_input_nanos_per_million: int
    output_nanos_per_million: int


class ProjectModel(msgspec.Struct, frozen=True, kw_only=True):
    """A base model that a project may use."""

    id: str
    """The id of the pool."""
    name: str
    """The name by which requests ask for the base model."""
    context_length: int | None
    """Tokens of prompt and completion together; null while no engine says so."""
    num_ready: int
    """Number of replicas that take requests."""
    price: ModelPrice | None
    """The price of the base model itself; null while there are no prices."""
    adapter_price: ModelPrice | None
    """The price of adapters that have no price class of their own; null while there are no prices."""
    own_keys: OwnKeys
    """The use of keys of the project's own for the servers behind the model: `none` takes no such key, `required` needs
    one, and `allowed` takes one. Requests with such a key are charged for no tokens."""
    object: Literal["organization.project.model"] = "organization.project.model"


@get("/projects/{project_id:str}/models", opt=needs("projects.read", query=LIST_QUERY))
async def list_project_models(
    project_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
) -> Page[ProjectModel]:
    """List the base models that a project may use, with the prices of each."""
    query = read_list_query(request.query_params)
    async with services.database.acquire() as conn:
        await existing_project(conn, caller.organization_id, project_id)
        bases = await list_usable(conn, caller.organization_id, project_id)
        versions = [each.version for each in await list_versions(conn, caller.organization_id)]
    now_ns = time.time_ns()
    current = next((each for each in in_force(versions[::-1], now_ns, now_ns) if each.effective_ns <= now_ns), None)
    lengths, healths = _context_lengths(services), services.replica_healths()
    return page_of_all([_wire(each, lengths, healths, current, project_id) for each in bases], query)


def _context_lengths(services: AdminServices) -> dict[str, int]:
    """Return the shortest context of the engines of each model, as this gateway knows them."""
    lengths: dict[str, int] = {}
    for engine in services.engines():
        if engine.limits is not None:
            length = engine.limits.max_model_len
            lengths[engine.model] = min(length, lengths.get(engine.model, length))
    return lengths


def _wire(
    base: UsableBase, lengths: dict[str, int], healths: Healths, current: Version | None, project_id: str
) -> ProjectModel:
    answering = [each for each in base.unmanaged if each in healths and healths[each].ready]
    set_length = int(base.settings.get("max_model_len", "0"))
    return ProjectModel(
        id=base.id,
        name=base.name,
        context_length=lengths.get(base.name) or set_length or None,
        num_ready=base.num_ready + len(answering),
        price=_price(current, project_id, base.name, NO_ADAPTER),
        adapter_price=_price(current, project_id, f"{base.name}:", DEFAULT_CLASS),
        own_keys=base.own_keys,
    )


def _price(current: Version | None, project_id: str, model: str, adapter_class: str) -> ModelPrice | None:
    if current is None:
        return None
    rates = current.rates(project_id, model, adapter_class, SERVICE_TIER)
    share = WHOLE_BASIS_POINTS - rates.basis_points

    def less(nanos: int) -> int:
        return (2 * nanos * share + WHOLE_BASIS_POINTS) // (2 * WHOLE_BASIS_POINTS)

    return ModelPrice(
        current.currency, less(rates.input_nanos), less(rates.cached_input_nanos), less(rates.output_nanos)
    )
