"""Layers and holdouts over HTTP: units that can be in one experiment at most, and units that are in none."""

from __future__ import annotations

import secrets
from typing import Any

from litestar import Controller, Request, delete, get, post
from litestar.params import FromPath

from gateway.admin.access import LIST_QUERY, needs, read_body
from gateway.admin.common import audit_author, unix_seconds
from gateway.admin.experiments import wire
from gateway.admin.organization.projects import active_project, existing_project
from gateway.admin.paging import Page, page_of_all, read_list_query
from gateway.admin.services import Caller, Services
from gateway.db.experiments import holdouts, layers
from gateway.db.experiments.holdouts import HoldoutRow
from gateway.db.experiments.layers import LayerRow
from gateway.db.organization import audit
from gateway.domain.errors import Conflict, InvalidRequest, NotFound
from gateway.domain.experiments.allocation import num_free
from gateway.domain.experiments.assignment import SEED_BYTES

MAX_LAYERS = 100
MAX_HOLDOUTS = 20


class LayerController(Controller):
    """Endpoints for the layers of a project."""

    path = "/projects/{project_id:str}/experiment_layers"

    @get(opt=needs("experiments.read", query=LIST_QUERY))
    async def list_experiment_layers(
        self, project_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> Page[wire.ExperimentLayer]:
        """List the layers of a project, with the part of the units that is free in each."""
        query = read_list_query(request.query_params)
        async with services.database.acquire() as conn:
            await existing_project(conn, caller.organization_id, project_id)
            rows = await layers.list_layers(conn, project_id)
        return page_of_all([_layer_wire(row) for row in rows], query)

    @post(status_code=200, opt=needs("experiments.write", body=wire.CreateLayer))
    async def create_experiment_layer(
        self, project_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> wire.ExperimentLayer:
        """Create a layer, whose experiments have no unit in common."""
        wanted = await read_body(request, wire.CreateLayer)
        async with services.database.transaction() as conn:
            await active_project(conn, caller.organization_id, project_id)
            if len(await layers.list_layers(conn, project_id)) >= MAX_LAYERS:
                raise InvalidRequest(f"The project already has {MAX_LAYERS} layers, the most there can be.")
            if not await layers.create_layer(conn, project_id, wanted.name, secrets.token_bytes(SEED_BYTES)):
                raise Conflict(f"The project already has a layer named '{wanted.name}'.", param="name")
            row = await layers.find_layer(conn, project_id, wanted.name)
            assert row is not None
            made = _layer_wire(row)
            await audit.record(conn, audit_author(caller), "layer.created", made.id, project_id=project_id, after=made)
        return made

    @delete("/{name:str}", status_code=200, opt=needs("experiments.write"))
    async def delete_experiment_layer(
        self, project_id: FromPath[str], name: FromPath[str], services: Services, caller: Caller
    ) -> wire.DeletedExperimentLayer:
        """Delete a layer that no experiment names."""
        async with services.database.transaction() as conn:
            await existing_project(conn, caller.organization_id, project_id, lock=True)
            row = await layers.find_layer(conn, project_id, name)
            if row is None:
                raise NotFound(f"The project has no layer named '{name}'.", param="name")
            if await layers.is_layer_used(conn, project_id, name):
                raise Conflict(f"Experiments name the layer '{name}'.", param="name")
            await layers.delete_layer(conn, project_id, name)
            before = _layer_wire(row)
            await audit.record(conn, audit_author(caller), "layer.deleted", name, project_id=project_id, before=before)
        return wire.DeletedExperimentLayer(name)


class HoldoutController(Controller):
    """Endpoints for the holdouts of a project."""

    path = "/projects/{project_id:str}/holdouts"

    @get(opt=needs("experiments.read", query=LIST_QUERY))
    async def list_holdouts(
        self, project_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> Page[wire.ExperimentHoldout]:
        """List the holdouts of a project."""
        query = read_list_query(request.query_params)
        async with services.database.acquire() as conn:
            await existing_project(conn, caller.organization_id, project_id)
            rows = await holdouts.list_holdouts(conn, project_id)
        return page_of_all([_holdout(row) for row in rows], query)

    @post(status_code=200, opt=needs("experiments.write", body=wire.CreateHoldout))
    async def create_holdout(
        self, project_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> wire.ExperimentHoldout:
        """Create a holdout, whose units take part in no experiment that names the holdout."""
        wanted = await read_body(request, wire.CreateHoldout)
        async with services.database.transaction() as conn:
            await active_project(conn, caller.organization_id, project_id)
            if len(await holdouts.list_holdouts(conn, project_id)) >= MAX_HOLDOUTS:
                raise InvalidRequest(f"The project already has {MAX_HOLDOUTS} holdouts, the most there can be.")
            seed = secrets.token_bytes(SEED_BYTES)
            if not await holdouts.create_holdout(conn, project_id, wanted.name, seed, wanted.size):
                raise Conflict(f"The project already has a holdout named '{wanted.name}'.", param="name")
            row = await holdouts.find_holdout(conn, project_id, wanted.name)
            assert row is not None
            made = _holdout(row)
            await audit.record(
                conn, audit_author(caller), "holdout.created", made.id, project_id=project_id, after=made
            )
        return made

    @delete("/{name:str}", status_code=200, opt=needs("experiments.write"))
    async def delete_holdout(
        self, project_id: FromPath[str], name: FromPath[str], services: Services, caller: Caller
    ) -> wire.DeletedExperimentHoldout:
        """Delete a holdout that no experiment names."""
        async with services.database.transaction() as conn:
            await existing_project(conn, caller.organization_id, project_id, lock=True)
            row = await holdouts.find_holdout(conn, project_id, name)
            if row is None:
                raise NotFound(f"The project has no holdout named '{name}'.", param="name")
            if await holdouts.is_holdout_used(conn, project_id, name):
                raise Conflict(f"Experiments name the holdout '{name}'.", param="name")
            await holdouts.delete_holdout(conn, project_id, name)
            before = _holdout(row)
            await audit.record(
                conn, audit_author(caller), "holdout.deleted", name, project_id=project_id, before=before
            )
        return wire.DeletedExperimentHoldout(name)


def _layer_wire(row: LayerRow) -> wire.ExperimentLayer:
    return wire.ExperimentLayer(
        row.name, row.name, num_free(row.owners), [each.name for each in row.owners], unix_seconds(row.created_at)
    )


def _holdout(row: HoldoutRow) -> wire.ExperimentHoldout:
    return wire.ExperimentHoldout(row.name, row.name, row.size, unix_seconds(row.created_at))
