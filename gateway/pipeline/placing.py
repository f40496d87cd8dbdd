"""Finds the target of a request: the model that its model string stands for, the model's pool, and an experiment's arm.

Knows nothing of prompts, limits and replies.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TypeVar

import msgspec

from gateway.backends.pool import Pool, PoolRevision
from gateway.domain.errors import GatewayError, InvalidRequest, ModelNotFound
from gateway.domain.experiments.definition import SHADOW_ARM
from gateway.domain.experiments.exposure import Exposure
from gateway.domain.experiments.segment_values import Origin
from gateway.domain.experiments.shadowing import Outcome
from gateway.domain.tenancy.principal import Principal
from gateway.experiments.notes import Notes
from gateway.pipeline.context import RequestContext
from gateway.routing.experiments import RunningExperiment
from gateway.routing.resolve import Found, Resolver
from gateway.routing.route import Route
from gateway.support.pace import Pace

T = TypeVar("T")

MISSES_PER_S, MISSES_BURST = 10.0, 300.0
"""The most requests of a project for models that it does not have: each second, and at once. Each costs a query."""


class PlacedShadow(msgspec.Struct, frozen=True):
    """The target of a request's copy."""

    route: Route | None
    """The route of the copy; None where its target does not exist any more."""
    ended: Callable[[Outcome], None]
    """The function that is called with the outcome of the copy."""
    exposure: Exposure | None = None
    """The shadow arm of an experiment that asks for the copy."""
    payer: Principal | None = None
    """The principal that is charged for the copy; None: the caller."""
    suffix: str = ""
    """The end of the copy's id, where several copies of one request may run."""


class Placed(msgspec.Struct, frozen=True):
    """The model, pool and arm for all prompts of one request, fixed when the request is placed."""

    route: Route
    pool: PoolRevision
    exposure: Exposure | None = None
    """The arm of an experiment that the request got, where its model string names one."""
    project_key: bytes = b""
    """The secret of the project's experiments, with an exposure."""
    shadow: PlacedShadow | None = None
    """The target of a copy of the request; None where there is no copy."""


class Placing:
    """Places the requests of one gateway process."""

    def __init__(self, resolver: Resolver, pools: Mapping[str, Pool], notes: Notes, *, journal_id: str) -> None:
        """Prepare to place requests. journal_id: the journal with their usage, which notes of refusals name."""
        self._resolver = resolver
        self._pools = pools
        self._notes = notes
        self._journal_id = journal_id
        self._misses = Pace(MISSES_PER_S, MISSES_BURST, what="models that it has not")

    async def find(self, context: RequestContext) -> Found:
        """Return the target that the model string of a request names.

        Raises ModelNotFound: when the caller may use no such model.
        Raises LimitReached: when the project has asked for too many models that it does not have.
        Raises Overloaded: when the database cannot be asked.
        """
        return await self._resolve_within(context.principal, self._resolver.find, self._model(context))

    async def route(self, context: RequestContext) -> tuple[Route, PoolRevision]:
        """Return the route of a request that exposes no unit: the control's, where its model is an experiment.

        Raises as `find`.
        """
        model = self._model(context)
        route = await self._resolve_within(context.principal, self._resolver.resolve, model)
        return route, self.pool(route, model)

    def exposure(self, context: RequestContext, found: Route | RunningExperiment) -> Exposure | None:
        """Return the arm that a request gets; None where its model is no experiment.

        Raises InvalidRequest: when the request asks for an arm that the experiment does not have.
        """
        if isinstance(found, Route):
            return None
        return found.expose(context.unit, forced_arm=context.forced_arm, is_off=context.is_off)

    def expose(self, context: RequestContext, exposure: Exposure | None) -> None:
        """Record the arm that a request got, and make its reply name the arm.

        exposure: None: the request is of no experiment, and nothing is recorded.
        """
        if exposure is not None:
            context.exposed(exposure)
            self._notes.note_exposure(exposure)

    def placed(self, context: RequestContext, found: Route | RunningExperiment, exposure: Exposure | None) -> Placed:
        """Return the placement of all prompts of a request: in an experiment, that of its exposure's arm.

        Raises ModelNotFound: when the model or the pool is gone.
        """
        if isinstance(found, Route):
            return Placed(found, self.pool(found, found.id))
        assert exposure is not None
        route = found.arms[exposure.arm].route
        if route is None:
            raise ModelNotFound(found.model)  # never another arm in silence
        shadow = self._shadow_of(context, found, exposure)
        return Placed(route, self.pool(route, found.model), exposure, found.project_key, shadow)

    def refused(
        self, context: RequestContext, exposure: Exposure | None, service_tier: str, error: GatewayError
    ) -> None:
        """Record that a request of an experiment was refused, since one arm's requests may be refused more often.

        exposure: None: the request is of no experiment, and nothing is recorded.
        """
        if exposure is not None:
            origin = Origin(
                context.principal.api_key_id, context.endpoint, context.stream, service_tier, self._journal_id
            )
            self._notes.note_refusal(exposure, context.principal.project_id, context.request_id, error, origin)

    def pool(self, route: Route, model: str) -> PoolRevision:
        """Return the pool of a route. model: the model string by which the request named the route.

        Raises ModelNotFound: when the pool was removed just now.
        """
        pool = self._pools.get(route.base)
        if pool is None:
            raise ModelNotFound(model)
        return pool.serving

    def has_spare_room(self, route: Route, share: float) -> bool:
        """Tell whether less than a share of the places of a route's pool is taken; True for a pool that is gone."""
        pool = self._pools.get(route.base)
        return pool is None or pool.serving.has_spare_room(share)

    def _shadow_of(
        self, context: RequestContext, experiment: RunningExperiment, exposure: Exposure
    ) -> PlacedShadow | None:
        """Return the target of the copy that an experiment wants of a request, paid by the caller; None: no copy."""
        arm = experiment.shadow_of(context.request_id, exposure, context.principal.models)
        if arm is None:
            return None
        copied = Exposure(experiment.id, experiment.name, experiment.version, SHADOW_ARM, arm.name, 0, "forced")
        return PlacedShadow(arm.route, partial(self._notes.note_shadow_outcome, experiment.id), copied)

    async def _resolve_within(
        self, principal: Principal, look_up: Callable[[Principal, str], Awaitable[T]], model: str
    ) -> T:
        self._misses.take(principal.project_id, 0)
        try:
            return await look_up(principal, model)
        except ModelNotFound:
            self._misses.charge(principal.project_id, 1)
            raise

    def _model(self, context: RequestContext) -> str:
        model = context.model or self._only_model(context.principal)
        if model is None:
            raise InvalidRequest(
                "Missing required parameter: 'model'.", param="model", code="missing_required_parameter"
            )
        return model

    def _only_model(self, principal: Principal) -> str | None:
        """Return the only base model that the caller may use, for requests without a model; None if several are."""
        visible = self._resolver.bases.visible(principal.project_id, principal.organization_id)
        return next(iter(visible)) if len(visible) == 1 else None
