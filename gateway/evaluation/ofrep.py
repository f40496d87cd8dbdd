"""The routes of OpenFeature's remote evaluation: each experiment that has started is a flag, an arm's name its value.

Asking exposes nobody to anything: a unit is exposed by its first request. Failures have the protocol's own shape.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import msgspec
from litestar import Request, Response, post
from litestar.di import Provide
from litestar.params import FromPath
from litestar.response.base import ASGIResponse

from gateway.domain.errors import GatewayError, InvalidRequest, NotFound
from gateway.domain.experiments.assignment import OPEN_FEATURE_REASONS
from gateway.domain.experiments.exposure import Exposure
from gateway.evaluation.flags import Flags
from gateway.evaluation.ofrep_wire import EvaluatedFlag, EvaluatedFlags, EvaluateFlags, FlagError, Reason
from gateway.evaluation.wire import MAX_UNIT_CHARS
from gateway.http.bodies import Bodies
from gateway.http.caller import Caller
from gateway.http.envelope import OwnRouter
from gateway.http.fields import decode
from gateway.http.request.call import call_of
from gateway.http.shape import Example, shape
from gateway.routing.experiments import RunningExperiment
from gateway.support.pace import Pace

PER_S, BURST = 200.0, 1_000.0
"""The evaluations per second, and at once, that one project may ask one gateway for."""

_BODY = msgspec.json.Decoder(EvaluateFlags)
_EXAMPLE = Example(body={"context": {"targetingKey": "ann@example.com"}})


def ofrep(flags: Flags, bodies: Bodies, *, caller: Provide) -> OwnRouter:
    """Return the routes below /ofrep/v1. Each project has a pace of its own. caller: gives the caller of a request."""
    pace = Pace(PER_S, BURST, what="flags")

    async def unit_of(request: Request[Any, Any, Any], project: Caller) -> str:
        pace.take(project.project_id)
        return _unit(decode(_BODY, await bodies.read(request, project)))

    @post(
        "/evaluate/flags/{key:str}",
        status_code=200,
        opt=shape(body=EvaluateFlags, reply=EvaluatedFlag, statuses={400: FlagError, 404: FlagError}, example=_EXAMPLE),
    )
    async def evaluate_flag(key: FromPath[str], request: Request[Any, Any, Any], caller: Caller) -> ASGIResponse:
        """Return the arm that a unit gets in an experiment.

        The reply has the shape of OpenFeature's remote evaluation protocol. Nobody is exposed to anything by asking.
        """
        unit = await unit_of(request, caller)
        found = await flags.evaluate(caller, unit, key) if "\0" not in key else []
        if not found:
            raise NotFound("No experiment of this name has started in this project.", code="FLAG_NOT_FOUND")
        return _json(_flag(*found[0]))

    @post(
        "/evaluate/flags",
        status_code=200,
        opt=shape(body=EvaluateFlags, reply=EvaluatedFlags, statuses={400: FlagError}, example=_EXAMPLE),
    )
    async def evaluate_flags(request: Request[Any, Any, Any], caller: Caller) -> ASGIResponse:
        """Return the arms that a unit gets in all experiments that have started.

        The reply has the shape of OpenFeature's remote evaluation protocol, and an `ETag`: a request whose
        `If-None-Match` has it gets 304.
        """
        unit = await unit_of(request, caller)
        body = msgspec.json.encode(EvaluatedFlags(flags=[_flag(*each) for each in await flags.evaluate(caller, unit)]))
        tag = f'"{blake2b(body, digest_size=16).hexdigest()}"'
        if request.headers.get("if-none-match") == tag:
            return ASGIResponse(status_code=304, headers={"etag": tag})
        return ASGIResponse(body=body, media_type="application/json", headers={"etag": tag})

    return OwnRouter(
        "/ofrep/v1",
        route_handlers=[evaluate_flag, evaluate_flags],
        dependencies={"caller": caller},
        exception_handlers={InvalidRequest: _refused, NotFound: _refused},
    )


def _unit(asked: EvaluateFlags) -> str:
    """Return the unit that a context names. Raises InvalidRequest: when it names no unit, or one that is no text."""
    unit = asked.context.get("targetingKey")
    if unit is None or unit == "":
        raise InvalidRequest("The context has no 'targetingKey'.", code="TARGETING_KEY_MISSING")
    if not isinstance(unit, str) or len(unit) > MAX_UNIT_CHARS:
        raise InvalidRequest(
            f"The 'targetingKey' must be a text of at most {MAX_UNIT_CHARS} characters.", code="INVALID_CONTEXT"
        )
    return unit


def _flag(experiment: RunningExperiment, exposure: Exposure) -> EvaluatedFlag:
    return EvaluatedFlag(
        key=experiment.name,
        value=exposure.arm_name,
        variant=exposure.arm_name,
        reason=msgspec.convert(OPEN_FEATURE_REASONS[exposure.reason].upper(), Reason),
        metadata={"id": experiment.id, "version": experiment.version, "model": experiment.model},
    )


def _json(body: msgspec.Struct) -> ASGIResponse:
    return ASGIResponse(body=msgspec.json.encode(body), media_type="application/json")


_CODES = ("TARGETING_KEY_MISSING", "INVALID_CONTEXT", "FLAG_NOT_FOUND")


def _refused(request: Request[Any, Any, Any], error: GatewayError) -> Response[bytes]:
    """Render a refusal as the protocol has it."""
    call = call_of(request.scope)
    call.error, call.refusal = error.code, error
    code = error.code if error.code in _CODES else "PARSE_ERROR"
    body = {"errorCode": code, "errorDetails": error.message}
    if "key" in request.path_params:
        body = {"key": request.path_params["key"]} | body
    return Response(msgspec.json.encode(body), status_code=error.status, media_type="application/json")
